"""Packs a user's own repository, fix and tests into a task row with a git bundle beside it.

Promises: the bundle holds base_commit's history and nothing newer; the user's repository is only read; patch and
test_patch are git's own diffs, split by which paths are tests. The test lists are left empty here: they are measured
by really running the tests (envs.swe.packing), since this room does not know sandboxes.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from data.clone import borrowed, bundle, commit_of, git, require_complete, top_of
from data.reading import InputError, json_lines
from data.task import Task, TaskError

# Every setting that a user's configuration could change is given: the same repository always makes the same row.
_DIFF = (
    *("diff", "--binary", "--full-index", "--no-ext-diff", "--no-textconv", "--no-renames", "--no-color", "-U3"),
    *("--src-prefix=a/", "--dst-prefix=b/", "--no-relative", "--inter-hunk-context=0", "--diff-algorithm=myers"),
    *("--submodule=short", "--ignore-submodules=none"),
)
_TEST_FILE = re.compile(
    r"^\+\+\+ b/((?:[^\n]*/)?(?:test_[^/\n]*\.py|[^/\n]*_test\.(?:py|go)|[^/\n]*\.(?:test|spec)\.[jt]sx?))$",
    re.MULTILINE,
)
_SUBMODULE = re.compile(
    r'^diff --git "?a/(.*?)"? "?b/.*\n(?:(?:new|deleted) file mode 160000|index [0-9a-f]+\.\.[0-9a-f]+ 160000)$',
    re.MULTILINE,
)
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def pack(
    repo: Path,
    *,
    base: str,
    fix: str | Path,
    tests: Sequence[str],
    test_command: str,
    problem_statement: str,
    out: Path,
    instance_id: str = "",
    log_parser: str = "",
    image: str = "",
    repo_dir: str = "/testbed",
) -> Task:
    """Write the bundle next to `out` and return the draft task (test lists still empty).

    `base`: revision that the agent starts from. `fix`: a later revision, or a patch file. `tests`: files or folders
    that are tests; the fix's changes to them become test_patch. `test_command`: run in the repository, e.g.
    ``python3 -m unittest -v tests.test_x`` or ``python3 -m pytest -rA tests``. Raises TaskError."""
    if not problem_statement.strip():
        raise TaskError("problem_statement is empty: it is all that the agent is told")
    parser = log_parser or _parser_of(test_command)
    repo = top_of(repo)
    base_commit = commit_of(repo, base, f"no revision {base!r}")
    if not Path(fix).is_file():
        fix = commit_of(repo, str(fix), f"fix {str(fix)!r} is neither a patch file nor a revision")
    require_complete(repo, base_commit, fix if isinstance(fix, str) else None)
    instance_id = instance_id or f"{re.sub(r'[^A-Za-z0-9._-]+', '-', repo.resolve().name)}-{base_commit[:10]}"
    if not _ID.fullmatch(instance_id):
        raise TaskError(f"instance id {instance_id!r}: use letters, digits, dot, dash and underscore")
    paths = [_clean(path) for path in tests]
    patch, test_patch = _patches(repo, base_commit, fix, paths)
    if not patch.strip():
        raise TaskError(f"the fix changes nothing outside of the tests ({', '.join(paths) or 'none given'})")
    _check_split(repo, base_commit, paths, patch, test_patch)
    file = out.parent / f"{instance_id}.bundle"
    out.parent.mkdir(parents=True, exist_ok=True)
    bundle(repo, base_commit, file)
    row = {
        "instance_id": instance_id,
        "repo": repo.resolve().name,
        "base_commit": base_commit,
        "problem_statement": problem_statement,
        "patch": patch,
        "test_patch": test_patch,
        "FAIL_TO_PASS": [],
        "PASS_TO_PASS": [],
        "image": image,
        "eval_script": f"cd {repo_dir} && {test_command} 2>&1\n",
        "log_parser": parser,
        "eval_type": "pass_and_fail",
        "bundle": file.name,
        "repo_dir": repo_dir,
    }
    return Task(instance_id, "swe", "train", row, source=str(out), base_dir=str(out.parent))


def _check_split(repo: Path, base: str, paths: Sequence[str], patch: str, test_patch: str) -> None:
    """Tests that stay in the reference fix make a task that nobody can solve: the agent's patch never has them."""
    if moved := sorted(set(_SUBMODULE.findall(patch + test_patch))):
        raise TaskError(
            f"the fix moves the submodule {', '.join(moved[:3])}: a task holds one repository. Give as `fix` a patch "
            "file without it, or pack the submodule's own repository"
        )
    for path in paths:
        changed = re.search(rf'^diff --git "?a/{re.escape(path)}(?:/| |")', test_patch, re.MULTILINE)
        if not changed and not git(repo, "--literal-pathspecs", "ls-tree", base, "--", path).strip():
            raise TaskError(
                f"tests: there is no {path!r}, neither at the base nor in the fix. Is its name spelt right?"
            )
    if not test_patch.strip():
        raise TaskError(
            f"the fix changes no tests ({', '.join(paths) or 'none given'}). Name with `tests` the files or folders "
            "whose tests it adds or changes"
        )
    if held := sorted(set(_TEST_FILE.findall(patch))):
        raise TaskError(
            f"the reference fix holds tests ({', '.join(held[:3])}): name them, or their folder, as tests too"
        )


