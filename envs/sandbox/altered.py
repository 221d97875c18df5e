"""Which files `Sandbox.altered` is asked about, where an engine tells all that changed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def looked_at(changed: Iterable[str], rules: Sequence[str]) -> tuple[str, ...]:
    """Of an engine's list of changed paths, folders among them, the files that `rules` mean (see the contract)."""
    paths = set(changed)
    folders = {path[:at] for path in paths for at in range(len(path)) if path[at] == "/"}
    skipped = {rule[1:] for rule in rules if rule[0] == "-"}
    wanted = [(rule[0], _pattern(rule[1:])) for rule in rules if rule[0] != "-"]

    def asked(path: str) -> bool:
        for kind, pattern in wanted:
            if match := pattern.match(path):
                *between, _ = path[match.end() :].split("/")
                if not between or (kind == "R" and not skipped.intersection(between)):
                    return True
        return False

    return tuple(sorted(path for path in paths - folders if asked(path)))


def _pattern(folder: str) -> re.Pattern[str]:
    parts = [re.escape(part).replace(r"\*", "[^/]*") for part in folder.strip("/").split("/")]
    return re.compile("/" + "/".join(f"(?!\\.){part}" if part.startswith("[^/]*") else part for part in parts) + "/")
