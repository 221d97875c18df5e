"""Workers end with their parent: whatever they do, and whenever it dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from data import with_parent
from tests.patience import PATIENCE_S

BUSY = {
    "computes in C with the interpreter's lock": "sum(range(10**15))",
    "sleeps": "import time; time.sleep(1000)",
    "waits for its input": "import sys; sys.stdin.readline(); import time; time.sleep(1000)",
    "ignores signals": "import signal, time\nfor s in (1, 2, 15): signal.signal(s, signal.SIG_IGN)\ntime.sleep(1000)",
    "has a child that computes": "import os\nos.fork()\nsum(range(10**15))",
}
PARENT = """
import os, subprocess, sys, time
from data import with_parent
pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child = subprocess.Popen(with_parent.command(sys.argv[1]), start_new_session=True, **pipes)
print(child.pid, flush=True)
if sys.argv[2] == "late": child.stdout.readline()
os.kill(os.getpid(), 9)
"""


def gone(group: int) -> bool:
    """No process of the group is left."""
    end = time.monotonic() + PATIENCE_S  # milliseconds on a quiet machine; without the watch they stay for ever
    while time.monotonic() < end:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        if all(p.status() == psutil.STATUS_ZOMBIE for p in psutil.process_iter() if _group(p) == group):
            return True
        time.sleep(0.02)
    return False


def _group(process: psutil.Process) -> int:
    try:
        return os.getpgid(process.pid)
    except OSError:
        return -1


@pytest.mark.parametrize("when", ["at once", "late"])
@pytest.mark.parametrize("what", BUSY)
def test_a_killed_parent_takes_its_worker_along(tmp_path: Path, what: str, when: str) -> None:
    file = tmp_path / "worker.py"
    file.write_text(f"print('up', flush=True)\n{BUSY[what]}\n")
    root = Path(with_parent.__file__).parent.parent
    parent = subprocess.run(
        [sys.executable, "-c", PARENT, str(file), when], stdout=subprocess.PIPE, cwd=root, timeout=60, check=False
    )
    assert parent.returncode == -signal.SIGKILL
    assert gone(int(parent.stdout))


def test_a_worker_that_ends_by_itself_leaves_nothing_and_says_so(tmp_path: Path) -> None:
    file = tmp_path / "worker.py"
    text = "print(__name__, sys.argv[1:], sys.stdin.readline().strip(), sys.path[0])"
    file.write_text(f"import sys\n{text}\nsys.exit(7)\n")
    worker = subprocess.Popen(
        with_parent.command(str(file), "a", "b"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write(b"asked\n")
    worker.stdin.flush()
    assert worker.stdout.read().decode() == f"__main__ ['a', 'b'] asked {tmp_path}\n"  # its end is seen at once
    assert worker.wait(60) == 7
    assert gone(worker.pid)
    worker.stdin.close()
