"""The user's git repository, read for packing: whatever kind of clone it is, it works or one line says what to do.

Promises: the repository is only read (nothing is fetched into it); no configuration, hook, replacement or GIT_*
variable of the user has a say; it may belong to another user, be bare, a linked work tree, a submodule or use sha256.
A clone that lacks a part of base's history or of the fix is refused with the command that completes it.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from data.task import TaskError

_CONFIG = {"safe.directory": "*", "core.hooksPath": os.devnull}
_ENV = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "LC_ALL": "C",
    "GIT_CONFIG_COUNT": str(len(_CONFIG)),
    **{f"GIT_CONFIG_KEY_{i}": key for i, key in enumerate(_CONFIG)},
    **{f"GIT_CONFIG_VALUE_{i}": value for i, value in enumerate(_CONFIG.values())},
}


def git(
    repo: Path, *arguments: str, env: Mapping[str, str] | None = None, given: bytes | None = None, why: str = ""
) -> str:
    """git's output; bytes that are not UTF-8 become lone surrogates. Raises TaskError, with `why` for people."""
    return _git(repo, *arguments, env=env, given=given, why=why).decode("utf-8", "surrogateescape")


def top_of(repo: Path) -> Path:
    """The repository's top folder (its git folder where it is bare). Raises TaskError where there is none."""
    if not repo.is_dir():
        raise TaskError(f"{repo}: is no folder; name the folder of a git repository")
    why = "is no git repository that can be read"
    bare = git(repo, "rev-parse", "--is-bare-repository", why=why).strip() == "true"
    return Path(git(repo, "rev-parse", "--absolute-git-dir" if bare else "--show-toplevel", why=why).rstrip("\n"))


def commit_of(repo: Path, revision: str, why: str) -> str:
    """Full id of the commit that `revision` names. Raises TaskError."""
    if _is_shallow(repo):
        why += f". The clone is shallow, older commits are not in it: {_unshallow(repo)}"
    return git(repo, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}", why=why).strip()


def require_complete(repo: Path, base: str, fix: str | None) -> None:
    """Raises TaskError where base's history, or what the commit `fix` holds, is not wholly in this clone."""
    if _is_shallow(repo):
        cut = set((_folder(repo, "shallow")).read_text().split())
        if cut & set(git(repo, "rev-list", base).split()):
            raise TaskError(f"{repo}: is a shallow clone, the history of {base[:10]} is cut: {_unshallow(repo)}")
    settings = [setting.partition("\n")[0] for setting in git(repo, "config", "--list", "-z").split("\0")]
    remotes = [name[7:-9] for name in settings if name.startswith("remote.") and name.endswith(".promisor")]
    if not remotes and "extensions.partialclone" not in settings:
        return
    wanted = [base, *([fix] if fix else [])]
    listed = git(repo, "rev-list", "--objects", "--missing=print", *wanted)
    if missing := len(re.findall(r"^\?", listed, re.MULTILINE)):
        name = remotes[0] if remotes else "origin"
        raise TaskError(
            f"{repo}: is a partial clone, {missing} or more objects of its history are not in it: "
            f"git -C {shlex.quote(str(repo))} fetch --refetch --no-filter {shlex.quote(name)}, then pack again"
        )


def submodules_of(repo: Path, commit: str) -> list[str]:
    """Paths of the submodules that `commit` records."""
    listed = git(repo, "ls-tree", "-r", "-z", "--full-tree", commit).split("\0")
    return [record.partition("\t")[2] for record in listed if record.startswith("160000 ")]


def bundle(repo: Path, base: str, path: Path) -> None:
    """Write a bundle with branch main at `base`, with its history and nothing newer. Replaces `path` atomically.

    The objects come by `pack-objects` and not by `fetch`: a fetch from a folder starts git anew there, without our
    configuration, and that git refuses what belongs to another user."""
    packed = _git(repo, "pack-objects", "--revs", "--stdout", "-q", given=f"{base}\n".encode())
    with tempfile.TemporaryDirectory(prefix="sao-pack-") as folder:
        bare = Path(folder) / "bare.git"
        form = "sha256" if len(base) == 64 else "sha1"
        git(Path(folder), "init", "-q", "--bare", "--template=", f"--object-format={form}", str(bare))
        git(bare, "index-pack", "--stdin", given=packed)
        git(bare, "update-ref", "refs/heads/main", base)
        made = Path(folder) / "made.bundle"
        git(bare, "bundle", "create", "-q", str(made), "refs/heads/main")
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        partial.write_bytes(made.read_bytes())
        partial.replace(path)


def borrowed(repo: Path) -> str:
    """GIT_ALTERNATE_OBJECT_DIRECTORIES for a git that reads this repository's objects and writes elsewhere."""
    path = str(_folder(repo, "objects")).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{path}"'  # quoted, since a colon would part two paths


def _is_shallow(repo: Path) -> bool:
    return git(repo, "rev-parse", "--is-shallow-repository").strip() == "true"


def _unshallow(repo: Path) -> str:
    return f"git -C {shlex.quote(str(repo))} fetch --unshallow --tags, then pack again"


def _folder(repo: Path, name: str) -> Path:
    """Where git keeps `name` of this repository, which need not be below its own .git."""
    return (repo / git(repo, "rev-parse", "--git-path", name).rstrip("\n")).resolve()


def _git(
    repo: Path, *arguments: str, env: Mapping[str, str] | None = None, given: bytes | None = None, why: str = ""
) -> bytes:
    command = ["git", "-C", str(repo), *arguments]
    # A GIT_DIR or GIT_INDEX_FILE of the user's (inside a hook, say) would name another repository.
    around = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(
        command,
        capture_output=True,
        env={**around, **_ENV, **(env or {})},
        check=False,
        input=given or b"",
    )
    if done.returncode != 0:
        message = done.stderr.decode("utf-8", "replace").strip()
        raise TaskError(
            f"{repo}: {why or 'git ' + ' '.join(arguments[:3]) + ' failed'}{': ' + message if message else ''}"
        )
    return done.stdout
