"""One side of a training run as a process of its own: `sao/start.py train_worker rollouts|trainer RUN`.

`sao train` starts both, by `data.with_parent`: a side is killed when its parent died, however it died. A word on its
standard input tells it to stop. Exit codes: 0 at its end or stopped, 3 an error for the user (one paragraph), else a
bug.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from pathlib import Path

STOP_GRACE_S = 60.0
"""How long a side that was told to stop may take before it ends the hard way (the other end may be gone)."""
LOCK_WAIT_S = 60.0
FATAL = 3


def _await_word(stopping: threading.Event) -> None:
    def wait() -> None:
        os.read(0, 1)  # not sys.stdin: its lock would be held at the interpreter's end
        stopping.set()
        time.sleep(STOP_GRACE_S)
        os._exit(FATAL)

    threading.Thread(target=wait, name="word", daemon=True).start()


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def run_trainer(run: Path, stopping: threading.Event) -> None:
    """Load or restore the learner and train to the plan's end, or until `stopping`."""
    import torch

    from sao.paths import model_folder
    from sao.rundir import read_config
    from sao.train_setup import make_trainer

    config = read_config(run)
    torch.set_num_threads(config.train.threads)
    trainer = make_trainer(config, run, model_folder(config.model.path), _say)
    try:
        trainer.run(stopping.is_set)
    finally:
        trainer.close()


def run_side(side: str, run: Path, stopping: threading.Event) -> None:
    """Until the side's end, or until `stopping`."""
    if side == "trainer":
        run_trainer(run, stopping)
        return
    from sao.rundir import read_config
    from sao.train_rollouts import run_rollouts

    asyncio.run(run_rollouts(read_config(run), run, stopping))


def main() -> int:
    side, run = sys.argv[1], Path(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides, through our standard input
    from transformers.utils import logging as transformers_logging

    from data.journal import JournalError
    from data.log_report import LogLocked
    from sao.errors import exit_code_and_text

    transformers_logging.disable_progress_bar()
    stopping = threading.Event()
    _await_word(stopping)
    began = time.monotonic()
    while True:
        try:
            run_side(side, run, stopping)
            return 0
        except (LogLocked, JournalError) as error:
            # A killed run's processes may still be on their way out.
            if time.monotonic() - began > LOCK_WAIT_S or "process" not in str(error):
                _say(f"error: {error}")
                return FATAL
            _say(f"waiting: {error}")
            time.sleep(1.0)
        except Exception as error:
            known = exit_code_and_text(error)
            if known is None:
                raise
            _say(f"error: {known[1]}")
            return FATAL
