"""Configuration that changes nothing that is judged is no reason not to pay; all that cannot be proven so is one."""

from __future__ import annotations

import pytest

from envs.swe import read_row
from envs.swe.guard import Judged, decisive, patch_findings
from tests.envs.swe_support import tiny_task

BASE = frozenset({"shop/cart.py", "tests/test_old.py"})
MARKERS = ("[pytest]", "markers =", "    slow: takes long", "    network: needs one", "# none is judged", "")


def new(path: str, *lines: str, mode: str = "100644") -> bytes:
    body = "".join(f"+{line}\n" for line in lines)
    head = f"diff --git a/{path} b/{path}\nnew file mode {mode}\n--- /dev/null\n+++ b/{path}\n"
    return f"{head}@@ -0,0 +1,{len(lines)} @@\n{body}".encode()


def refused(patch: bytes, base: frozenset[str] = BASE) -> bool:
    found = patch_findings(Judged(read_row(tiny_task()), base), patch)
    assert found  # it is shown in any case
    return bool(decisive(found))


def test_a_new_pytest_ini_that_only_names_markers_is_paid() -> None:
    assert not refused(new("pytest.ini", *MARKERS))
    assert not refused(new("pytest.ini", "[pytest]", "minversion = 7.0", "markers = slow: takes long"))


@pytest.mark.parametrize(
    "patch",
    [
        new("pytest.ini", *MARKERS, "addopts = -p helper"),
        new("pytest.ini", *MARKERS, "filterwarnings = ignore"),
        new("pytest.ini", "[pytest]", "markers =", "    slow: x\x0baddopts = -p helper"),
        new("pytest.ini", "[pytest]", "markers =", "    slow: x\u2028addopts = -p helper"),
        new("pytest.ini", *MARKERS, "[tool:pytest]"),
        new("pytest.ini", "target", mode="120000"),
        new("tests/pytest.ini", *MARKERS),
        new("pytest.toml", "[pytest]", 'markers = ["slow"]'),
    ],
)
def test_anything_else_is_not(patch: bytes) -> None:
    assert refused(patch)


@pytest.mark.parametrize("path", ["pyproject.toml", "setup.cfg", "tox.ini", "tests/pytest.ini"])
def test_one_that_could_switch_another_off_is_not(path: str) -> None:
    assert refused(new("pytest.ini", *MARKERS), BASE | {path})


def test_nothing_is_proven_where_the_base_is_not_known() -> None:
    assert refused(new("pytest.ini", *MARKERS), frozenset())
