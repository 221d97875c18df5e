"""`load_tasks`: task sets by name, from files, or from the hub, as checked `Task`s.

Sets that `data.sets` knows are read by their own columns, from the hub or from files; "maths" is rows of our own.

A set is refused as a whole when a row cannot be used or an instance id comes twice: a run on part of a task set would
report figures for another set than the one named. Training sets that hold rows which nothing here can run are the
exception (`data.sets.CannotRun`): these are left out, counted by reason in a warning, and a set of nothing else is
refused. Nothing here runs a row: `sao tasks validate` shows every one whose reference fix is not paid on this machine.
`datasets` is imported only when a file or hub set is asked for.
"""

from __future__ import annotations

import contextlib
import csv
import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from data.maths_rows import maths_task
from data.reading import InputError, check_value, json_lines, read_json, regular, shown, user_path
from data.sets import CannotRun, TaskSet, known_sets
from data.swe_rows import PATCHES, REQUIRED, swe_task
from data.task import Task, TaskError

log = logging.getLogger(__name__)
_READERS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".arrow": "arrow", ".csv": "csv"}
_KINDS = f"a {', '.join(_READERS)} file or a folder made by save_to_disk"


def load_tasks(
    name: str,
    split: str,
    path: str | os.PathLike[str] | None = None,
    limit: int | None = None,
) -> list[Task]:
    """Tasks of one split, in the set's order; at most `limit` (rows that cannot run do not count).

    name   "micro-swe" or "reasoning-gym:<task>" (generated), a set that `data.sets` knows, "maths" (rows with problem
           and answer, from `path`), a hub dataset id with SWE-bench's columns, or any label when `path` is given
    split  of the set; for a single file it only labels the tasks
    path   a .jsonl, .json (list of rows), .parquet, .csv or .arrow file, or a folder made by `save_to_disk`

    Raises TaskError naming the file or set, the row and the column.
    """
    if limit is not None and limit < 1:
        raise TaskError(f"limit is {limit}; give at least 1, or none for the whole set")
    if path is None and name == "micro-swe":
        from data import micro_swe

        return micro_swe.load(split, limit=limit)
    if name.partition(":")[0] == "reasoning-gym":
        from data.reasoning_gym import generate

        return generate(name, split, path, limit)
    known = known_sets().get(name)
    if path is None:
        if name == "maths":
            raise TaskError('the task set "maths" is rows of your own: give their file (tasks.path)')
        if known is not None and split not in known.splits:
            raise TaskError(f"{name} ({known.hub}) has no split {split!r}; it has {', '.join(known.splits)}")
        rows = read_rows(known.hub if known else name, split, subset=known.subset if known else None)
        return _tasks(rows, split, name, "", limit, known)
    place = user_path(path).absolute()
    rows = read_rows(name, split, place)
    base_dir = place if os.path.isdir(place) else place.parent
    source = f"{name} ({place.name})" if name else place.name
    return _tasks(rows, split, source, str(base_dir), limit, known, maths=name == "maths")


def read_rows(
    name: str, split: str, path: str | os.PathLike[str] | None = None, *, subset: str | None = None
) -> Iterable[Mapping[str, Any]]:
    """Bare rows of a hub set, or of `path`. Raises TaskError."""
    if path is None:
        return _hub_rows(name, split, subset)
    place = user_path(path).absolute()
    if "\0" in str(place) or not os.path.exists(place):
        raise TaskError(f"no task set at {shown(place)}: give {_KINDS}")
    return _folder_rows(place, split) if place.is_dir() else _file_rows(place, split)


def _tasks(
    rows: Iterable[Mapping[str, Any]],
    split: str,
    source: str,
    base_dir: str,
    limit: int | None,
    known: TaskSet | None = None,
    *,
    maths: bool = False,
) -> list[Task]:
    tasks: dict[str, Task] = {}
    make = maths_task if maths or (known is not None and known.kind == "maths") else swe_task
    left_out: Counter[str] = Counter()
    with _named_errors(source):
        for number, given in enumerate(rows):
            if limit is not None and len(tasks) == limit:
                break
            _check_texts(given, f"{source}, row {number + 1}")
            try:
                row = known.convert(given, number) if known is not None else given
            except CannotRun as error:
                left_out[error.reason] += 1
                continue
            task = make(row, number, split=split, source=source, base_dir=base_dir)
            if task.task_id in tasks:
                what = "instance_id" if make is swe_task else "id"
                raise TaskError(f"{source}, row {number + 1}: {what} {task.task_id} comes twice; rename or remove one")
            tasks[task.task_id] = task
    reasons = "; ".join(f"{count}: {reason}" for reason, count in left_out.most_common())
    if left_out and not tasks:
        raise TaskError(f"{source}: none of its {left_out.total()} rows can run here ({reasons})")
    if left_out:
        seen = left_out.total() + len(tasks)
        log.warning(
            "%s: %d of %d rows cannot run here, left out (%s); sao tasks validate shows which others are not paid for "
            "their reference fix",
            source,
            left_out.total(),
            seen,
            reasons,
        )
    if not tasks:
        raise TaskError(f"{source} has no rows in split {split}")
    return list(tasks.values())


