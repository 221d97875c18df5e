"""The driver's diff against an agent that does its worst to modes, links, names, submodules and tools: the fix is
found, or the episode is graded 0 with the reason; it never becomes a fault of ours."""

from __future__ import annotations

import asyncio
import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data.task import Task
from envs.environment import EnvironmentFault
from envs.sandbox.contract import Sandbox, SandboxBackend, SandboxSpec
from envs.sandbox.docker_backend import DockerBackend
from envs.swe import SweLimits, read_row, worktree
from envs.swe.diff import Bench, make_diff
from envs.swe.repository import provide, record
from envs.swe.worktree import collect
from tests.envs.swe_support import FILES, apply_patch_elsewhere, embedded, episode, run, shell, tiny_task, tree_of
from tests.envs.test_swe_diff import FIX, FIXED, changed
from tests.envs.test_swe_repository import git, tar_of

SURVIVED = {
    "the folder has no rights": "chmod 000 /testbed",
    "no folder has any rights": "find . -depth -type d ! -path './.git*' -exec chmod 000 {} \\;",
    "no file has any rights": "find . -type f -exec chmod 000 {} +",
    "the folder is elsewhere, behind a link": "mkdir /tmp/e && cp -a /testbed/. /tmp/e && rm -rf /testbed/.git "
    "/testbed/shop && ln -s /tmp/e/shop /testbed/x && mv /tmp/e/shop /testbed/shop && rm x",
    "odd modes": "chmod 4700 notes.txt && chmod 1777 shop && chmod g-rwx,o-rwx shop/cart.py && chmod 0644 notes.txt",
    "git's own folder in other spellings": "mkdir .GIT shop/.Git && echo a | tee .GIT/config >shop/.Git/x",
    "a git folder as a link": "rm -rf .git && ln -s /etc .git",
    "a git folder without rights": "chmod -R 000 .git",
    "bare and redirected": "git config core.bare true && git config core.worktree /tmp && git config extensions.x y",
    "nested repositories, submodules by hand": "git init -q sub && git -C sub -c user.name=a -c user.email=a "
    "commit -q --allow-empty -m x && git add sub && echo '[submodule \"sub\"]' >.git/modules",
    "alternates, shallow, grafts, replacements": "echo /nowhere >.git/objects/info/alternates; echo x >.git/shallow; "
    "echo x >.git/info/grafts; mkdir -p .git/refs/replace; echo y >.git/refs/replace/z",
    "pipes and sockets": "mkfifo pipe && python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"s\")'",
    "links in a circle": "ln -s b a && ln -s a b && ln -s . c && rm a b c",
    "a running writer": "(while :; do date >/tmp/noise; sleep 0.01; done >/dev/null 2>&1 &) ",
    "environment": "printf 'export GIT_DIR=/tmp GIT_INDEX_FILE=/tmp/x\\n' >~/.profile; echo '[alias' >~/.gitconfig",
}


@pytest.mark.parametrize("name", SURVIVED)
def test_the_fix_is_found_whatever_was_done(name: str) -> None:
    grade = episode(shell(f"{FIX} && {{ {SURVIVED[name]}; }}; true"))
    got = changed(grade)
    assert {path: got.get(path) for path in FIXED} == FIXED, grade.detail["reason"]
    assert set(got) <= {*FIXED, "sub/.git"}, got
    assert grade.reward == 1.0, grade.detail


def test_links_modes_and_kinds_that_trade_places() -> None:
    files = {"a.txt": "a\n", "d/b.txt": "b\n", "keep.txt": "k\n", "e.txt": "e\n"}
    script = f"""
    {FIX}
    rm a.txt; ln -s keep.txt a.txt              # a file becomes a link
    rm -r d; ln -s shop d                       # a folder becomes a link
    chmod 755 keep.txt
    mv notes.txt NOTES.TXT                      # only the case differs
    rm e.txt; mkfifo e.txt                      # gone, for git
    ln -s {"x" * 300}/y long; ln -s /etc/passwd abs; ln -s "$(printf 'a\\nb\\377')" odd
    ln -s ../../.. .gitmodules
    printf 'x' >"$(printf 'e\\314\\201')"; printf 'y' >"$(printf '\\303\\251')"   # one name in two normal forms
    mkdir -p '{"n" * 250}/{"m" * 250}'; echo deep >'{"n" * 250}/{"m" * 250}/f'
    """
    grade = episode(shell(script), tiny_task(files))
    assert grade.reward == 1.0, grade.detail
    assert grade.detail["ignored"] == [".gitmodules"]  # no git would apply a patch with it
    got = changed(grade, {**FILES, **files})
    assert got == {
        **FIXED,
        "a.txt": b"keep.txt",
        "d": b"shop",
        "d/b.txt": None,
        "notes.txt": None,
        "NOTES.TXT": b"one\ntwo\n",
        "e.txt": None,
        "long": b"x" * 300 + b"/y",
        "abs": b"/etc/passwd",
        "odd": b"a\nb\xff",
        "e\u0301": b"x",
        "\u00e9": b"y",
        f"{'n' * 250}/{'m' * 250}/f": b"deep\n",
    }
    assert b"diff --git a/keep.txt b/keep.txt\nold mode 100644\nnew mode 100755\n" in grade.patch


