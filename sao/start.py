"""Where every process of `sao` begins: our rooms are imported from beside this file, or nothing starts.

The rooms have plain names (`data`, `eval`, ...), which a user's own project may have too. Promises:
* a `data` of the working folder or of PYTHONPATH is never taken for ours, and stays what it is for other programs;
* another installed package that wrote over a file of ours is named, before anything is imported from it.

Imports the standard library alone. Run as a file (`python -P sao/start.py train_worker ...`) it starts a side of a
training run, whatever the working folder holds.
"""

from __future__ import annotations

import csv
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

ROOMS = ("data", "envs", "agent", "trainer", "eval", "sao")
ROOT = Path(__file__).resolve().parent.parent


def take_rooms(root: Path = ROOT) -> str:
    """Import the six packages from `root`; what is in the way in words, empty when nothing is."""
    for name in ROOMS:
        folder = root / name
        if loaded := sys.modules.get(name):
            where = Path(getattr(loaded, "__file__", None) or "").parent.resolve()
            if where != folder.resolve():
                return f"Another package named {name!r} was imported before ours: {where}. {_MEND}"
            continue
        spec = importlib.util.spec_from_file_location(
            name, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        if spec is None or spec.loader is None or not (folder / "__init__.py").is_file():
            return f"{folder}/__init__.py is missing: the installation is incomplete. {_MEND}"
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return ""


def damage(root: Path = ROOT) -> str:
    """The first file of ours that another installation replaced or took away, in words; empty when there is none, or in
    a checkout."""
    for record in root.glob("sao_rl-*.dist-info/RECORD"):
        for name, size in _recorded(record):
            path = root / name
            there = path.stat().st_size if path.is_file() else None
            if there != size:
                others = [other.parent.name.split("-")[0] for other in _owners(root, name) if other != record]
                whose = f" by {', '.join(others)}" if others else ""
                what = "is missing" if there is None else f"was replaced{whose}"
                return f"{path} {what}: the installation is damaged. {_MEND}"
    return ""


_MEND = (
    "Give sao an environment of its own: python3 -m venv sao-env && sao-env/bin/pip install <the wheel or checkout>; "
    "nothing was started."
)


def _recorded(record: Path) -> Iterator[tuple[str, int]]:
    with record.open(newline="", encoding="utf-8") as rows:
        for name, _, size in csv.reader(rows):
            if name.split("/")[0] in ROOMS and size and not name.endswith(".pyc"):
                yield name, int(size)


def _owners(root: Path, name: str) -> Iterator[Path]:
    for record in sorted(root.glob("*.dist-info/RECORD")):
        if any(line.startswith(f"{name},") for line in record.read_text(encoding="utf-8").splitlines()):
            yield record


def _refuse(text: str) -> None:
    print(f"error: {text}", file=sys.stderr)
    sys.exit(2)


def begin(module: str) -> int:
    """Run `main()` of a module of ours in these rooms."""
    if problem := damage() or take_rooms():
        _refuse(problem)
    return int(importlib.import_module(module).main() or 0)


def main() -> int:
    """The `sao` command."""
    return begin("sao.cli")


if __name__ == "__main__":
    side = sys.argv.pop(1)
    sys.exit(begin(f"sao.{side}"))
