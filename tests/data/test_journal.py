from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from data.journal import DISPATCHED, FINISHED, RETRIED, Journal, JournalError
from data.log import LogError


def test_lines_come_back_in_order(tmp_path: Path) -> None:
    before = time.time()
    with Journal(tmp_path / "run" / "journal.jsonl") as journal:
        journal.write(DISPATCHED, draw=0, episode_id="a", task_id="t")
        journal.write(RETRIED, draw=0, episode_id="b", reason="sandbox_error")
        journal.write(FINISHED, draw=0, episode_id="b")
        journal.write("step", step=1, episode_ids=["b"], seed=3, configuration="hash")
    entries = Journal(tmp_path / "run" / "journal.jsonl").read()
    assert [(entry.event, entry.draw, entry.episode_id) for entry in entries] == [
        ("dispatched", 0, "a"),
        ("retried", 0, "b"),
        ("finished", 0, "b"),
        ("step", None, None),
    ]
    assert entries[1].fields == {"reason": "sandbox_error"}
    assert entries[3].fields == {"step": 1, "episode_ids": ["b"], "seed": 3, "configuration": "hash"}
    assert before <= entries[0].time <= entries[3].time <= time.time()


def test_what_is_unfinished(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        for draw in range(4):
            journal.write(DISPATCHED, draw=draw, episode_id=f"e{draw}")
        journal.write(FINISHED, draw=0, episode_id="e0")
        journal.write(RETRIED, draw=1, episode_id="e1-again")
        assert journal.unfinished() == {1: "e1-again", 2: "e2", 3: "e3"}
        # e3 is in the log, its line was lost with the process
        assert journal.unfinished({"e0", "e3"}) == {1: "e1-again", 2: "e2"}


def test_torn_at_every_byte_of_the_last_line(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with Journal(path) as journal:
        journal.write(DISPATCHED, draw=0, episode_id="a")
        start = path.stat().st_size
        journal.write(FINISHED, draw=0, episode_id="é")
    content = path.read_bytes()
    for cut in range(start, len(content)):
        path.write_bytes(content[:cut])
        reader = Journal(path)
        assert [entry.event for entry in reader] == [DISPATCHED]
        torn = [f"torn last line in {path} at byte {start} ({cut - start} bytes): ignored"] * (cut > start)
        assert reader.problems == torn
        with Journal(path) as writer:
            writer.write(RETRIED, draw=0, episode_id="b")
            assert len(writer.problems) == (cut > start)
        assert [entry.event for entry in Journal(path)] == [DISPATCHED, RETRIED]


def test_a_journal_torn_in_its_first_line_starts_again(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_text('{"format": "sao-jou')
    assert Journal(path).read() == []
    with Journal(path) as journal:
        journal.write(DISPATCHED, draw=0, episode_id="a")
    assert len(Journal(path).read()) == 1


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ('{"format": "sao-journal", "version": 2}\n', "format version 2, this program reads version 1"),
        ('{"format": "other", "version": 1}\n', "no journal"),
        ("hello\n", "line 1 is no journal line"),
        ('{"format": "sao-journal", "version": 1}\n{"event": \n', "line 2 is no journal line"),
        ('{"format": "sao-journal", "version": 1}\n{"event": "x"}\n', "line 2 is no journal line"),
        ('{"format": "sao-journal", "version": 1}\n[]\n', "line 2 is no journal line"),
    ],
)
def test_files_that_are_no_journal_are_refused(tmp_path: Path, content: str, text: str) -> None:
    path = tmp_path / "j"
    path.write_text(content)
    with pytest.raises(JournalError, match=text):
        Journal(path).read()
    with pytest.raises(JournalError, match=text):
        Journal(path).write(DISPATCHED, draw=0, episode_id="a")
    assert path.read_text() == content


def test_wrong_lines_are_refused(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        with pytest.raises(JournalError, match="names its draw and episode"):
            journal.write(FINISHED, draw=1)
        with pytest.raises(JournalError, match="journal's own"):
            journal.write("step", time=3)
        with pytest.raises(JournalError, match="cannot be stored as JSON"):
            journal.write("step", loss=float("nan"))
    assert Journal(tmp_path / "j").read() == []
    assert issubclass(JournalError, LogError)


def test_one_writer(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as first:
        first.write("step", step=1)
        with pytest.raises(JournalError, match="another process writes"):
            Journal(tmp_path / "j").write("step", step=2)
        assert len(Journal(tmp_path / "j").read()) == 1
    with Journal(tmp_path / "j") as second:
        second.write("step", step=2)


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    with Journal(tmp_path / "j") as journal:
        journal.write("step", step=1)

        def half(descriptor: int, data: bytes, offset: int) -> int:
            if len(data) < 20:
                raise OSError(28, "No space left on device")
            return real(descriptor, data[: len(data) // 2], offset)

        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", half)
            with pytest.raises(JournalError, match=r"No space left on device.*lines before it are safe. Free space"):
                journal.write("step", step=2)
        journal.write("step", step=3)
    reader = Journal(tmp_path / "j")
    assert [entry.fields["step"] for entry in reader] == [1, 3]
    assert reader.problems == []


def test_sigkill_loses_no_line(tmp_path: Path) -> None:
    code = (
        "import itertools, sys; from data.journal import Journal\n"
        "journal = Journal(sys.argv[1])\n"
        "start = len(journal.read())\n"
        "for step in itertools.count(start):\n"
        "    journal.write('step', step=step); print(step, flush=True)\n"
    )
    path, last = tmp_path / "j", -1
    for turn in range(4):
        command = [sys.executable, "-c", code, str(path)]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
        assert writer.stdout is not None
        lines = [writer.stdout.readline()]
        time.sleep(0.01 * turn)
        writer.send_signal(signal.SIGKILL)
        lines += writer.stdout.readlines()
        writer.wait()
        last = max([last, *(int(line) for line in lines if line.endswith("\n"))])
        steps = [entry.fields["step"] for entry in Journal(path)]
        assert steps == list(range(len(steps)))
        assert len(steps) > last
    assert json.loads(path.read_text().splitlines()[0]) == {"format": "sao-journal", "version": 1}
