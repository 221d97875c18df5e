"""The built wheel, installed in an environment of its own and used from another folder: what a user of it meets.

Dependencies are lent by this environment (a .pth line), so nothing is downloaded; our own code comes from the wheel.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SAO = Callable[..., subprocess.CompletedProcess[str]]


def run(*words: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    usual = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SAO_RUNS")}
    return subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env={**usual, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of what git knows, so that no build folder is left in the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    listed = run("git", "ls-files", "-co", "--exclude-standard", cwd=ROOT).stdout.splitlines()
    source = folder / "source"
    for name in listed:
        if (ROOT / name).exists() and name.split("/")[0] not in ("tests", "docs", "benchmarks"):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_symlink():
                (source / name).symlink_to((ROOT / name).readlink())
            else:
                (source / name).write_bytes((ROOT / name).read_bytes())
    pip = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index")
    made = run(*pip, "-w", folder, source, cwd=folder)
    assert made.returncode == 0, made.stderr
    (one,) = folder.glob("*.whl")
    return one


def install(place: Path, *wheels: Path) -> Path:
    """A new environment with these wheels; its folder of packages."""
    venv.create(place, with_pip=False)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(place), "platbase": str(place)}))
    (packages / "lent.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    for one in wheels:
        made = run(
            *(sys.executable, "-m", "pip", "--python", place / "bin" / "python", "install", "-q", "--no-deps"),
            *("--no-index", "--disable-pip-version-check", one),
            cwd=place,
        )
        assert made.returncode == 0, made.stderr
    return packages


@pytest.fixture(scope="module")
def place(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("an environment")  # a path with a space
    install(folder / "env", wheel)
    return folder


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A project that has packages and modules of our names, each of which fails when it is imported."""
    for name in ("data", "eval", "trainer"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the user\\'s own package was imported')\n")
    for name in ("agent", "envs"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the user\\'s own module was imported')\n")
    return tmp_path


@pytest.fixture
def sao(place: Path, elsewhere: Path) -> SAO:
    def call(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
        return run(place / "env" / "bin" / "sao", *words, cwd=elsewhere, **environment)

    return call


def test_the_wheel_holds_what_the_commands_read(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("configs", "agent/presets", "agent/assets/demo", "data/evaluation_sets"):
        wanted = {
            f"{'sao/' if folder == 'configs' else ''}{path.relative_to(ROOT)}"
            for path in (ROOT / folder).iterdir()
            if path.is_file()
        }
        assert wanted
        assert wanted <= names
    assert {"sao/setup/base-image.sh", "sao/setup/docker-engine.sh"} <= names
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {
        "agent", "data", "envs", "eval", "sao", "trainer",
    }  # fmt: skip


def test_it_says_what_it_is(sao: SAO, place: Path) -> None:
    said = sao("--version")
    assert said.returncode == 0, said.stderr
    assert "installed in" in said.stdout
    assert str(place) in said.stdout.replace("\n", "")
    assert sao("config", "demo").stdout.startswith('name = "demo"')
    for name in ("smollm2", "smollm2-micro-swe"):
        assert sao("config", name).returncode == 0
    assert "_SAO_COMPLETE" in sao("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1").stdout


@pytest.mark.parametrize("by", ["command", "module", "PYTHONPATH"])
def test_packages_of_the_users_own_with_our_names_are_not_taken(
    sao: SAO, place: Path, elsewhere: Path, by: str
) -> None:
    words = ("config", "demo")
    if by == "module":
        done = run(place / "env" / "bin" / "python", "-m", "sao", *words, cwd=elsewhere)
    else:
        done = sao(*words, **({"PYTHONPATH": str(elsewhere)} if by == "PYTHONPATH" else {}))
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stdout.startswith('name = "demo"')


def test_episodes_run_from_the_wheel(sao: SAO, elsewhere: Path) -> None:
    done = sao("rollout", "--episodes", "2", "--sandbox", "embedded", "--plain", PYTHONPATH=str(elsewhere))
    assert done.returncode == 0, done.stderr + done.stdout
    assert list((elsewhere / "runs" / "demo-001" / "log").iterdir())


def test_a_side_of_training_takes_our_rooms_too(place: Path, elsewhere: Path) -> None:
    start = next((place / "env").rglob("sao/start.py"))
    done = run(
        *(place / "env" / "bin" / "python", "-P", start, "train_worker", "trainer", elsewhere / "no-run"),
        cwd=elsewhere,
        PYTHONPATH=str(elsewhere),
    )
    assert "own package" not in done.stderr + done.stdout
    assert "no-run" in done.stderr + done.stdout


def test_commands_name_ways_that_exist_there(sao: SAO, tmp_path: Path) -> None:
    refused = sao("serve", "--model", "demo", "--set", f"engine.environment={tmp_path / 'none'}")
    assert "pip install vllm==" in " ".join(refused.stderr.split())
    assert "base-image or docker-engine" in " ".join(sao("setup", "nothing").stderr.split())
    assert sao("setup", "docker-engine", "status", DOCKER_HOST=f"unix://{tmp_path}/none.sock").returncode == 1
    told = sao("images", "ls", DOCKER_HOST=f"unix://{tmp_path}/none.sock")
    assert told.returncode == 3
    assert "sao setup docker-engine start" in " ".join(told.stderr.split())
    assert sao("tasks", "show", "-n", "1", "--plain").returncode == 0


def _other_wheel(folder: Path) -> Path:
    """Somebody's package whose top-level package is called data too."""
    made = folder / "other-1.0-py3-none-any.whl"
    with zipfile.ZipFile(made, "w") as file:
        file.writestr("data/__init__.py", "THEIRS = True\n")
        file.writestr("other-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
        file.writestr("other-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(
            "other-1.0.dist-info/RECORD",
            "data/__init__.py,,\nother-1.0.dist-info/METADATA,,\nother-1.0.dist-info/RECORD,,\n",
        )
    return made


def test_a_package_that_wrote_over_ours_is_named(wheel: Path, tmp_path: Path) -> None:
    packages = install(tmp_path / "env", wheel, _other_wheel(tmp_path))
    sao = tmp_path / "env" / "bin" / "sao"
    refused = run(sao, "--version", cwd=tmp_path)
    assert refused.returncode == 2
    assert f"{packages}/data/__init__.py was replaced by other" in refused.stderr
    (packages / "data" / "__init__.py").unlink()  # what removing the other package does
    refused = run(sao, "--version", cwd=tmp_path)
    assert refused.returncode == 2
    assert f"{packages}/data/__init__.py is missing" in refused.stderr
