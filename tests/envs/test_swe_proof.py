"""The proof of a made repository's hygiene takes the real thing and nothing else."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pytest

from data.gitobjects import object_id, repository_tar
from data.tarball import Member, pack, unpack
from envs.environment import EnvironmentFault
from envs.swe.proof import prove

FILES = {"shop/cart.py": "x = 1\n", "shop/deep/er.py": "y = 2\n", "notes.txt": "", ".gitignore": "*.log\n"}
MADE = repository_tar(FILES)


def loose(kind: str, body: bytes) -> Member:
    name = object_id(kind, body)
    payload = zlib.compress(f"{kind} {len(body)}\0".encode() + body)
    return Member(f".git/objects/{name[:2]}/{name[2:]}".encode(), payload)


def test_what_we_make_passes() -> None:
    prove(MADE.archive, MADE.commit, "task t")


def replaced(name: bytes, data: bytes) -> Callable[[list[Member]], list[Member]]:
    return lambda members: [member._replace(data=data) if member.name == name else member for member in members]


def added(*more: Member) -> Callable[[list[Member]], list[Member]]:
    return lambda members: [*members, *more]


SECRET = b"the fix\n"
CHANGES: dict[str, Callable[[list[Member]], list[Member]]] = {
    "a blob nobody reaches": added(loose("blob", SECRET)),
    "a commit nobody reaches": added(loose("commit", b"tree " + b"1" * 40 + b"\nauthor a\n\nx")),
    "another branch": added(Member(b".git/refs/heads/fix", b"1" * 40 + b"\n")),
    "a tag": added(Member(b".git/refs/tags/v1", MADE.commit.encode() + b"\n")),
    "packed refs": added(Member(b".git/packed-refs", MADE.commit.encode() + b" refs/heads/x\n")),
    "a reflog": added(Member(b".git/logs/HEAD", b"x")),
    "ORIG_HEAD": added(Member(b".git/ORIG_HEAD", MADE.commit.encode() + b"\n")),
    "alternates": added(Member(b".git/objects/info/alternates", b"/elsewhere\n")),
    "a pack": added(Member(b".git/objects/pack/pack-1.pack", b"PACK")),
    "a hook": added(Member(b".git/hooks/post-checkout", b"#!/bin/sh\n", 0o755)),
    "a worktree": added(Member(b".git/worktrees/w/HEAD", MADE.commit.encode())),
    "a remote": replaced(b".git/config", b'[core]\n\tbare = false\n[remote "o"]\n\turl = x\n'),
    "a command in the configuration": replaced(b".git/config", b"[core]\n\tfsmonitor = touch /tmp/x\n"),
    "another HEAD": replaced(b".git/HEAD", b"ref: refs/heads/fix\n"),
    "a detached HEAD": replaced(b".git/HEAD", MADE.commit.encode() + b"\n"),
    "main elsewhere": replaced(b".git/refs/heads/main", b"1" * 40 + b"\n"),
    "a file that is not base_commit's": replaced(b"shop/cart.py", b"x = 2\n"),
    "a file more": added(Member(b"more.txt", SECRET)),
    "a file less": lambda members: [member for member in members if member.name != b"notes.txt"],
    "a second .git": added(Member(b".GIT/config", b"")),
    "an object less": lambda members: [m for m in members if not m.name.endswith(loose("blob", b"x = 1\n").name[-38:])],
    "an object with other contents": lambda members: [
        m._replace(data=loose("blob", SECRET).data) if m.name == loose("blob", b"x = 1\n").name else m for m in members
    ],
}


@pytest.mark.parametrize("change", CHANGES)
def test_anything_else_is_a_fault(change: str) -> None:
    archive = pack(CHANGES[change](list(unpack(MADE.archive))))
    with pytest.raises(EnvironmentFault, match="task t: hygiene"):
        prove(archive, MADE.commit, "task t")


def test_another_commit_is_a_fault() -> None:
    with pytest.raises(EnvironmentFault, match="hygiene"):
        prove(MADE.archive, "1" * 40, "task t")
    with pytest.raises(EnvironmentFault, match="hygiene"):
        prove(b"not an archive", MADE.commit, "task t")
