"""Which tasks belong to an evaluation set, so that no training sees them.

    refuse_evaluation_tasks(tasks)        training_refusal(trajectory)

A task is known by its instance id (its own, or the one in its image's name), by base commit and repository (however
spelt, and as a fork), by what its reference and test patches write, or by its problem's text: letters and digits only,
whatever its case, spacing, Unicode form or LaTeX dressing; also without the first and last lines or sentences, and by
any run of whole paragraphs, so that an instruction around one does not hide it; of maths problems also by their first
and last 120 letters. The lists in data/evaluation_sets/
hold hashes only (scripts/evaluation_hashes.py makes them from rows). What they cannot find: a problem in other words.
"""

from __future__ import annotations

import functools
import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from data.quoted import quoted_refusal
from data.task import Task, TaskError
from data.trajectory import Trajectory

FOLDER = Path(__file__).parent / "evaluation_sets"
SUITES = ("aime2025", "beyondaime", "imo-answerbench")
"""Maths suites of `sao eval`: their tasks have ids of the form <suite>/<row>."""
_EDGE = 120
"""Letters. At 80 the usual ending of an AIME problem ("... m and n are relatively prime ...") made strangers alike."""
_PARAGRAPHS = 8
_LATEX_DRESS = re.compile(
    r"\\(?:left|right|displaystyle|textstyle|text|textbf|textit|mathrm|mathbf|mathit|quad|qquad|d?frac|tfrac)(?![A-Za-z])"
    r"|\\begin\{[a-z*]+\}|\\end\{[a-z*]+\}",
    re.IGNORECASE,
)


REPOSITORIES = (
    *("astropy/astropy", "django/django", "matplotlib/matplotlib", "mwaskom/seaborn", "pallets/flask", "psf/requests"),
    *("pydata/xarray", "pylint-dev/pylint", "pytest-dev/pytest", "scikit-learn/scikit-learn", "sphinx-doc/sphinx"),
    *("sympy/sympy", "sqlfluff/sqlfluff", "marshmallow-code/marshmallow", "pvlib/pvlib-python", "pydicom/pydicom"),
    *("pylint-dev/astroid", "pyvista/pyvista"),
)
"""Of the benchmarks: a commit is theirs in whatever fork it lies."""
_IMAGE_ID = re.compile(r"sweb\.eval\.[^./]+\.([^:/@]+)", re.IGNORECASE)
_CUTS, _CUT_CHARS = 12, 2000


class EvaluationTask(TaskError):
    """A task of an evaluation set was about to be trained on."""


def normal_text(text: str) -> str:
    """Letters and digits of a problem, case folded."""
    folded = unicodedata.normalize("NFKC", _LATEX_DRESS.sub(" ", text)).casefold()
    return "".join(sign for sign in unicodedata.normalize("NFKC", folded) if sign.isalnum())


def normal_repo(repo: str) -> str:
    """owner/name of an address, whatever its form: https://host/Owner/Name.git/, git@host:owner/name, owner/name."""
    parts = [part for part in re.split(r"[/:]", repo.strip().casefold()) if part]
    return "/".join(parts[-2:]).removesuffix(".git")


def patch_hash(patch: str) -> str:
    """Of the lines of a patch's hunks; empty where they are too few to tell it from others."""
    body = (line[1:] for line in patch.splitlines() if line[:1] in ("+", "-", " ") and line[:3] not in ("+++", "---"))
    normal = normal_text("\n".join(body))
    return _hash("patch", normal) if len(normal) >= _EDGE else ""


def _hash(kind: str, value: str) -> str:
    return hashlib.sha256(f"{kind}\0{value}".encode("utf-8", "surrogatepass")).hexdigest()[:24]


def hashes_of(
    *, instance_id: str = "", repo: str = "", base_commit: str = "", problem: str = "", maths: bool = False
) -> dict[str, str]:
    """Kind of identity -> hash, of what is given."""
    made: dict[str, str] = {}
    if instance_id.strip():
        made["id"] = _hash("id", instance_id.strip().casefold())
    if repo.strip() and base_commit.strip():
        made["commit"] = _hash("commit", f"{normal_repo(repo)}@{base_commit.strip().casefold()}")
    if normal := normal_text(problem):
        made["problem"] = _hash("problem", normal)
        if maths and len(normal) >= _EDGE:
            made["head"], made["tail"] = _hash("edge", normal[:_EDGE]), _hash("edge", normal[-_EDGE:])
    return made


def row_hashes(task_id: str, kind: str, row: Mapping[str, Any]) -> dict[str, str]:
    def text(*columns: str) -> str:
        return next((str(row[name]) for name in columns if isinstance(row.get(name), str)), "")

    return hashes_of(
        instance_id=text("instance_id") or task_id,
        repo=text("repo"),
        base_commit=text("base_commit"),
        problem=text("problem_statement", "problem"),
        maths=kind == "maths",
    )


