from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from trainer.metrics import (
    MetricsError,
    MetricsWriter,
    Tracker,
    check_trackers,
    flat_numbers,
    open_tracker,
    read_metrics,
)


class Memory(Tracker):
    def __init__(self) -> None:
        self.lines: list[tuple[int, dict[str, float]]] = []

    def log(self, step: int, values) -> None:
        if step == 1:
            raise ConnectionError("the service is down")
        self.lines.append((step, dict(values)))

    def close(self) -> None:
        pass


def test_a_line_a_step_and_the_last_of_a_step_counts(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for reward in (0.1, 0.2):
        writer = MetricsWriter(path)
        for step in range(2):
            writer.write({"step": step, "reward": reward, "loss": math.nan})
        writer.close()
    with path.open("a") as file:
        file.write('{"step": 2, "rew')
    assert [(line["step"], line["reward"], line["loss"]) for line in read_metrics(path)] == [
        (0, 0.2, None),
        (1, 0.2, None),
    ]
    MetricsWriter(path).close()
    assert path.read_text().endswith("}\n"), "a torn line is cut off by the next writer"
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_a_tracker_that_fails_is_left_out_and_the_file_goes_on(tmp_path: Path) -> None:
    memory = Memory()
    writer = MetricsWriter(tmp_path / "m.jsonl", [memory])
    for step in range(3):
        writer.write({"step": step, "seconds": {"actor": 0.5}, "losses": [1.0, 2.0], "text": "x", "none": None})
    assert memory.lines == [(0, {"step": 0.0, "seconds/actor": 0.5, "losses/0": 1.0, "losses/1": 2.0})]
    assert len(read_metrics(tmp_path / "m.jsonl")) == 3


def test_flat_numbers_leave_out_what_is_no_number() -> None:
    assert dict(flat_numbers({"a": True, "b": math.inf, "c": 1, "d": ["x"]})) == {"c": 1.0}


def test_a_tracker_that_is_not_installed_is_said_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    for name in ("trackio", "wandb"):
        monkeypatch.setitem(sys.modules, name, None)
        said = f"the tracker '{name}' .* `EXTRAS=dev,{name} make install`"
        with pytest.raises(MetricsError, match=said):
            open_tracker(name, tmp_path, "run", {})
        with pytest.raises(MetricsError, match=said):
            check_trackers([name])


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "trackio"])
def test_a_real_tracker_takes_the_numbers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each where it is installed (an extra each), offline."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip(name, reason=f"NOT RUN WITH {name}: it is not installed (extra {name})")
    tracker = open_tracker(name, tmp_path, "run", {"train": {"steps": 2}})
    failures: list[str] = []
    monkeypatch.setattr("trainer.metrics._log.warning", lambda text, *values: failures.append(text % values))
    writer = MetricsWriter(tmp_path / "metrics.jsonl", [tracker])
    for step in range(2):
        writer.write({"step": step, "reward": 0.5, "seconds": {"total": 1.0}, "undefined": None})
    writer.close()
    assert failures == []
    files = {path.name for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size}
    wanted = {"tensorboard": r"events\.out", "wandb": r"run-.*\.wandb", "trackio": r"sao\.db"}[name]
    assert any(re.match(wanted, file) for file in files), files
