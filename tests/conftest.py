"""Shared fixtures. Tests marked `docker` need an engine and the base image: without them they are skipped with the
reason, and with SAO_REQUIRE_DOCKER=1 they fail instead, so that CI cannot pass without having run them."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from data.task import Task
    from envs.sandbox import SandboxBackend

BASE_IMAGE = "sao-base:latest"
REAL_CACHE = Path(os.environ.get("SAO_CACHE") or Path(__file__).parents[1] / "build" / "cache")
"""Archives of real projects and wheels, kept between runs."""


@cache
def docker_missing() -> str:
    """Why docker tests cannot run here; empty when they can."""
    from envs.sandbox.contract import BackendUnavailable
    from envs.sandbox.docker_engine import connect

    try:
        with connect() as engine:
            has_image = bool(engine.api().images(name=BASE_IMAGE))
    except BackendUnavailable as error:
        return str(error)
    return "" if has_image else f"no image {BASE_IMAGE}: run scripts/base-image.sh"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("docker") is None:
        return
    if reason := docker_missing():
        if os.environ.get("SAO_REQUIRE_DOCKER") == "1":
            pytest.fail(f"SAO_REQUIRE_DOCKER=1, but {reason}", pytrace=False)
        pytest.skip(f"DOCKER TEST NOT RUN: {reason}")


@pytest.fixture(scope="session")
def real_rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows file of a real project: more-itertools with one fix taken back. Needs the package index once."""
    from data.real_task import DownloadFailed, real_tasks
    from envs.swe.real import make_real_task
    from tests.envs.swe_support import run

    rows = tmp_path_factory.mktemp("real") / "rows.jsonl"
    real = real_tasks()["more-itertools-last"]

    async def make(backend: SandboxBackend) -> None:
        task, lists = await make_real_task(real, rows, REAL_CACHE, backend)
        assert task.row["base_commit"] == "384ac5c789c4a1c6ae7ac84f88aea4bcb05740e6"  # the same on every machine
        assert lists.fail_to_pass == ("tests.test_more.LastTests.test_reversed_is_none",)
        assert len(lists.pass_to_pass) == 14

    try:
        run(make)
    except DownloadFailed as error:
        pytest.skip(f"REAL TASK NOT RUN: {error}")
    return rows


@pytest.fixture
def real(real_rows: Path) -> Task:
    from data.loaders import load_tasks

    return load_tasks("real", "test", real_rows)[0]