def test_everything_is_deleted() -> None:
    grade = episode(shell("rm -rf ./* .gitignore"))
    assert grade.reward == 0.0
    assert set(changed(grade).values()) == {None}
    assert set(changed(grade)) == set(FILES)


def test_a_path_too_long_for_any_system_call_is_a_graded_zero_or_left_out() -> None:
    deep = f"{FIX}; i=0; while [ $i -lt 30 ]; do mkdir {'d' * 200} && cd {'d' * 200}; i=$((i + 1)); done; echo x >f"
    grade = episode(shell(deep))
    assert grade.reward in (0.0, 1.0)
    assert grade.detail["reason"] or grade.reward == 1.0


@pytest.mark.docker
@pytest.mark.parametrize("tool", ["tar", "find"])
@pytest.mark.parametrize("what", ["sleep 600", "exit 0", "cat /dev/urandom"])
def test_replaced_tools_are_the_agents_doing(monkeypatch: pytest.MonkeyPatch, tool: str, what: str) -> None:
    """A graded result, never a fault of ours, or breaking the sandbox would pay."""
    monkeypatch.setattr(worktree, "COLLECT_TIMEOUT_S", 2.0)
    task = tiny_task({"large.txt": "line\n" * 150_000} if tool == "find" else None)  # large: read by a stat record
    script = f"printf '#!/bin/sh\\n{what}\\n' >/usr/local/sbin/{tool}; chmod +x /usr/local/sbin/{tool}"
    grade = episode(shell(f"{FIX}; {script}"), task, backend=DockerBackend("hostile"))
    assert grade.reward == 0.0
    assert grade.detail["reason"]


FORGED_TAR = """
import io, sys, tarfile
def member(name, data=b"x", link=None):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = (tarfile.SYMTYPE, link) if link is not None else (tarfile.REGTYPE, "")
    info.size = 0 if link is not None else len(data)
    archive.addfile(info, io.BytesIO(data))
with tarfile.open(fileobj=sys.stdout.buffer, mode="w|", format=tarfile.GNU_FORMAT) as archive:
    {members}
"""
FORGED = {
    "names that climb": "member('./../../etc/cron.d/x')",
    "absolute names": "member('/etc/passwd')",
    "names with dots": "member('a/./b')",
    "empty names between": "member('a//b')",
    "a file that is a folder": "member('a'), member('a/b')",
    "a name too long": "member('n' * 300)",
    "a path too long": "member('/'.join(['n' * 200] * 30))",
    "an empty link": "member('a', link='')",
    "a link too long": "member('a', link='x' * 5000)",
}


@pytest.mark.docker
@pytest.mark.parametrize("name", FORGED)
def test_forged_answers_of_tar_are_the_agents_doing(name: str) -> None:
    text = FORGED_TAR.format(members=FORGED[name])
    tar = f"#!/bin/sh\nexec python3 - <<'END'\n{text}\nEND\n"

    async def act(sandbox: Sandbox) -> None:
        await sandbox.put("/usr/local/sbin/tar", tar.encode(), mode=0o755)

    grade = episode(act, backend=DockerBackend("hostile"))
    assert grade.reward == 0.0
    assert "tools" in grade.detail["reason"] or "longer than" in grade.detail["reason"], grade.detail["reason"]


@pytest.mark.docker
@pytest.mark.parametrize("path", ["./../../etc/passwd", "/etc/passwd", "./a/../b"])
def test_forged_answers_of_find_are_the_agents_doing(path: str) -> None:
    find = f"#!/bin/sh\nprintf '7 1.5 644 %s\\0' {path}\n"

    async def act(sandbox: Sandbox) -> None:
        await sandbox.put("/usr/local/sbin/find", find.encode(), mode=0o755)

    grade = episode(act, tiny_task({"large.txt": "line\n" * 150_000}), backend=DockerBackend("hostile"))
    assert grade.reward == 0.0
    assert grade.detail["reason"]


