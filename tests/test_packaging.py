"""What a package needs beside its modules is named in pyproject.toml, so that an installation holds it."""

from __future__ import annotations

import tomllib
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MADE = (".py", ".pyc")


def test_every_file_of_a_package_is_installed_with_it() -> None:
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    patterns = told["package-data"]["*"]
    packages = [pattern.removesuffix("*") for pattern in told["packages"]["find"]["include"]]
    files = [path for package in packages for path in (ROOT / package).rglob("*") if path.is_file()]
    data = [path for path in files if path.suffix not in MADE]
    assert len(data) > 20
    assert [path for path in data if not any(fnmatch(path.name, pattern) for pattern in patterns)] == []
    # Folders of data alone are packages too (without __init__.py); each lies below one that has it.
    assert [path for path in data if not any((above / "__init__.py").is_file() for above in path.parents)] == []