def _check_texts(row: Mapping[str, Any], where: str) -> None:
    """Raises InputError. A patch may hold half pairs that stand for bytes (`surrogateescape`), nothing else any."""
    check_value({name: value for name, value in row.items() if name not in PATCHES}, where)
    for name in PATCHES:
        if isinstance(patch := row.get(name), str):
            try:
                patch.encode("utf-8", "surrogateescape")
            except UnicodeEncodeError as error:
                raise InputError(
                    f"{where}: column {name} holds half of a surrogate pair (at character {error.start}), which stands "
                    "for no byte"
                ) from error


def _file_rows(place: Path, split: str) -> Iterator[Mapping[str, Any]]:
    if place.suffix not in _READERS:
        raise TaskError(f"{place}: files of type {place.suffix or '(none)'} are not read; use {', '.join(_READERS)}")
    with _named_errors(str(place)):
        regular(place)
    if not place.stat().st_size:
        raise TaskError(f"{place} is empty")
    if place.suffix in (".jsonl", ".json"):
        with _named_errors(str(place)):
            yield from _json_rows(place)
        return
    from datasets import load_dataset

    with _named_errors(str(place)):
        options = _all_text(place) if place.suffix == ".csv" else {}
        # Streaming: rows come straight from the file, no copy in a cache.
        files = {split: str(place)}
        rows = load_dataset(_READERS[place.suffix], data_files=files, split=split, streaming=True, **options)
        for row in rows:
            # An empty cell is the only way that CSV can leave an optional column out.
            yield {name: value for name, value in row.items() if value or name in REQUIRED} if options else row


def _json_rows(place: Path) -> Iterator[Mapping[str, Any]]:
    """Without `datasets`, whose import takes seconds. A row's number is its place from 1, blank lines do not count."""
    # Patches may hold bytes that are no UTF-8; `_tasks` looks at every column.
    lines = (row for _, row in json_lines(place, surrogates=True)) if place.suffix != ".json" else None
    rows = read_json(place, surrogates=True) if lines is None else lines
    if not isinstance(rows, list | Iterator):
        raise TaskError(f"{place} holds a JSON {type(rows).__name__}, expected a list of rows")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise TaskError(f"{place}, row {number}: is a JSON {type(row).__name__}, expected an object")
        yield row


def _all_text(place: Path) -> dict[str, Any]:
    """Reader options for a CSV file: a version "3.10" is no number, an empty cell no null."""
    from datasets import Features, Value

    with open(place, newline="", encoding="utf-8-sig") as file:
        names = next(csv.reader(file), [])
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise TaskError(f"{place}, first line: column {twice[0]!a} comes twice; rename or remove one")
    if not any(name.strip() for name in names):
        raise TaskError(f"{place}, first line: no names of columns")
    return {"features": Features({name: Value("string") for name in names}), "keep_default_na": False}


def _folder_rows(place: Path, split: str) -> Iterable[Mapping[str, Any]]:
    from datasets import DatasetDict, load_from_disk

    with _named_errors(str(place)):
        dataset = load_from_disk(str(place))
    if isinstance(dataset, DatasetDict):
        if split not in dataset:
            raise TaskError(f"{place} has no split {split}; it has {', '.join(dataset)}")
        return dataset[split]
    return dataset


def _hub_rows(name: str, split: str, subset: str | None = None) -> Iterable[Mapping[str, Any]]:
    from datasets import load_dataset

    with _named_errors(f"{name} (a hub dataset; give a path for local files)"):
        return load_dataset(name, subset, split=split)


@contextlib.contextmanager
def _named_errors(what: str) -> Iterator[None]:
    """`datasets` raises whatever its readers raise; the user needs to know for which set."""
    try:
        yield
    except TaskError:
        raise
    except InputError as error:
        raise TaskError(str(error)) from error
    except (Exception, RecursionError) as error:
        raise TaskError(f"{what} cannot be read: {type(error).__name__}: {str(error).strip()[:500]}") from error
