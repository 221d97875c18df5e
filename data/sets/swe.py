"""Executable SWE sets with published images, for training. Field maps only: test lists, images and commits are theirs.

Where a set has no eval script, one is written here that runs its test files with pytest (or its own test command) in
the image's conda environment; nothing is fetched. `sao tasks validate` tells which rows hold on this machine.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from data.sets import Row, TaskSet
from data.sets.columns import decoded, text
from data.task import TaskError

PYTEST = "python -m pytest -rA --color=no -p no:cacheprovider"
_HUNK_FILE = re.compile(r"^\+\+\+ b/(.+)$", re.MULTILINE)


def eval_script(command: str, files: Iterable[str], *, activate: str = "testbed", repo_dir: str = "/testbed") -> str:
    """Runs `command` on test files, in the conda environment that SWE-bench's images have."""
    names = " ".join(shlex.quote(name) for name in files)
    return (
        f"#!/bin/bash\nsource /opt/miniconda3/bin/activate {activate}\ncd {repo_dir}\n{command} {names}".rstrip() + "\n"
    )


def test_ids(row: Row, number: int, source: str, column: str) -> list[str]:
    value = decoded(row, number, source, column)
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise TaskError(f"{source}, row {number + 1}: column {column} is no list of test ids")
    return value


def test_files(ids: Iterable[str], test_patch: str) -> list[str]:
    """The files that hold these pytest ids; where ids name none, those that the test patch touches."""
    files = {one.split("::")[0] for one in ids if "::" in one and one.split("::")[0].endswith(".py")}
    return sorted(files or set(_HUNK_FILE.findall(test_patch)))


def _bench_columns(row: Row, number: int, source: str) -> dict[str, Any]:
    """What the sets of SWE-bench's kind have in common."""
    names = ("instance_id", "repo", "base_commit", "problem_statement", "patch")
    made: dict[str, Any] = {name: text(row, number, source, name) for name in names}
    made["test_patch"] = str(row.get("test_patch") or "")
    for column in ("FAIL_TO_PASS", "PASS_TO_PASS"):
        made[column] = test_ids(row, number, source, column)
    return made


def swe_gym(row: Row, number: int) -> dict[str, Any]:
    made = _bench_columns(row, number, "swe-gym")
    files = test_files([*made["FAIL_TO_PASS"], *made["PASS_TO_PASS"]], made["test_patch"])
    name = made["instance_id"].replace("__", "_s_").lower()
    made["image"] = row.get("image") or f"xingyaoww/sweb.eval.x86_64.{name}:latest"
    made["eval_script"] = row.get("eval_script") or eval_script(PYTEST, files)
    made["log_parser"] = "parse_log_pytest"
    return made


def swe_rebench(row: Row, number: int) -> dict[str, Any]:
    source = "swe-rebench"
    made = _bench_columns(row, number, source)
    config = decoded(row, number, source, "install_config") or {}
    if not isinstance(config, Mapping):
        raise TaskError(f"{source}, row {number + 1}: column install_config is no object")
    command = config.get("test_cmd") or PYTEST
    command = command if isinstance(command, str) else " && ".join(map(str, command))
    name = made["instance_id"].replace("__", "_1776_").lower()
    made["image"] = row.get("docker_image") or row.get("image_name") or f"swerebench/sweb.eval.x86_64.{name}:latest"
    files = test_files([*made["FAIL_TO_PASS"], *made["PASS_TO_PASS"]], made["test_patch"])
    made["eval_script"] = eval_script(command, files)
    made["log_parser"] = str(config.get("log_parser") or "parse_log_pytest")
    return made


SETS = (
    TaskSet("swe-gym", "SWE-Gym/SWE-Gym", "swe", ("train",), swe_gym, "MIT", "2,438"),
    TaskSet("swe-gym-lite", "SWE-Gym/SWE-Gym-Lite", "swe", ("train",), swe_gym, "MIT", "230"),
    TaskSet(
        "swe-rebench", "nebius/SWE-rebench", "swe", ("test", "filtered"), swe_rebench, "CC-BY-4.0", "21,336 and 6,542"
    ),
)
