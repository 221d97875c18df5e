"""Which bytes the row's own tests will have once its script has put them in place, asked of git before a patch is on.

The script of a SWE-bench row takes the test files from base_commit and applies the test patch, after it has installed
the project; code of the patch may run by then. What base_commit and test patch make is known before.
"""

from __future__ import annotations

import re

SCRIPT = """
( cd "$D" && [ -s "$W/test.patch" ] || exit
export GIT_INDEX_FILE="$W/expected.index"
git read-tree "$B" && git apply --cached --whitespace=nowarn "$W/test.patch" || exit
git diff-index --cached --raw --no-renames --diff-filter=d "$B" --
git diff-index --cached --name-only --no-renames --diff-filter=d "$B" -- |
  git check-attr --stdin eol ident filter working-tree-encoding ) 2>/dev/null
echo "end of expected"
"""
"""$D repository, $W scratch folder with test.patch, $B base commit."""
_END = "end of expected\n"
_RAW = re.compile(r"^:\d+ \d+ [0-9a-f]+ ([0-9a-f]{40}|[0-9a-f]{64}) [A-Z]\d*\t(\S.*)$", re.MULTILINE)
_PLAIN = ("unspecified", "unset")
_EDITED = re.compile(r"\bsed\b[^\n]* -i[^\n]*\.py|\b(?:2to3|futurize|black)\b")


def taken_out(output: str) -> tuple[dict[str, str], str]:
    """(path -> git's blob id, the rest) of what SCRIPT and a script after it printed. Paths whose bytes on the disk
    are not the blob's (line ends, filters) are left out."""
    listing, end, rest = output.partition(_END)
    if not end:
        return {}, output
    turned = {
        path
        for line in listing.splitlines()
        if (found := re.fullmatch(r"(.+): [\w-]+: (\S+)", line)) and found[2] not in _PLAIN
        for path in (found[1],)
    }
    found_ids = {path: name for name, path in _RAW.findall(listing) if path.endswith(".py") and len(name) == 40}
    return {path: name for path, name in found_ids.items() if path not in turned}, rest


def as_the_patch_makes_them(script: str) -> bool:
    """The script puts the tests in place with git, and edits none of them afterwards."""
    return "git apply" in script and _EDITED.search(script) is None