def append_row(out: Path, row: Mapping[str, Any]) -> None:
    """Add `row` to the JSON-lines file `out`, in place of an earlier row with the same id. Replaces it atomically."""
    kept = []
    if out.exists():
        try:
            earlier = list(json_lines(out, surrogates=True))  # patches hold bytes that are no UTF-8
        except InputError as error:
            raise TaskError(f"{error}. Mend or remove it") from error
        for number, known in earlier:
            if not isinstance(known, dict):
                raise TaskError(f"{out}, line {number}: is a JSON {type(known).__name__}, expected a row")
            if known.get("instance_id") != row["instance_id"]:
                kept.append(json.dumps(known, ensure_ascii=True))
    kept.append(json.dumps(row, ensure_ascii=True))
    temporary = out.with_name(f".{out.name}.{os.getpid()}")
    temporary.write_text("\n".join(kept) + "\n", encoding="utf-8")
    temporary.replace(out)


def _parser_of(command: str) -> str:
    if "pytest" in command:
        if not re.search(r"(^|\s)(-rA\b|-\w*v|--verbose)", command):
            raise TaskError(f"test_command {command!r}: pytest names passed tests only with -rA (or -v); add it")
        return "pytest"
    if "unittest" in command:
        if not re.search(r"(^|\s)(-\w*v|--verbose)", command):
            raise TaskError(f"test_command {command!r}: unittest names its tests only with -v; add it")
        return "unittest"
    raise TaskError(f"test_command {command!r} runs neither unittest nor pytest; name the log_parser for its output")


def _clean(path: str) -> str:
    clean = os.path.normpath(path)
    if clean.startswith(("/", "..")) or clean == ".":
        raise TaskError(f"tests: {path!r} must be a path inside the repository")
    return clean


def _patches(repo: Path, base: str, fix: str | Path, tests: Sequence[str]) -> tuple[str, str]:
    """The fix against `base`, split into (source, tests)."""
    file = Path(fix)
    with tempfile.TemporaryDirectory(prefix="sao-pack-") as folder:
        if file.is_file():
            # A patch file is applied to an index of our own: the user's work tree and index stay as they are.
            index = {"GIT_INDEX_FILE": f"{folder}/index", "GIT_OBJECT_DIRECTORY": f"{folder}/objects"}
            index["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = borrowed(repo)
            os.mkdir(f"{folder}/objects")
            git(repo, "read-tree", base, env=index)
            why = f"{file} does not apply to {base}"
            git(repo, "apply", "--cached", "--whitespace=nowarn", str(file.resolve()), env=index, why=why)
            target, extra = ["--cached", base], index
        else:
            target, extra = [base, str(fix)], {}
        source = [".", *(f":(exclude,literal){path}" for path in tests)]
        patch = _diff(repo, [*target, "--", *source], extra, Path(folder))
        only_tests = [f":(literal){path}" for path in tests]
        test_patch = _diff(repo, [*target, "--", *only_tests], extra, Path(folder)) if tests else ""
    return patch, test_patch


def _diff(repo: Path, what: Sequence[str], env: Mapping[str, str], folder: Path) -> str:
    """A diff that JSON can carry: where lines are not UTF-8, files travel as git's (ASCII) binary patches."""
    patch = git(repo, *_DIFF, *what, env=env)
    if not patch.isascii() and any("\udc80" <= char <= "\udcff" for char in patch):
        attributes = folder / "attributes"
        attributes.write_text("* -diff\n")
        patch = git(repo, "-c", f"core.attributesFile={attributes}", *_DIFF, *what, env=env)
    return patch
