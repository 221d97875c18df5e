"""What a step reports, to a JSONL file always and to trackers where asked.

Promises: one line a step, appended whole; a torn last line (crash) is cut off by the next writer; steps that a crash
took back are written again later, so a reader takes the last line of each step (`read_metrics`). Trackers are imported
when asked for; one that is missing is an error before training, one that fails later is reported once and left out.
"""

from __future__ import annotations

import abc
import importlib.util
import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from data.reading import InputError, parse_json, read_bytes

_log = logging.getLogger(__name__)


class MetricsError(RuntimeError):
    """A tracker was asked for that is not installed."""


class Tracker(abc.ABC):
    """Takes flat numbers by name."""

    @abc.abstractmethod
    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    @abc.abstractmethod
    def close(self) -> None: ...


class _TensorBoard(Tracker):
    def __init__(self, folder: Path, run: str, settings: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"))
        self._writer.add_text("settings", f"```\n{json.dumps(settings, indent=1)}\n```")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _RunTracker(Tracker):
    """W&B and trackio share their calls."""

    def __init__(self, module: str, folder: Path, run: str, settings: Mapping[str, Any]) -> None:
        import importlib

        tracker = importlib.import_module(module)
        options = {"dir": str(folder)} if module == "wandb" else {}
        self._run = tracker.init(project="sao", name=run, config=dict(settings), **options)
        self._tracker = tracker

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._tracker.log(dict(values), step=step)

    def close(self) -> None:
        self._tracker.finish()


def open_tracker(name: str, folder: Path, run: str, settings: Mapping[str, Any]) -> Tracker:
    """Raises MetricsError when the package is not installed."""
    check_trackers([name])
    try:
        if name == "tensorboard":
            return _TensorBoard(folder, run, settings)
        return _RunTracker(name, folder, run, settings)
    except ImportError as error:
        raise MetricsError(_not_installed(name, str(error))) from error


def check_trackers(names: Sequence[str]) -> None:
    """Before anything starts. Raises MetricsError for a package that is not installed."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise MetricsError(_not_installed(name, "no such package"))


def _not_installed(name: str, why: str) -> str:
    return (
        f"the tracker {name!r} is not installed ({why}): `EXTRAS=dev,{name} make install` gets it, or take it out of "
        "train.trackers. metrics.jsonl is written in any case"
    )


class MetricsWriter:
    def __init__(self, path: Path, trackers: Sequence[Tracker] = ()) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _cut_torn_line(path)
        self._file = path.open("a", encoding="utf-8")
        self._trackers = list(trackers)

    def write(self, line: Mapping[str, Any]) -> None:
        """`line` is JSON-able and has a step. Trackers get its numbers, nested names joined by a slash."""
        self._file.write(json.dumps(finite(line), allow_nan=False) + "\n")
        self._file.flush()
        values = dict(flat_numbers(line))
        for tracker in list(self._trackers):
            try:
                tracker.log(int(line["step"]), values)
            except Exception as error:  # a service that is down must not end the training; metrics.jsonl has it all
                self._trackers.remove(tracker)
                _log.warning("%s failed and is left out from here on: %s", type(tracker).__name__, error)

    def close(self) -> None:
        self._file.close()
        for tracker in self._trackers:
            tracker.close()


def finite(value: Any) -> Any:
    """The same with what is no number as None: JSON has no NaN, and undefined is missing."""
    if isinstance(value, Mapping):
        return {str(name): finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def flat_numbers(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, bool) or value is None:
            continue
        if isinstance(value, int | float):
            if math.isfinite(value):
                yield f"{prefix}{name}", float(value)
        elif isinstance(value, Mapping):
            yield from flat_numbers(value, f"{prefix}{name}/")
        elif isinstance(value, list | tuple) and value and all(isinstance(item, int | float) for item in value):
            yield from ((f"{prefix}{name}/{index}", float(item)) for index, item in enumerate(value))


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The last line of each step, by step; empty where there is none yet. A torn last line is left out. Raises
    MetricsError for a line that is no step's."""
    if not path.exists():
        return []
    try:
        whole = read_bytes(path).rpartition(b"\n")[0]
        lines = [
            (number, parse_json(line.decode("utf-8", "replace"), f"{path}, line {number}"))
            for number, line in enumerate(whole.split(b"\n"), 1)
            if line
        ]
    except InputError as error:
        raise MetricsError(f"{error}. Remove the line, or the file: training does not need it") from error
    by_step: dict[int, dict[str, Any]] = {}
    for number, line in lines:
        if not isinstance(line, dict) or not isinstance(line.get("step"), int):
            raise MetricsError(f"{path}, line {number}: no line of metrics (an object with the whole number step)")
        by_step[line["step"]] = line
    return [by_step[step] for step in sorted(by_step)]


def _cut_torn_line(path: Path) -> None:
    if not path.exists():
        return
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with path.open("r+b") as file:
            file.truncate(whole)
