"""Attacks on the graders: one table, which the tests of both graders and the benchmark use."""

from __future__ import annotations

from benchmarks.attacks import (
    adaptive,
    agents,
    beyond,
    compiled,
    config,
    during,
    honest,
    images,
    neuters,
    neuters_pytest,
    neuters_unittest,
    outcomes,
    reports,
    shadows,
    shadows_library,
)
from benchmarks.attacks.site import Attack, Site

_MODULES = (reports, outcomes, neuters_unittest, neuters_pytest, neuters, shadows, shadows_library, compiled, config)
ATTACKS: tuple[Attack, ...] = tuple(
    each for module in (*_MODULES, during, images, adaptive, agents, beyond, honest) for each in module.TABLE.attacks
)


def attack(name: str) -> Attack:
    """The one of this name."""
    [found] = [each for each in ATTACKS if each.name == name]
    return found


__all__ = ["ATTACKS", "Attack", "Site", "attack"]
