"""Which files hold the judged tests, and whose names belong to the repository itself."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property

from envs.swe.guard.changes import FileChange, changed_files
from envs.swe.row import SweRow

_TEST_PATH = re.compile(
    r"(?:^|/)(?:tests?|testing|r2e_tests|test-data)/|(?:^|/)(?:test_[^/]*|[^/]*_tests?|tests?)\.py$"
)
_KIN = re.compile(r"(?:^|/)(?:_?pytest[^/]*|pluggy|xdist|unittest2?|nose[^/]*|doctest\.py)(?:/|$)")
_SHOWN = re.compile(r"\(([\w.]+)\)$")


@dataclass(frozen=True)
class Judged:
    """What the guard knows of a row."""

    row: SweRow
    base: Collection[str] = ()
    """Paths of base_commit, where they are known."""

    @cached_property
    def test_changes(self) -> tuple[FileChange, ...]:
        return tuple(changed_files(self.row.test_patch))

    @cached_property
    def reset(self) -> frozenset[str]:
        """Files that stand as the row has them when the tests run, whatever the patch did."""
        own = {path for change in self.test_changes for path in change.paths}
        return frozenset({*own, *self.row.hidden_targets})

    @cached_property
    def gold(self) -> frozenset[str]:
        """Files that the reference fix changes."""
        return frozenset(path for change in changed_files(self.row.patch) for path in change.paths)

    @cached_property
    def files(self) -> frozenset[str]:
        """Files whose tests are judged, as the ids name them; of dotted ids those that are known to exist."""
        found = {path for path in self.reset if path.endswith(".py")}
        for name in (*self.row.fail_to_pass, *self.row.pass_to_pass):
            if (path := self.file_of(name)) is not None:
                found.add(path)
        return frozenset(found)

    @cached_property
    def _known(self) -> dict[str, list[str]]:
        """Python files by their last name."""
        found: dict[str, list[str]] = {}
        for path in sorted({*self.base, *self.reset}):
            if path.endswith(".py"):
                found.setdefault(path.rpartition("/")[2], []).append(path)
        return found

    def file_of(self, name: str) -> str | None:
        """The file of a test id: `a/b.py::test`, `a.b.Class.test`, `test (a.b.Class)`."""
        if "::" in name:
            path = posixpath.normpath(name.split("::", 1)[0])
            return path if path.endswith(".py") else None
        shown = _SHOWN.search(name)
        parts = (shown[1] if shown else name).split(".")
        for length in range(len(parts), 0, -1):
            path = "/".join(parts[:length]) + ".py"
            near = [each for each in self._known.get(f"{parts[length - 1]}.py", ()) if f"/{each}".endswith("/" + path)]
            if near:
                return path if path in near else near[0]
        return None

    @cached_property
    def hidden(self) -> frozenset[str]:
        """Files of the test patch."""
        return frozenset(test.new or test.old or "" for test in self.test_changes)

    @cached_property
    def added(self) -> frozenset[str]:
        return frozenset(test.new for test in self.test_changes if test.old is None and test.new)

    @cached_property
    def targets(self) -> frozenset[str]:
        return frozenset(self.row.hidden_targets)

    @cached_property
    def places(self) -> frozenset[str]:
        """Judged files and all others that the row puts in place."""
        return self.files | self.reset

    @cached_property
    def stems(self) -> frozenset[str]:
        """Judged modules as a path without its ending."""
        return frozenset(path.removesuffix(".py") for path in self.places if path.endswith(".py"))

    @cached_property
    def folders(self) -> frozenset[str]:
        """Folders that judged files lie in."""
        found = set()
        for path in self.places:
            parts = path.split("/")
            found |= {"/".join(parts[:length]) for length in range(1, len(parts))}
        return frozenset(found)

    @cached_property
    def settled(self) -> frozenset[str]:
        """Judged files that are only tests: in training they stand as the row has them. A product's own file with tests
        in it is the agent's to change."""
        return frozenset(path for path in self.files if path not in self.gold and _TEST_PATH.search(path))

    def kin(self, changes: Iterable[FileChange]) -> bool:
        """The repository is a test framework, or a plugin of one: its own names are no attack. Known by files that
        stand at base_commit: those that the patches change in place."""
        if self._kin_at_base:
            return True
        known = (*changes, *self.test_changes, *changed_files(self.row.patch))
        return not self.base and any(each.old and not each.created and _KIN.search(each.old) for each in known)

    @cached_property
    def _kin_at_base(self) -> bool:
        return any(_KIN.search(path) for path in self.base)


def is_test(path: str) -> bool:
    return _TEST_PATH.search(path) is not None


def test_module(path: str) -> bool:
    """A file that runners take for a test module by its own name."""
    return re.search(r"(?:^|/)(?:test_[^/]*|[^/]*_tests?|tests?)\.py$", path) is not None
