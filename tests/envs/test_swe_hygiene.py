"""Every way in which git could lead an agent to history newer than base_commit, planted one at a time.

The script runs here as it runs in a sandbox (tests/envs/test_swe_repository.py has it there). The judge does not
believe git: it searches every file below the test's folder for ids and contents of newer objects, plain, deflated and
inside packs and bundles.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import zlib
from dataclasses import dataclass
from pathlib import Path

import pytest

from envs.swe.git import DRIVER_ENV

SCRIPT = Path(__file__).parents[2] / "envs" / "swe" / "hygiene.sh"
SECRET = b"the fix of tomorrow"
ENV = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ALLOW_PROTOCOL": "file",
    **{f"GIT_{role}_{key}": "t@example.invalid" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")},
}
LAYOUT = {"HEAD", "config", "index", "packed-refs", "refs/heads/main", "info/exclude", "shallow"}


@dataclass(frozen=True)
class Planted:
    root: Path
    """Everything of the test; the repository is root/repo."""
    base: str
    newer: frozenset[str]
    """Ids of objects that base and the tags of its past do not reach."""

    @property
    def repo(self) -> Path:
        return self.root / "repo"


def sh(script: str, folder: Path, **env: str) -> str:
    done = subprocess.run(
        ["sh", "-euc", script], cwd=folder, env={**ENV, **env}, capture_output=True, text=True, errors="replace"
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout.strip()


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Planted:
    """Two commits of the past with tags, base, two of the future on the branch `future`; base is checked out. What
    every test would ask git about it is asked once."""
    repo = tmp_path_factory.mktemp("original") / "repo"
    repo.mkdir()
    sh(
        f"""
        at() {{ export GIT_AUTHOR_DATE="@$1 +0000" GIT_COMMITTER_DATE="@$1 +0000"; }}
        git init -q -b main .
        at 1000; echo past >old.txt; mkdir lib; echo 1 >lib/a.py; git add -A; git commit -qm past
        git tag v1; git tag -a v1.1 -m "release 1.1"
        at 2000; echo 2 >lib/a.py; git commit -qam "base of the task"; git tag -a v2 -m "release 2"
        at 3000; git tag -a v2-late -m '{SECRET.decode()} as a tag'
        git branch base; git checkout -q -b future
        echo '{SECRET.decode()}' >fix.txt; git add -A; git commit -qm '{SECRET.decode()}'
        echo '{SECRET.decode()}, again' >fix.txt; git commit -qam 'more of {SECRET.decode()}'
        git checkout -q main
        """,
        repo,
    )
    known = set(sh("git rev-list --objects --no-object-names base v1 v1.1 v2", repo).split())
    every = set(sh("git cat-file --batch-all-objects --batch-check='%(objectname)'", repo).split())
    return Planted(repo.parent, sh("git rev-parse base", repo), frozenset(every - known))


@pytest.fixture
def planted(original: Planted, tmp_path: Path) -> Planted:
    shutil.copytree(original.repo, tmp_path / "repo", symlinks=True)
    return dataclasses.replace(original, root=tmp_path)


def clean(planted: Planted, shell: str = "sh", **env: str) -> tuple[int, str]:
    """(exit code, report)."""
    scratch = planted.root.parent / f"{planted.root.name}-tmp"
    scratch.mkdir(exist_ok=True)
    program = f"D='{planted.repo}' B={planted.base}; . {SCRIPT}"
    done = subprocess.run(
        [shell, "-c", program], env={**DRIVER_ENV, "TMPDIR": str(scratch), **env}, capture_output=True, timeout=60
    )
    assert not done.stderr, done.stderr.decode()
    return done.returncode, done.stdout.decode("utf-8", "replace").replace("\0", "\n")


def contents(planted: Planted) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in planted.root.rglob("*") if path.is_file() and not path.is_symlink()}


def unpacked(data: bytes, planted: Planted) -> bytes:
    """What a pack inside of `data` holds, as far as git can read it by itself."""
    scratch = planted.root.parent / f"{planted.root.name}-unpack"
    shutil.rmtree(scratch, ignore_errors=True)
    subprocess.run(["git", "init", "-q", "--bare", str(scratch)], env=ENV, check=True)
    pack = data[data.index(b"PACK\0\0\0") :]
    subprocess.run(["git", "unpack-objects", "-r", "-q"], cwd=scratch, env=ENV, input=pack, capture_output=True)
    listed = subprocess.run(
        ["git", "cat-file", "--batch-all-objects", "--batch"], cwd=scratch, env=ENV, capture_output=True
    )
    return listed.stdout


def traces(planted: Planted) -> list[str]:
    """Where the future is still to be found."""
    found = []
    ids = [name.encode() for name in planted.newer] + [bytes.fromhex(name) for name in planted.newer]
    for path, data in contents(planted).items():
        where = str(path.relative_to(planted.root))
        if any(name in data for name in ids) or SECRET in data:
            found.append(where)
        elif b"PACK\0\0\0" in data and SECRET in unpacked(data, planted):
            found.append(f"{where} (packed)")
        elif path.parent.name != "pack" and "objects" in path.parts:
            try:
                plain = zlib.decompress(data)
            except zlib.error:
                continue
            if SECRET in plain:
                found.append(f"{where} (deflated)")
    return found


PLANTS = {
    "branches": "git update-ref refs/heads/x/y future",
    "packed references": "git update-ref refs/heads/a future; git pack-refs --all",
    "remote references": "git update-ref refs/remotes/origin/main future; git remote add origin https://x.invalid/r",
    "light tag": "git tag v9 future",
    "annotated tag, nested": "git tag -a v9 -m SECRET future; git tag -a v10 -m x v9",
    "tag of a tree and of a blob": "git tag t future^{tree}; git tag b future:fix.txt",
    "tag of the past with a later message": "git tag -f -a v1 -m SECRET main~1",
    "notes": "git notes add -m SECRET base",
    "stash": "echo SECRET >lib/a.py; git stash -q",
    "unusual references": "git update-ref refs/original/refs/heads/main future; git update-ref refs/x future",
    "references of broken name": """cd .git/refs; cp heads/future heads/a..b
        cp heads/future tags/v3.lock; cp heads/future heads/'a b'""",
    "symbolic references": """git symbolic-ref refs/heads/s refs/heads/future
        git symbolic-ref refs/tags/s refs/heads/future""",
    "HEAD": "git checkout -q future; git checkout -q base -- .; rm -f fix.txt",
    "detached HEAD": "git update-ref --no-deref HEAD future",
    "reflogs": "git checkout -q future; git checkout -q base; FORGET",
    "pseudo references": """for n in FETCH_HEAD ORIG_HEAD MERGE_HEAD CHERRY_PICK_HEAD \\
        REVERT_HEAD REBASE_HEAD BISECT_HEAD AUTO_MERGE; do git rev-parse future >.git/$n; done; FORGET""",
    "messages": "for n in COMMIT_EDITMSG MERGE_MSG SQUASH_MSG TAG_EDITMSG; do echo SECRET >.git/$n; done",
    "states of rebase, bisect, sequencer": """cd .git; mkdir rebase-merge rebase-apply sequencer
        git rev-parse future | tee rebase-merge/onto rebase-apply/orig-head sequencer/todo BISECT_LOG >BISECT_START""",
    "recorded resolutions": "mkdir -p .git/rr-cache/abc; echo SECRET >.git/rr-cache/abc/postimage",
    "staged": "git read-tree future",
    "other indexes": """GIT_INDEX_FILE=.git/index.bak git read-tree future
        cp .git/index.bak .git/next-index-1.lock""",
    "split index": "git read-tree future; git update-index --split-index",
    "unmerged index": "git read-tree -i -m base~1 base future",
    "dangling loose objects": "echo SECRET loose | git hash-object -w --stdin; FORGET",
    "dangling packed objects": "git repack -q -a -d; FORGET",
    "kept pack": "git repack -q -a -d; for p in .git/objects/pack/*.pack; do : >${p%pack}keep; done; FORGET",
    "promised pack": """git repack -q -a -d; for p in .git/objects/pack/*.pack; do : >${p%pack}promisor; done
        git config core.repositoryFormatVersion 1; git config extensions.partialClone origin
        git config remote.origin.url https://x.invalid/r; git config remote.origin.promisor true""",
    "cruft pack": """FORGET; git reflog expire --expire=now --all
        git repack -q --cruft -d || git repack -q -A -d""",
    "half-written packs and objects": """git repack -q -a -d; cd .git/objects; cp pack/*.pack pack/tmp_pack_abc
        mkdir -p incoming-x/pack; cp pack/*.pack incoming-x/pack; echo SECRET >tmp_obj_abc""",
    "pack without index, index without pack": """git repack -q -a -d; mkdir k; cp .git/objects/pack/* k
        git repack -q -a -d -f; cd .git/objects/pack
        cp ../../../k/*.idx pack-aaaa.idx; cp ../../../k/*.pack pack-bb.pack
        rm -rf ../../../k""",
    "commit graph": "git commit-graph write --reachable",
    "commit graph chain": "git commit-graph write --reachable --split",
    "multi-pack index and bitmap": "git repack -q -a -d -b; git multi-pack-index write --bitmap",
    "lists for dumb transports": "git update-server-info; git rev-parse future >.git/info/refs",
    "alternates": """git clone -q --bare . ../store.git; rm -rf .git/objects/??
        echo ../../../store.git/objects >.git/objects/info/alternates""",
    "alternates of alternates": """git clone -q --bare . ../b.git; git clone -q --bare -s ../b.git ../a.git
        echo "$PWD/../a.git/objects" >.git/objects/info/alternates; rm -rf .git/objects/??""",
    "alternates in a circle": """git clone -q --bare . ../b.git
        echo "$PWD/.git/objects" >../b.git/objects/info/alternates
        echo "$PWD/../b.git/objects" >.git/objects/info/alternates""",
    "objects behind a link": "mv .git/objects ../objects; ln -s ../../objects .git/objects",
    "pack behind a link": """git repack -q -a -d; mv .git/objects/pack/*.pack ..
        ln -s ../../../../$(cd ..; ls *.pack) .git/objects/pack/""",
    "grafts": 'echo "$(git rev-parse base) $(git rev-parse future)" >.git/info/grafts',
    "replacements": "git replace -f base future",
    "linked worktrees": "git worktree add -q ../tree future",
    "linked worktree inside": "git worktree add -q tree future; git worktree lock tree",
    "references of worktrees": """git worktree add -q --detach ../tree future
        git -C ../tree update-ref refs/worktree/x future""",
    "bundles": "git bundle create -q b.bundle --all; cp b.bundle 'with blank'; cp b.bundle .git/b; mv b.bundle x.png",
    "pack among the files": "git repack -q -a -d; cp .git/objects/pack/*.pack data.bin; chmod 600 data.bin",
    "nested clone": "git clone -q . sub/clone; git clone -q -n -b future . sub/other",
    "nested bare clone": "git clone -q --bare . cache/x; git clone -q --mirror . y.git",
    "nested clone with its folder elsewhere": "git clone -q --separate-git-dir=hidden . sub/clone",
    "submodules": """git clone -q --bare . ../m.git
        git -c protocol.file.allow=always submodule --quiet add -b base ../m.git mod
        git rm -q -f --cached mod .gitmodules; rm -rf ../m.git .gitmodules""",
    "bundle with a line break in its name": """git bundle create -q b --all; mv b 'a
b'; mkdir 'c
d'; cp 'a
b' 'c
d/e'""",
    "folder split in two": """git clone -q --bare . common; mkdir split; mv common/HEAD split
        mkdir other; mv common other/of; echo ../other/of >split/commondir""",
    "bare clone whose HEAD is a link": """git clone -q --bare . bare; rm bare/HEAD
        ln -s refs/heads/future bare/HEAD""",
    "bare clone without HEAD": "git clone -q --bare . bare; rm bare/HEAD; mv bare/refs bare/references",
    "pack of version 3": """git repack -q -a -d; cp .git/objects/pack/*.pack p; chmod +w p
        printf '\\003' | dd of=p bs=1 seek=7 conv=notrunc status=none""",
    "tag without a tagger": """printf 'object %s\ntype commit\ntag v1.2\n\nWORDS\n' $(git rev-parse base) >t
        git update-ref refs/tags/v1.2 $(git hash-object --literally -t tag -w t); rm t""",
    "tag of a tag without a tagger": """printf 'object %s\ntype commit\ntag v1.2\n\nWORDS\n' $(git rev-parse base) >t
        git update-ref refs/tags/v1.2 $(git hash-object --literally -t tag -w t); rm t
        GIT_COMMITTER_DATE='@1500 +0000' git tag -a v1.3 -m inner v1.2; git tag -d v1.2""",
    "objects under another folder's name": """mkdir store; cp -r .git/objects/?? store; chmod -R u+w store
        cp -r store 'a
b'""",
    "a bundle that git is told not to look at": """git bundle create -q b --all; git add b
        git update-index --assume-unchanged b""",
    "old remotes files": "mkdir -p .git/remotes .git/branches; git rev-parse future >.git/branches/x",
    "large file storage": """mkdir -p .git/lfs/objects .git/annex
        echo SECRET | tee .git/lfs/objects/x >.git/annex/y""",
    "hooks": "mkdir -p .git/hooks; echo SECRET >.git/hooks/post-checkout; chmod +x .git/hooks/post-checkout",
    "settings": """git config alias.x '!echo WORDS'; git config core.fsmonitor /x; git config core.hooksPath /x
        git config filter.x.smudge /x; git config core.sshCommand /x; git config url.https://x.invalid/.insteadOf git:
        git config core.worktree /elsewhere; git config include.path ../evil""",
    "settings of worktrees": """git config core.repositoryFormatVersion 1; git config extensions.worktreeConfig true
        git config --worktree core.pager 'echo WORDS'""",
    "a damaged configuration": "echo '[broken' >>.git/config",
    "no HEAD": "rm .git/HEAD",
    "a damaged index": "head -c 100 /dev/zero >.git/index",
    "a damaged reference": """echo nonsense >.git/refs/heads/z
        echo 1111111111111111111111111111111111111111 >.git/refs/tags/gone""",
    "damaged packed references": "git pack-refs --all; echo rubbish >>.git/packed-refs",
    "lost and found": "FORGET; git reflog expire --expire=now --all; git fsck --lost-found >/dev/null",
}


def plant(planted: Planted, name: str) -> None:
    words = {"SECRET": f"'{SECRET.decode()}'", "WORDS": SECRET.decode(), "FORGET": "git branch -q -D future"}
    sh(re.sub("|".join(words), lambda match: words[match[0]], PLANTS[name]), planted.repo)


@pytest.mark.parametrize("name", PLANTS)
def test_nothing_newer_than_base_can_be_found(planted: Planted, name: str) -> None:
    plant(planted, name)
    assert traces(planted), "the plant holds nothing: the test would prove nothing"
    code, report = clean(planted)
    assert code == 0, report
    assert traces(planted) == [], report
    assert "removed: " in report
    repo = planted.repo
    told = sh("git log --all --format=%s; git fsck --strict --full 2>&1; git status --porcelain -uno", repo)
    assert told == "base of the task\npast"
    assert sh("git tag; git rev-parse HEAD; git symbolic-ref HEAD", repo).split() == [
        "v1", "v1.1", "v2", planted.base, "refs/heads/main",
    ] or name == "tag of the past with a later message"  # fmt: skip
    inside = {str(path.relative_to(repo / ".git")) for path in (repo / ".git").rglob("*") if path.is_file()}
    assert {path for path in inside if not path.startswith("objects/pack/pack-")} <= LAYOUT


LOOSE = "f=.git/objects/$(git rev-parse {} | sed 's|^..|&/|'); chmod +w $f"
REFUSED = {
    "the folder is a file": ("mv .git ../g; echo 'gitdir: ../g' >.git", "no plain folder"),
    "the folder is a link": ("mv .git ../g; ln -s ../g .git", "no plain folder"),
    "a linked worktree's folder": ("echo ../x >.git/commondir", "commondir"),
    "no objects": ("rm -rf .git/objects", "no .*/.git/objects"),
    "base is not there": (
        """git checkout -q base~1; git branch -q -D main base future; git tag -d v2 v2-late >/dev/null
        git reflog expire --expire=now --all; git prune --expire=now""",
        "base_commit is not in",
    ),
    "history has a hole": (LOOSE.format("base~1^{tree}") + "; rm $f", "history cannot be walked"),
    "a blob is missing": (LOOSE.format("base:lib/a.py") + "; rm $f", "history cannot be walked"),
    "a damaged tree": (LOOSE.format("base^{tree}") + "; echo x >$f", "history cannot be walked"),
    "a damaged blob": (LOOSE.format("base:lib/a.py") + "; echo x >$f", "cannot be packed"),
    "borrowed from an odd place": (
        """cp -a .git/objects ../odd; echo "$PWD/../odd" >.git/objects/info/alternates""",
        "not a git folder's",
    ),
    "borrowed from a folder around it": (
        "git init -q --bare ..; echo ../../../objects >.git/objects/info/alternates",
        "which .* lies in",
    ),
    "a link to an odd place": ("echo a >../odd; ln -s ../../../odd .git/objects/info/odd", "has a link to"),
    "a tracked file replaced by a bundle": ("git bundle create -q lib/a.py --all", "replaced by a git bundle"),
    "a tracked file replaced by a bundle, in silence": (
        "git update-index --assume-unchanged lib/a.py; git bundle create -q lib/a.py --all",
        "replaced by a git bundle",
    ),
    "a tracked file replaced by a bundle, skipped": (
        "git update-index --skip-worktree lib/a.py; git bundle create -q lib/a.py --all",
        "replaced by a git bundle",
    ),
    "a clone beside it": ("git clone -q . ../other", "another copy .*/other/.git"),
    "a shallow clone of later": ("git clone -q --depth 1 -b future file://$PWD ../late", "another copy .*/late/.git"),
    "a split clone beside it": ("mkdir ../a; git clone -q --separate-git-dir=../a/b . ../c", "another copy .*/a/b"),
    "the root is a bare repository too": ("git clone -q --bare . ../c; mv ../c/* .", "root is itself a bare"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_proved_is_refused(planted: Planted, name: str) -> None:
    script, why = REFUSED[name]
    sh(script, planted.repo)
    code, report = clean(planted)
    assert code == 9
    assert "hygiene: " in report
    assert re.search(why, report), report


@pytest.mark.parametrize(
    "variable", ["GIT_DIR", "GIT_WORK_TREE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_INDEX_FILE"]
)
def test_an_image_whose_environment_leads_git_elsewhere_is_refused(planted: Planted, variable: str) -> None:
    code, report = clean(planted, **{variable: "/somewhere"})
    assert code == 9
    assert f"the image sets {variable}" in report


def test_objects_lent_by_the_environment_are_removed(planted: Planted) -> None:
    sh(
        "git clone -q --bare . ../s.git; git branch -D future -q; git reflog expire --expire=now --all; git prune",
        planted.repo,
    )
    code, report = clean(planted, GIT_ALTERNATE_OBJECT_DIRECTORIES=str(planted.root / "s.git" / "objects"))
    assert code == 0, report
    assert not list((planted.root / "s.git" / "objects").rglob("*.pack"))


def test_everything_at_once(planted: Planted) -> None:
    for name in (
        "branches",
        "notes",
        "stash",
        "reflogs",
        "alternates of alternates",
        "commit graph",
        "grafts",
        "bundles",
    ):
        plant(planted, name)
    code, report = clean(planted)
    assert code == 0, report
    assert traces(planted) == []
    again, report = clean(planted)
    assert (again, report.split("\n")[0]) == (0, "clean")
    # what a later change of the folder brings is no longer taken for clean
    plant(planted, "messages")
    assert "removed: .git/COMMIT_EDITMSG" in clean(planted)[1]


def test_what_is_not_newer_stays(planted: Planted) -> None:
    """Names, line endings, exclusions, files built in place, the index's knowledge of files, annotated tags."""
    sh(
        "git config user.name Someone; git config core.autocrlf input; git config core.filemode false; "
        "echo build/ >.git/info/exclude; mkdir build; echo made >build/x; echo made >loose.txt; chmod 755 lib/a.py",
        planted.repo,
    )
    code, report = clean(planted)
    assert code == 0, report
    told = sh(
        "git config user.name; git config core.autocrlf; git describe; git status --porcelain; cat build/x",
        planted.repo,
    )
    assert told.split("\n") == ["Someone", "input", "v2", "?? loose.txt", "made"]


def test_a_shallow_clone_stays_shallow_and_loses_only_the_future(planted: Planted) -> None:
    sh(
        "git clone -q --depth 3 --no-single-branch file://$PWD ../shallow; rm -rf .git; mv ../shallow/.git .",
        planted.repo,
    )
    sh("git rev-parse origin/future >>.git/shallow", planted.repo)
    code, report = clean(planted)
    assert code == 0, report
    assert traces(planted) == []
    assert sh("git log --format=%s", planted.repo).split("\n")[0] == "base of the task"
    assert clean(planted)[1].startswith("clean")


def test_sha256_repositories(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    repo.mkdir()
    sh("git init -q --object-format=sha256 -b main .; echo a >a; git add a; git commit -qm base", repo)
    base = sh("git rev-parse HEAD", repo)
    sh(f"echo '{SECRET.decode()}' >a; git commit -qam next; git checkout -q {base}", repo)
    newer = frozenset({sh("git rev-parse main", repo)})
    planted = Planted(tmp_path, base, newer)
    assert traces(planted)
    code, report = clean(planted)
    assert code == 0, report
    assert traces(planted) == []
    assert sh("git log --format=%s; git fsck --strict", repo) == "base"


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_any_posix_shell_runs_it(planted: Planted, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"NOT RUN: no {shell} here")
    code, report = clean(planted, shell)
    assert code == 0, report
    assert traces(planted) == []
