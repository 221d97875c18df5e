"""Git's view of known contents, made in Python: loose objects and index files for a scratch git folder.

Promises: what git reads from them is what `hash-object`, `read-tree` and `update-index` would have written, without
starting any of the three; only the driver's own bytes are in the scratch folder, which borrows base_commit's objects
from the repository beside it; a path that git could not hold is refused here.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping

from data.gitobjects import index_file
from envs.swe.git import RAW_ATTRIBUTES
from envs.swe.worktree import Content, Entry, Unreadable

_NEW_FILE = re.compile(
    rb"diff --git a/(?P<path>[A-Za-z0-9_.+/-]+) b/(?P=path)\nnew file mode (?P<mode>100644|100755)\n"
    rb"(?:index 0+\.\.[0-9a-f]+\n)?--- /dev/null\n\+\+\+ b/(?P=path)\n@@ -0,0 \+1(?:,(?P<count>\d+))? @@\n"
    rb"(?P<body>(?:\+[^\n]*\n)+)(?P<cut>\\ No newline at end of file\n)?"
)


def git_folder(repo_dir: str, base_commit: str, contents: Iterable[Content]) -> dict[str, bytes]:
    """Files of a git folder that has `contents` as objects and borrows the rest from the repository at `repo_dir`."""
    sha256 = len(base_commit) == 64
    version, extension = (1, "[extensions]\n\tobjectFormat = sha256\n") if sha256 else (0, "")
    files = {
        "HEAD": b"ref: refs/heads/base\n",
        "refs/heads/base": f"{base_commit}\n".encode(),
        "config": f"[core]\n\trepositoryformatversion = {version}\n\tbare = false\n{extension}".encode(),
        "info/attributes": RAW_ATTRIBUTES.encode(),
        "objects/info/alternates": f"{repo_dir}/.git/objects\n".encode(),
    }
    for content in contents:
        name = content.object_id(base_commit)
        files[f"objects/{name[:2]}/{name[2:]}"] = zlib.compress(b"blob %d\0" % len(content.data) + content.data, 0)
    return files


def index_of(
    base: Mapping[bytes, Entry], written: Mapping[bytes, Content], gone: frozenset[bytes], base_commit: str
) -> bytes:
    """Index file of base's tree with `written` and without `gone`."""
    entries = {path: (entry.mode, entry.object_id) for path, entry in base.items() if path not in gone}
    for path, content in written.items():
        entries[_checked(path)] = (content.mode, content.object_id(base_commit))
    return index_file((path, int(mode, 8), bytes.fromhex(name), 0, 0) for path, (mode, name) in entries.items())


def _checked(path: bytes) -> bytes:
    if any(part in (b"", b".", b"..") or part.lower() == b".git" for part in path.split(b"/")):
        raise Unreadable(f"the agent's sandbox names a file that git cannot hold: {path.decode('utf-8', 'replace')!r}")
    return path


def displaced(written: Mapping[bytes, Content], paths: Mapping[bytes, object]) -> frozenset[bytes]:
    """Those of `paths` that cannot stay beside `written`: parents that were files, children of what became a file."""
    parents = {path[:i] for path in written for i in slashes(path)}
    return frozenset(
        path
        for path in paths
        if path not in written and (path in parents or any(path[:i] in written for i in slashes(path)))
    )


def slashes(path: bytes) -> list[int]:
    return [i for i, byte in enumerate(path) if byte == 0x2F]


def plain_new_files(patch: bytes, base: Mapping[bytes, Entry]) -> dict[bytes, Content] | None:
    """What a patch writes that does nothing but add text files; None for any other patch, which is git's to apply."""
    found: dict[bytes, Content] = {}
    at = 0
    while at < len(patch):
        match = _NEW_FILE.match(patch, at)
        if match is None or match["path"] in found:
            return None
        lines = match["body"].split(b"\n")[:-1]
        if len(lines) != int(match["count"] or 1):
            return None
        data = b"\n".join(line[1:] for line in lines) + (b"" if match["cut"] else b"\n")
        found[match["path"]] = Content(match["mode"].decode(), data)
        at = match.end()
    safe = all(
        part not in (b"", b".", b"..") and part.lower() != b".git" for path in found for part in path.split(b"/")
    )
    nested = any(path[:i] in found for path in found for i in slashes(path))
    clash = nested or any(path in base for path in found) or displaced(found, base)
    return found if safe and not clash else None
