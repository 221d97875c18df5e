"""The list that `validate` writes: rows that cannot be used, and rows whose tests need a network."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from data.reading import read_json, user_path
from eval.errors import EvalError


@dataclass(frozen=True)
class SkipList:
    skip: frozenset[str]
    need_network: frozenset[str]
    checked_with_network: frozenset[str]
    """Those that had one when they were checked: if they failed, the network was not what they lacked."""
    good: Mapping[str, str]
    """Rows that told right from wrong -> their digest then; a row that changed since is not checked."""

    def left_out(self, networked: Set[str]) -> frozenset[str]:
        """What is not to run when the rows `networked` have a network: a row that failed for want of it may."""
        return self.skip - (self.need_network & networked - self.checked_with_network)


def read_skip_list(path: str) -> SkipList:
    """Raises EvalError."""
    try:
        value = read_json(user_path(path))
        with_network = value.get("checked_with_network", ())
        good = {str(name): str(digest) for name, digest in value.get("good", {}).items()}
        return SkipList(frozenset(value["skip"]), frozenset(value["need_network"]), frozenset(with_network), good)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise EvalError(f"{path} is no skip list of `sao eval swebench validate`: {error}") from error