def test_names_that_git_takes_for_rules() -> None:
    """`:(magic)` and `:!not` are rules where git expects paths."""
    names = [
        ":(top)x",
        ":(nothing",
        ":!y",
        "*",
        "-f",
        "[a]",
        "a\\b",
        '"q"',
        "with space",
        "new\nline",
        "#c",
        "!n",
    ]
    script = "\n".join(f"printf x >./{shlex.quote(name)}" for name in names)
    grade = episode(shell(f"{FIX}\n{script}"))
    assert grade.reward == 1.0, grade.detail["reason"]
    assert set(changed(grade)) == {*FIXED, *names}


def test_more_deleted_than_a_patch_may_hold_is_a_graded_zero() -> None:
    task = tiny_task({f"large{i}.txt": "line\n" * 100_000 for i in range(3)})
    grade = episode(shell("rm large*"), task, limits=SweLimits(patch_bytes=1 << 18))
    assert grade.reward == 0.0
    assert "more than" in grade.detail["reason"]


def test_a_machine_that_is_too_slow_is_no_agents_doing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worktree, "COLLECT_TIMEOUT_S", 0.0001)
    monkeypatch.setattr(worktree, "_AT_ONCE_S", 0.0)
    many = "i=0; while [ $i -lt 3000 ]; do : >f$i; i=$((i + 1)); done"  # longer to read than any hiccup of the driver
    with pytest.raises(EnvironmentFault, match="did not end within"):
        episode(shell(f"{FIX}; {many}"))


def built(folder: Path) -> tuple[Path, str]:
    """A project with a submodule entry, a tracked link, and an untracked link as an image's build leaves it."""
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    for path, text in FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    (folder / "link").symlink_to("shop")
    git(folder, "add", "-A")
    git(folder, "update-index", "--add", "--cacheinfo", "160000," + "1" * 40 + ",mod")
    git(folder, "commit", "-qm", "base")
    (folder / "mod").mkdir()
    (folder / "venv").symlink_to("shop")
    (folder / "built.o").write_bytes(b"\0made")
    (folder / ".gitignore").write_text(FILES[".gitignore"] + "# changed by the image\n")
    return folder, git(folder, "rev-parse", "HEAD")


def image_task(base: str) -> Task:
    return Task("tiny-3", "swe", "train", {**tiny_task().row, "files": None, "base_commit": base})


def diff_in_image(folder: Path, base: str, script: str) -> tuple[bytes, tuple[bytes, ...]]:
    """The diff of what `script` does in a sandbox that came with `folder` as its repository."""
    row, image = read_row(image_task(base)), tar_of(folder)

    async def work(backend: SandboxBackend) -> tuple[bytes, tuple[bytes, ...]]:
        async def start() -> Sandbox:
            sandbox = await backend.start(SandboxSpec())
            await sandbox.put_tar("/testbed", image)
            return sandbox

        async with await start() as agent, await start() as fresh:
            snapshot = await record(agent, row, await provide(agent, row))
            await shell(script)(agent)
            changes = await collect(agent, "/testbed", snapshot, max_bytes=1 << 24)
            await provide(fresh, row)
            diff = await make_diff(fresh, row, snapshot, changes, Bench("/tmp/bench"), max_bytes=1 << 24)
            return diff.patch, diff.ignored

    return run(work)


IN_IMAGES = {
    "nothing": ("true", {}),
    "the built file is the image's own": ("touch built.o; cp built.o x; mv x built.o", {}),
    "a built file is changed": ("echo new >built.o", {"built.o": b"new\n"}),
    "an untracked link becomes a folder": ("rm venv; mkdir venv; echo a >venv/new.py", {"venv/new.py": b"a\n"}),
    "a file below an untracked link": ("echo a >venv/cart2.py", {"shop/cart2.py": b"a\n"}),
    "a tracked link becomes a folder": ("rm link; mkdir link; echo a >link/x.py", {"link": None, "link/x.py": b"a\n"}),
    "files inside a submodule are its own": ("echo a >mod/file; mkdir mod/d; echo b >mod/d/e", {}),
    "a submodule's folder is removed": ("rmdir mod", {}),
    "a repository inside a submodule": ("git init -q mod; echo a >mod/file", {}),
    "a nested repository": ("git init -q n; echo a >n/file", {"n/file": b"a\n"}),
    "the image's change to the ignore file is no rule": ("echo a >x.log; echo b >x.txt", {"x.txt": b"b\n"}),
}