@functools.cache
def known(folder: Path = FOLDER) -> Mapping[str, str]:
    """Hash -> name of the evaluation set. A list that is damaged is an error: a guard must not sleep."""
    found: dict[str, str] = {}
    files = sorted(folder.glob("*.txt"))
    if not files:
        raise TaskError(f"{folder} holds no lists of evaluation sets: nothing could be told from a benchmark")
    for file in files:
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
        for line in lines:
            if not re.fullmatch(r"[0-9a-f]{24}", line):
                raise TaskError(f"{file}: {line[:40]!r} is no hash; make the list again (scripts/evaluation_hashes.py)")
            found.setdefault(line, file.stem)
    return found


def evaluation_set(task_id: str, kind: str = "", row: Mapping[str, Any] | None = None) -> tuple[str, str] | None:
    """(set, what gave it away) of a task that belongs to an evaluation set."""
    suite = task_id.partition("/")[0]
    if suite in SUITES and "/" in task_id:
        return suite, "id"
    lists = known()
    row = row or {}
    for what, value in _all_hashes(task_id, kind, row):
        if value in lists:
            return lists[value], {"head": "problem", "tail": "problem"}.get(what, what)
    return None


def _all_hashes(task_id: str, kind: str, row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield from row_hashes(task_id, kind, row).items()
    yield "id", _hash("id", task_id.strip().casefold())
    for column in ("image", "image_name", "docker_image"):
        if isinstance(row.get(column), str):
            for found in _IMAGE_ID.findall(row[column]):
                yield "image", _hash("id", found.casefold().replace("_1776_", "__").replace("_s_", "__"))
    if isinstance(commit := row.get("base_commit"), str) and len(commit.strip()) >= 40:
        for repo in REPOSITORIES:
            yield "commit", hashes_of(repo=repo, base_commit=commit)["commit"]
    for column in ("patch", "test_patch"):
        if isinstance(row.get(column), str) and (mark := patch_hash(row[column])):
            yield "patch", mark
    for column in ("problem_statement", "problem"):
        if isinstance(text := row.get(column), str):
            for part in _parts(text):
                yield "problem", hashes_of(problem=part).get("problem", "")
            for normal in _without_ends(text):
                yield "problem", _hash("problem", normal)


def _without_ends(text: str) -> Iterator[str]:
    """Normal texts without some of the first and last lines or sentences."""
    ends = [match.end() for match in re.finditer(r"\n|[.:!?](?=\s)", text)]
    starts = [0, *[end for end in ends if end <= _CUT_CHARS][:_CUTS]]
    stops = [len(text), *[end for end in ends if end >= len(text) - _CUT_CHARS][-_CUTS:]]
    whole = normal_text(text)
    heads = {len(normal_text(text[:start])) for start in starts}
    tails = {len(normal_text(text[stop:])) for stop in stops}
    for head in heads:
        for tail in tails:
            if (head or tail) and head + _EDGE <= len(whole) - tail:
                yield whole[head : len(whole) - tail]


def _parts(problem: str) -> Iterator[str]:
    """Runs of paragraphs, of the first and last of very long texts: the problem without what was put around it."""
    pieces = [piece for piece in re.split(r"\n[ \t\r]*\n", problem) if piece.strip()]
    pieces = pieces if len(pieces) <= _PARAGRAPHS else [*pieces[: _PARAGRAPHS // 2], *pieces[-(_PARAGRAPHS // 2) :]]
    for start in range(len(pieces)):
        for end in range(start + 1, len(pieces) + 1):
            yield "\n\n".join(pieces[start:end])


def evaluation_tasks(tasks: Iterable[Task]) -> Iterator[tuple[Task, str, str]]:
    """(task, set, what gave it away) of each that belongs to one."""
    for task in tasks:
        if task.source != "micro-swe" and (found := evaluation_set(task.task_id, task.kind, task.row)):
            yield task, *found


_WORDS = {"id": "its id", "commit": "its repository and base commit", "problem": "its problem's text"}
_WORDS |= {"image": "its image's name", "patch": "what its patch or its tests write"}


def refuse_evaluation_tasks(tasks: Iterable[Task]) -> None:
    """Raises EvaluationTask naming the first of them and how many there are."""
    found = list(evaluation_tasks(tasks))
    if not found:
        return
    task, name, what = found[0]
    raise EvaluationTask(
        f"{len(found)} of the tasks to train on belong to an evaluation set, the first is {task.task_id} ({name}, by "
        f"{_WORDS[what]}). Scores on it would mean nothing afterwards. Train on other tasks (docs/data.md lists sets), "
        "or take these rows out"
    )


def training_refusal(trajectory: Trajectory) -> str:
    """Why a trajectory is never trained on, whatever the method: turns in text, or a task of an evaluation set."""
    if refusal := quoted_refusal(trajectory):
        return refusal
    identity = trajectory.identity
    if found := evaluation_set(identity.task_id):
        return f"episode {identity.episode_id} was made on {identity.task_id}, a task of the evaluation set {found[0]}"
    return ""
