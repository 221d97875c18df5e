"""Nothing an episode does holds up the others: attacks in a real sandbox, and the loop's delays meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from agent.pulse import Pulse, PulseWatch
from envs.environment import Grade
from envs.sandbox.contract import SandboxBackend
from envs.swe import SWEEnvironment
from tests.envs.swe_support import call, embedded, run, tiny_task
from tests.patience import PATIENCE_S

_OLD = "cat tests/test_old.py >>x; mv x tests/test_old.py"
ATTACKS = {
    "files": "mkdir new; cd new; seq 20000 | xargs touch; for n in 1 2 3; do seq $n 50000 >$n; done",
    "log": f"echo 'print(\"x::y PASSED (\" * 1000000)' >x; {_OLD}",
    "tests": f"echo 'for n in range(300000): print(\"test_%d (a.B) ... ok\" % n)' >x; {_OLD}",
    "edits": "yes 'return a - b' | head -c 8000000 >big.py; yes \"$(printf '\\033[50Bx\\033[2J')\" | head -c 300000",
}


async def attacked(backend: SandboxBackend, script: str) -> tuple[Grade, Pulse]:
    environment = SWEEnvironment(tiny_task(), backend)
    try:
        await environment.reset()
        async with PulseWatch() as watch:
            made = await environment.step(call("bash", command=script))
            assert made.error is None, made.text
            await environment.step(call("bash", command="head -c 1000000 /dev/urandom"))
            for old in ("return a - b", "returm a - b"):
                refused = await environment.step(call("str_replace", path="big.py", old_str=old, new_str="x"))
                assert refused.error in ("old_str_not_unique", "old_str_not_found", "no_such_file")
            grade = await environment.grade()
        return grade, watch.pulse
    finally:
        await environment.close()


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_holds_up_nobody(name: str) -> None:
    async def work(backend: SandboxBackend) -> tuple[Grade, Pulse]:
        return await asyncio.wait_for(attacked(backend, ATTACKS[name]), PATIENCE_S)

    grade, pulse = run(work, embedded())
    assert grade.reward == 0.0
    assert pulse.stalls == 0, pulse.summary()
