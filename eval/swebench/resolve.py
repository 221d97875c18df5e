"""Resolved or not, from a report's test lists. The package's rule, without the package.

Every FAIL_TO_PASS and every PASS_TO_PASS test must be in its success list; a test that is in neither list failed; no
FAIL_TO_PASS test at all is never resolved. On reports without a finding of kind "test lists" this is the package's
flag.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

COLUMNS = ("FAIL_TO_PASS", "PASS_TO_PASS")


def resolves(
    tests_status: Mapping[str, Any] | None,
    fail_to_pass: Sequence[str] | None = None,
    pass_to_pass: Sequence[str] | None = None,
) -> bool:
    """`tests_status` of a report.json (None: no test results). Without the row's lists, the report's own are taken."""
    if not tests_status:
        return False
    for column, wanted in zip(COLUMNS, (fail_to_pass, pass_to_pass), strict=True):
        lists = tests_status.get(column) or {}
        success, failure = set(lists.get("success", ())), set(lists.get("failure", ()))
        names = success | failure if wanted is None else set(wanted)
        if failure or not names <= success or (column == "FAIL_TO_PASS" and not names):
            return False
    return True
