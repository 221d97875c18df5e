"""Writers that are killed. Run as a module: DIRECTORY ROUNDS SEED LONGEST_S SHARD_SIZE.

Each round forks a writer that appends (and seals, every few records and now and then by itself) as fast as it can and
writes the number of each episode to the acknowledgement pipe once `append` has returned. After a random time (in two
rounds of three counted from the first acknowledgement) it gets SIGKILL. Prints one JSON line per round: the numbers
acknowledged so far, and the ids that a reader finds afterwards. The parent itself never touches Arrow, whose thread
pools do not survive a fork; the reader is a fork too.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sys
import time

from data.log import TrajectoryLog
from tests.data.trajectories import episode


def write_forever(directory: str, shard_size: int, acknowledge: int, seed: int) -> None:
    rng = random.Random(seed)
    log = TrajectoryLog(directory, shard_size=shard_size).open()
    number = 1 + max((int(name.split("-")[1]) for name in log.episode_ids()), default=-1)
    while True:
        log.append(episode(number, size=rng.choice([1, 50, 3000])))
        os.write(acknowledge, b"%d\n" % number)
        number += 1
        if rng.random() < 0.05:
            log.seal()


def report(directory: str, acknowledged: list[int]) -> None:
    log = TrajectoryLog(directory)
    found = [trajectory.identity.episode_id for trajectory, _ in log.tail()]
    problems = [f"{problem.kind}" for problem in log.report]
    print(json.dumps({"acknowledged": acknowledged, "found": found, "problems": problems}), flush=True)


def main(directory: str, rounds: int, seed: int, longest_s: float, shard_size: int) -> None:
    rng = random.Random(seed)
    acknowledged: list[int] = []
    for turn in range(rounds):
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read_end)
            write_forever(directory, shard_size, write_end, seed * 1000 + turn)
        os.close(write_end)
        if turn % 3:  # else it may die while it opens the log
            select.select([read_end], [], [], 20)
        time.sleep(rng.uniform(0, longest_s))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with os.fdopen(read_end) as pipe:
            acknowledged += [int(line) for line in pipe]
        reader = os.fork()
        if reader == 0:
            report(directory, acknowledged)
            os._exit(0)
        os.waitpid(reader, 0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]))
