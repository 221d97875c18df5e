"""Shared fixtures. Tests marked `docker` need an engine and the base image: without them they are skipped with the
reason, and with SAO_REQUIRE_DOCKER=1 they fail instead, so that CI cannot pass without having run them."""

from __future__ import annotations

import os
from functools import cache

import pytest

BASE_IMAGE = "sao-base:latest"


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
