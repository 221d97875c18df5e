"""The guard of a verdict, one for training and evaluation: `examine` says what does not fit together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from envs.swe.guard.changes import FileChange, changed_files
from envs.swe.guard.findings import Finding, Hole, decisive
from envs.swe.guard.judged import Judged
from envs.swe.guard.log import COUNTS, Told, claim_findings, list_findings, log_findings
from envs.swe.guard.outside import look
from envs.swe.guard.patch import patch_findings
from envs.swe.guard.run import run_findings
from envs.swe.guard.watch import Noted, Watch, can_watch, can_watch_script, may_watch, starts_others

__all__ = [
    "FileChange",
    "Finding",
    "Hole",
    "Judged",
    "Noted",
    "Told",
    "Watch",
    "can_watch",
    "can_watch_script",
    "changed_files",
    "decisive",
    "examine",
    "in_the_run",
    "installs",
    "list_findings",
    "look",
    "may_watch",
    "patch_findings",
    "starts_others",
]


_INSTALLS = re.compile(r"\bpip3? install|setup\.py|\bmake\b|\bbuild\b|\btox\b|\bconda\b.*\binstall\b")


def installs(eval_script: str) -> bool:
    """It may run code of the repository before the tests' runner starts."""
    return _INSTALLS.search(eval_script) is not None


def in_the_run(found: Iterable[Finding], judged: Judged, noted: Noted) -> list[Finding]:
    """Without what is about code that the watched run did not load: scripts that an agent left, helpers that no judged
    test uses. Where the script installs the project first, code may have run before anybody watched."""
    if not noted.whole:
        return list(found)
    earlier = installs(judged.row.eval_script)
    loaded = {str(path) for end in noted.ends for path in end.get("loaded", ())}
    return [each for each in found if not each.file or each.file in loaded or (earlier and not each.alone)]


def examine(
    judged: Judged, patch: bytes, statuses: Mapping[str, str], *, told: Told | None, noted: Noted, sure: bool
) -> list[Finding]:
    """What the run says, beside what the patch says by itself (`patch_findings`). `statuses`: test id -> outcome as the
    log was read; `told` None: the log was read by a parser that holds its lines against each other itself."""
    row = judged.row
    names = (*row.fail_to_pass, *row.pass_to_pass, *(row.expected or ()))
    claimed = {name: str(statuses[name]) for name in names if statuses.get(name) in COUNTS}
    found = claim_findings(row.fail_to_pass, statuses)
    found += log_findings(judged, told, statuses) if told is not None else []
    return found + run_findings(judged, noted, changed_files(patch), claimed, sure=sure)
