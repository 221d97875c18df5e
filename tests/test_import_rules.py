"""Which room may import which, and what `data` and `envs` must never load."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAY_IMPORT = {
    "data": set(),
    "envs": {"data"},
    "agent": {"data", "envs"},
    "trainer": {"data", "envs", "agent"},
    "eval": {"data", "envs", "agent"},
    "sao": {"data", "envs", "agent", "trainer", "eval"},
}
HEAVY_AT_IMPORT = {"vllm", "swebench", "ray"}
"""Never at the top of a module of ours: seconds each, and not installed everywhere."""


def sources(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


def imports(path: Path) -> Iterator[tuple[str, int, bool]]:
    """(first name of the module, line, whether it runs when the file is imported) of every import, lazy ones too."""
    tree = ast.parse(path.read_text(), str(path))
    lazy = {
        id(inner)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for inner in ast.walk(function)
    }
    typing_only = {
        id(inner)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for inner in ast.walk(block)
    }
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""] if not node.level else [path.relative_to(ROOT).parts[0]]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("importlib.import_module", "__import__"):
            names = [str(argument.value) for argument in node.args[:1] if isinstance(argument, ast.Constant)]
        for name in names:
            yield name.split(".")[0], getattr(node, "lineno", 0), id(node) not in lazy | typing_only


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_rooms_import_one_way(room: str) -> None:
    """data <- envs <- agent <- trainer, agent <- eval, all <- sao; a lazy import counts like any other."""
    assert sources(room), f"no files in {room}/"
    forbidden = set(MAY_IMPORT) - MAY_IMPORT[room] - {room} | {"tests", "benchmarks"}
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sources(room)
        for name, line, _ in imports(path)
        if name in forbidden
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("room", ["data", "envs"])
def test_data_and_envs_never_name_torch_or_transformers(room: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sources(room)
        for name, line, _ in imports(path)
        if name in ("torch", "transformers")
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_heavy_packages_are_imported_lazily(room: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name} when it is imported"
        for path in sources(room)
        for name, line, at_import in imports(path)
        if at_import and (name in HEAVY_AT_IMPORT or (name == "datasets" and room in ("data", "envs")))
    ]
    assert not wrong, "\n".join(wrong)


def modules(room: str) -> list[str]:
    names = []
    for path in sources(room):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[-1] != "__main__":
            names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return names


def test_data_and_envs_load_neither_torch_nor_transformers() -> None:
    """In a fresh process, with every module of both: nothing that they import loads them either."""
    every = modules("data") + modules("envs")
    assert {"data.log", "data.loaders", "envs.environment"} <= set(every)
    code = (
        f"import sys\nfor name in {every!r}: __import__(name)\n"
        "print(sorted({'torch', 'transformers', 'datasets', 'pandas', 'vllm', 'swebench'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "[]"


def test_the_bare_rooms_are_light() -> None:
    code = "import sys, data, envs; print(sorted({'numpy', 'pyarrow', 'docker', 'torch'} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_grading_predictions_starts_without_http_clients_tokenizers_or_the_log() -> None:
    """A second at every start; whoever plays episodes loads them then."""
    heavy = {"aiohttp", "numpy", "pyarrow", "torch", "transformers"}
    code = f"import sys, sao.swebench; print(sorted({heavy} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_the_rule_itself_sees_lazy_and_dynamic_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    path = tmp_path / "data" / "x.py"
    path.parent.mkdir()
    path.write_text(
        "import os, torch.nn\n"
        "from trainer.loop import run\n"
        "from . import sibling\n"
        "def f():\n"
        "    import vllm\n"
        "    importlib.import_module('ray.data')\n"
        "if TYPE_CHECKING:\n"
        "    import swebench\n"
    )
    assert sorted(imports(path)) == [
        ("data", 3, True),
        ("os", 1, True),
        ("ray", 6, False),
        ("swebench", 8, False),
        ("torch", 1, True),
        ("trainer", 2, True),
        ("vllm", 5, False),
    ]
