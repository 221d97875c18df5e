"""micro-SWE: procedurally generated tiny git repositories, each with one wrong line that its docstring gives away.

Promises:
* `task(split, index)` is a pure function: same text, same commit id, everywhere, without making the tasks before it;
* rows have SWE-bench's columns plus `files`; both patches apply to `base_commit` with git;
* the issue names file and function only; which of `bug_site(task).candidates` is right stands in the file alone, and
  without reading the hint there no candidate is likelier than another;
* train, heldout and unseen share words but no program template, docstring phrasing, file layout or bug place.
"""

from __future__ import annotations

from data.micro_swe.rates import ConstantRates, constant_policy_rates
from data.micro_swe.rows import NAME, SPLIT_SIZES, BugSite, bug_site, load, task, task_by_id

__all__ = [
    "NAME",
    "SPLIT_SIZES",
    "BugSite",
    "ConstantRates",
    "bug_site",
    "constant_policy_rates",
    "load",
    "task",
    "task_by_id",
]
