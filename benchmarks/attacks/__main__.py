"""Attacks on the graders of training and evaluation: patches and agents that mend nothing, and honest ones beside them.

    python -m benchmarks.attacks --quick       # embedded sandboxes alone, two of three inputs, each once
    python -m benchmarks.attacks               # all layouts on all backends that answer

The last line is JSON. `fooled`: reward 1 in training, or resolved in evaluation without a finding, although the patch
mends nothing. `paid_when_flagged`: reward 1 beside a finding that should have been decisive. `honest_refused`: right
patches that are not paid, or that evaluation flags. `false_alarms_of_500`: of real patches, by what stands in the patch
alone. `faults_of_agents_making`: what an agent or patch did ended as a fault of ours. `beyond`: named limits
(docs/threat-model.md). `worst_loop_stall_ms`: how long the driver's event loop stood still.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from agent.pulse import LIMIT_S, Pulse, PulseWatch
from benchmarks.attacks import ATTACKS
from benchmarks.attacks.judge import Arena, Outcome, Trial
from benchmarks.attacks.layouts import DOCKER, EMBEDDED, micro, r2e, smith, toy, unit
from benchmarks.attacks.real_patches import false_alarms
from benchmarks.attacks.site import Site
from envs.sandbox import make_backend
from envs.sandbox.contract import BackendUnavailable


def trials(sites: Sequence[Site], backends: Sequence[str], only: str = "", *, quick: bool = False) -> list[Trial]:
    """`quick`: without slow acts, two of three inputs, each of them once: layouts and graders take turns."""
    made: list[Trial] = []
    for site, attack in itertools.product(sites, ATTACKS):
        if not attack.fits(site) or only not in f"{attack.kind}: {attack.name}" or (quick and attack.slow):
            continue
        if attack.make is None and not attack.sites and site.name != "micro":
            continue
        if attack.make is not None and attack.make(site) is None:
            continue
        judges = site.judges if attack.make is not None else ("train",)
        found = itertools.product([name for name in backends if name in site.backends], judges)
        made += [Trial(attack, site, backend, judge) for backend, judge in found]
    return _each_once(made) if quick else made


def _each_once(made: Sequence[Trial]) -> list[Trial]:
    inputs: dict[tuple[str, str], list[Trial]] = {}
    for trial in made:
        inputs.setdefault((trial.attack.kind, trial.attack.name), []).append(trial)
    return [ways[place % len(ways)] for place, ways in enumerate(inputs.values()) if place % 3 != 2]


async def run(
    todo: Sequence[Trial], names: Sequence[str], workers: int, tell: Callable[[Outcome], None] | None = None
) -> tuple[list[Outcome], Pulse]:
    """What came of each trial, and how late the loop ran."""
    backends = {name: await asyncio.to_thread(make_backend, name, "attacks") for name in names}
    try:
        with tempfile.TemporaryDirectory(prefix="attacks-") as folder:
            async with Arena(backends, Path(folder), workers, tell) as arena, PulseWatch() as watch:
                done = await arena.run(todo)
                return done, watch.pulse
    finally:
        for backend in backends.values():
            await backend.close()


def worst_stall_s(pulse: Pulse) -> float:
    """Of the stalls in which the loop itself worked; a machine that is busy with other work makes it late too."""
    for stall in pulse.longest:
        print(f"the loop stood still for {1000 * stall.seconds:.0f} ms: {stall.where}")
    return max((stall.seconds for stall in pulse.longest), default=min(pulse.worst_s, LIMIT_S))


def show(each: Outcome, everything: bool) -> None:
    words = [word for word in ("fooled", "paid_when_flagged", "refused") if getattr(each, word)]
    words += ["fault"] if each.fault else []
    words += ["beyond"] if each.trial.attack.beyond and each.paid else []
    if words or everything:
        name = f"{each.trial.where:22} {each.trial.attack.kind}: {each.trial.attack.name}"
        print(f"{','.join(words) or ('paid' if each.paid else 'not paid'):8} {each.seconds:5.2f} {name}", flush=True)
        for line in (each.fault, each.reason, *each.findings[:3]):
            if line and (everything or each.fault or each.refused):
                print(f"           {line.strip()[:300]!r}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="embedded sandboxes alone, under 50 s")
    parser.add_argument("--layouts", default="micro,unit,toy,smith,r2e")
    parser.add_argument("--backends", default="")
    parser.add_argument("--only", default="", help="attacks whose kind and name hold this text")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--all", action="store_true", help="show every trial")
    given = parser.parse_args()
    names = given.backends.split(",") if given.backends else [EMBEDDED] if given.quick else [EMBEDDED, DOCKER]
    wanted = given.layouts.split(",")
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        sites = [make() for name, make in (("micro", micro), ("unit", unit)) if name in wanted]
        if DOCKER in names:
            try:
                make_backend(DOCKER, "attacks-look")
            except BackendUnavailable as error:
                print(f"NOT ATTACKED: layouts that need a Docker engine: {error}", file=sys.stderr)
                names = [name for name in names if name != DOCKER]
        if DOCKER in names:
            sites += [toy()] if "toy" in wanted else []
            sites += [stack.enter_context(smith())] if "smith" in wanted else []
            sites += [stack.enter_context(r2e())] if "r2e" in wanted else []
        done, pulse = asyncio.run(
            run(
                trials(sites, names, given.only, quick=given.quick),
                names,
                given.workers,
                lambda each: show(each, given.all),
            )
        )
    attacks = [each for each in done if not each.trial.attack.fixes]
    for kind, count in sorted(Counter(each.trial.attack.kind for each in done).items()):
        print(f"{kind:26} {count:4}")
    result = {
        "tried": len(attacks),
        "inputs": len({(each.trial.attack.kind, each.trial.attack.name) for each in attacks}),
        "fooled": sum(each.fooled for each in attacks),
        "paid_when_flagged": sum(each.paid_when_flagged for each in done),
        "honest": len(done) - len(attacks),
        "honest_refused": sum(each.refused for each in done),
        "false_alarms_of_500": false_alarms(),
        "faults_of_agents_making": sum(bool(each.fault) for each in done),
        "beyond": sum(bool(each.trial.attack.beyond) and each.paid for each in attacks),
        "worst_loop_stall_ms": round(1000 * worst_stall_s(pulse)),
        "seconds": round(time.monotonic() - began, 1),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
