"""Model ids of the hub, with the hub's own client: against a hub on the loopback, and without a network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sao.hub import HubError, fetch_command, is_model_id
from sao.paths import DEMO_POLICY

from .hub_server import COMMIT, Hub, serving

SHOW = (
    "import sys\nfrom sao.paths import UserError, model_folder\n"
    "try:\n    print(model_folder(sys.argv[1], download=sys.argv[2] == 'yes'))\n"
    "except UserError as error:\n    sys.exit(f'REFUSED {error}')"
)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    shutil.copytree(DEMO_POLICY, folder)
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    (folder / "modeling_own.py").write_text("raise SystemExit('code of the model ran')")
    (folder / "onnx").mkdir()
    (folder / "onnx" / "config.json").write_text("{}")
    return folder


def ask(cache: Path, name: str, *, hub: Hub | None = None, download: bool = True, offline: bool = False) -> str:
    """What a process of its own gets (the client reads its settings when it is imported)."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
    # Port 9 of the loopback discards: nothing listens there.
    env |= {"HF_HOME": str(cache), "HF_ENDPOINT": hub.url if hub else "http://127.0.0.1:9", "HF_HUB_DISABLE_XET": "1"}
    env |= {"HF_HUB_OFFLINE": "1"} if offline else {}
    words = [sys.executable, "-c", SHOW, name, "yes" if download else "no"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout.strip() or done.stderr.strip()


def test_fetched_once_without_pickles_and_code_and_then_from_the_cache(repo: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with serving({"some-org/small-model": repo}) as hub:
        folder = Path(ask(cache, "some-org/small-model", hub=hub))
        assert folder.name == COMMIT
        names = {str(file.relative_to(folder)) for file in folder.rglob("*")}
        assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
        assert not names & {"pytorch_model.bin", "modeling_own.py", "onnx"}
        assert (folder / "model.safetensors").read_bytes() == (repo / "model.safetensors").read_bytes()
        asked = len(hub.asked)
        assert Path(ask(cache, "some-org/small-model", hub=hub)) == folder
        assert len(hub.asked) == asked  # the cache answers alone
    assert Path(ask(cache, "some-org/small-model")) == folder
    assert Path(ask(cache, "some-org/small-model", offline=True)) == folder


def test_without_a_network_the_command_is_named(tmp_path: Path) -> None:
    said = ask(tmp_path, "some-org/small-model@v2")
    assert said.startswith("REFUSED No model folder some-org/small-model@v2 is here.")
    assert "`hf download some-org/small-model --revision v2`" in said
    assert "HF_HUB_OFFLINE is set" in ask(tmp_path, "some-org/small-model", offline=True)


def test_a_dry_run_fetches_nothing(repo: Path, tmp_path: Path) -> None:
    with serving({"some-org/small-model": repo}) as hub:
        said = ask(tmp_path / "cache", "some-org/small-model", hub=hub, download=False)
        assert "`hf download some-org/small-model` fetches it" in said
        assert not hub.asked


def test_a_model_that_the_hub_does_not_have_is_not_blamed_on_the_network(tmp_path: Path) -> None:
    with serving({}) as hub:
        said = ask(tmp_path, "some-org/no-model", hub=hub)
    assert "The hub does not give the model some-org/no-model" in said
    assert "No network" not in said


def test_a_model_without_safetensors_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "repo"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    with serving({"some-org/old": folder}) as hub:
        assert "no config.json with *.safetensors" in ask(tmp_path / "cache", "some-org/old", hub=hub)


@pytest.mark.parametrize("name", ["/abs/path", "a/b/c", "../up", "plain", "org/na me", ""])
def test_what_is_no_id(name: str) -> None:
    assert not is_model_id(name)
    with pytest.raises(HubError, match="no id of a model"):
        fetch_command(name)