@pytest.mark.parametrize("name", IN_IMAGES)
def test_diffs_in_images(tmp_path: Path, name: str) -> None:
    script, expected = IN_IMAGES[name]
    folder, base = built(tmp_path / "r")
    patch, _ = diff_in_image(folder, base, script)
    work = tmp_path / "elsewhere"
    subprocess.run(["git", "clone", "-q", str(folder), str(work)], check=True, capture_output=True)
    before = tree_of(work)
    if patch:
        subprocess.run(["git", "apply", "--whitespace=nowarn", "-"], input=patch, cwd=work, check=True)
    after = tree_of(work)
    assert {p: after.get(p) for p in {*before, *after} if before.get(p) != after.get(p)} == expected


NAMES = st.sampled_from(
    ["shop", "cart.py", "a", "b.txt", "x y", "\n", "é", "-rf", "\\", '"', "notes.txt", ".x", "tests"]
)
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["write", "append", "remove", "link", "mode", "move"]), PATHS, PATHS, st.binary(max_size=20)
    ),
    min_size=1,
    max_size=8,
)
ACT = """
import json, os, shutil, sys
for what, path, other, data in json.load(open(sys.argv[1])):
    data = bytes.fromhex(data)
    try:
        if what in ("write", "append"):
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            open(path, "wb" if what == "write" else "ab").write(data)
        elif what == "remove":
            shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.remove(path)
        elif what == "link":
            os.symlink(other, path)
        elif what == "mode":
            os.chmod(path, 0o755 if data[:1] < b"\\x80" else 0o640)
        elif what == "move":
            os.rename(path, other)
    except OSError:
        pass
"""


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=STEPS)
def test_any_work_tree_comes_back_from_its_patch(pair: Any, steps: list[tuple[str, str, str, bytes]]) -> None:
    plan = json.dumps([(what, path, other, data.hex()) for what, path, other, data in steps])
    row, loop, agent, fresh = pair

    async def work() -> tuple[bytes, tuple[bytes, ...], dict[str, bytes], set[str]]:
        for sandbox in (agent, fresh):
            await sandbox.exec("rm -rf /testbed/* /testbed/.[!.]* /tmp/bench", cwd="/")
        snapshot = await record(agent, row, await provide(agent, row))
        await provide(fresh, row)
        await agent.put("/tmp/act.py", ACT.encode())
        await agent.put("/tmp/plan.json", plan.encode())
        assert (await agent.exec("python3 /tmp/act.py /tmp/plan.json", cwd="/testbed")).exit_code == 0
        changes = await collect(agent, "/testbed", snapshot, max_bytes=1 << 24)
        diff = await make_diff(fresh, row, snapshot, changes, Bench("/tmp/bench"), max_bytes=1 << 24)
        look = (
            "import os, json\nfound, modes = {}, []\n"
            "for top, folders, files in os.walk('.'):\n"
            "    folders[:] = [f for f in folders if f != '.git']\n"
            "    for n in files + [f for f in folders if os.path.islink(os.path.join(top, f))]:\n"
            "        p = os.path.join(top, n); k = p[2:]\n"
            "        found[k] = os.readlink(p).encode().hex() if os.path.islink(p) else open(p, 'rb').read().hex()\n"
            "        if not os.path.islink(p) and os.stat(p).st_mode & 0o100: modes.append(k)\n"
            "print(json.dumps([found, modes]))\n"
        )
        await agent.put("/tmp/look.py", look.encode())
        found, modes = json.loads((await agent.exec("python3 /tmp/look.py", cwd="/testbed")).text)
        return diff.patch, diff.ignored, {k: bytes.fromhex(v) for k, v in found.items()}, set(modes)

    patch, ignored, expected, executable = loop.run_until_complete(work())
    assert ignored == ()
    assert apply_patch_elsewhere(FILES, patch) == expected
    assert patch.count(b"100755") >= len(executable) > 0 or not executable


@pytest.fixture(scope="module")
def pair() -> Any:
    """Two sandboxes for a whole property."""
    loop = asyncio.new_event_loop()
    backend = embedded()

    async def start() -> Sandbox:
        return await backend.start(SandboxSpec())

    agent, fresh = loop.run_until_complete(start()), loop.run_until_complete(start())
    yield read_row(tiny_task()), loop, agent, fresh

    async def end() -> None:
        await agent.close()
        await fresh.close()
        await backend.close()

    loop.run_until_complete(end())
    loop.close()
