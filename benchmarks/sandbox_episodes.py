"""Whole micro-SWE episodes on Docker: how many a minute, what is left, and the same for an earlier checkout beside it.

    python -m benchmarks.sandbox_episodes --episodes 1000 [--before /path/to/worktree --before-episodes 250]

Real sandboxes, tools, diffs and hidden tests; the policy is a script, so that the figure is the sandboxes' and not a
model's: every second episode makes the reference fix and must get 1, the others only look and submit and must get 0.
`--before` is a git worktree of another revision; its episodes run half before and half after ours, in the same way, so
that a machine that gets busier does not decide. The last line is one JSON object; exit code 1 when an episode had an
infrastructure error or a wrong verdict, or anything is left.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def reference_edit(row: Any) -> dict[str, str] | None:
    """The fix as one str_replace; None where it is not one line that its file has once."""
    lines = row["patch"].splitlines()
    old = [line[1:] for line in lines if line.startswith("-") and not line.startswith("---")]
    new = [line[1:] for line in lines if line.startswith("+") and not line.startswith("+++")]
    path = next(line[6:] for line in lines if line.startswith("+++ b/"))
    files = json.loads(row["files"]) if isinstance(row["files"], str) else row["files"]
    if len(old) != 1 or len(new) != 1 or files[path].count(old[0]) != 1:
        return None
    return {"path": path, "old_str": old[0], "new_str": new[0]}


async def episodes(count: int, at_once: int, run: str, overrides: list[str]) -> dict[str, Any]:
    """In whatever checkout this process imports from: only what both sides have is used."""
    from agent.engines.scripted import ScriptedPolicy
    from agent.fleet import Fleet, FleetSettings, plan_draws
    from data.trajectory import Status, Trajectory
    from envs.sandbox import SandboxLimits
    from envs.swe import SWEEnvironment, SweLimits
    from envs.tools.toolset import ToolSet
    from sao import assemble
    from sao.assemble import parts_of
    from sao.config import load_config

    try:
        from sao.backend import backend_of
    except ImportError:  # an earlier revision
        backend_of = assemble.backend_of

    settings = [f"rollout.episodes={2 * count + 50}", f"rollout.concurrency={at_once}", "sandbox.backend=docker"]
    config = load_config("demo", [*settings, *overrides])
    parts = parts_of(config)
    renderer: Any = parts.renderer
    edits = [(task, edit) for task in parts.tasks if (edit := reference_edit(task.row))][:count]
    turns: dict[str, list[str]] = {}
    for number, (_, edit) in enumerate(edits):
        fixing = [call("str_replace", **edit)] if number % 2 == 0 else []
        turns[f"{run}-{number:06d}-0"] = [call("view", path=edit["path"]), "\n".join([*fixing, call("submit")])]
    limits = parts.preset.limits.model_copy(update={"max_context": 8000, "max_tokens": 4000})
    backend = await backend_of(config, run)
    swe = SweLimits(sandbox=SandboxLimits(memory_bytes=256 << 20), episode_s=600)
    kept: list[Trajectory] = []
    began, busy = time.perf_counter(), time.process_time()
    try:
        await backend.reap()
        fleet = Fleet(
            ScriptedPolicy(turns, encode=renderer.action_ids),
            renderer,
            parts.preset,
            lambda task: SWEEnvironment(task, backend, ToolSet(parts.preset.tools), swe),
            kept.append,
            FleetSettings(run, 0, episodes_at_once=at_once, max_attempts=1, sandbox="docker"),
            limits=limits,
        )
        await fleet.run(plan_draws([task for task, _ in edits]))
        seconds = time.perf_counter() - began
    finally:
        await backend.close()
    graded = [one for one in kept if one.outcome.status is Status.GRADED]
    wrong = [one for one in graded if one.outcome.reward != float(one.identity.draw % 2 == 0)]
    errors = Counter(str(one.outcome.grade)[:300] for one in kept if one.outcome.status is not Status.GRADED)
    return {
        "episodes": len(kept),
        "graded": len(graded),
        "passed": sum(one.outcome.reward == 1.0 for one in graded),
        "wrong_verdicts": len(wrong),
        "infrastructure_errors": dict(errors),
        "seconds": seconds,
        "driver_cpu_s": time.process_time() - busy,
    }


def block(checkout: Path, count: int, at_once: int, run: str, overrides: list[str]) -> dict[str, Any]:
    """`count` episodes by a process of their own that imports from `checkout`."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    words = [sys.executable, str(Path(__file__).resolve()), "--worker", run, "--episodes", str(count)]
    words += ["--at-once", str(at_once), *(f"--set={override}" for override in overrides)]
    done = subprocess.run(words, cwd=checkout, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"the episodes of {checkout} ended with exit code {done.returncode}: its message is above")
    return json.loads(done.stdout.splitlines()[-1])


def left(runs: list[str]) -> list[str]:
    """What the engine still has of these runs, after a moment for what is just ending."""
    from envs.sandbox.docker_engine import connect
    from envs.sandbox.docker_survey import survey

    with connect() as engine:
        for _ in range(40):
            found = [f"{one.kind} {one.name}" for one in survey(engine.api()) if one.run in runs]
            if not found:
                break
            time.sleep(0.25)
    return found


def together(blocks: list[dict[str, Any]]) -> dict[str, Any]:
    total: dict[str, Any] = {}
    for name, value in blocks[0].items():
        if isinstance(value, dict):
            total[name] = {key: one[name][key] for one in blocks for key in one[name]}
        else:
            total[name] = sum(one[name] for one in blocks)
    total["episodes_per_minute"] = 60 * total["episodes"] / total["seconds"]
    return total


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--before", type=Path, help="a git worktree of an earlier revision")
    parser.add_argument("--before-episodes", type=int, default=250)
    parser.add_argument(
        "--set", action="append", default=[], help="section.key=value for ours, e.g. sandbox.pool.ready=0"
    )
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        print(json.dumps(asyncio.run(episodes(arguments.episodes, arguments.at_once, arguments.worker, arguments.set))))
        return 0
    stamp = f"episodes-{int(time.time())}"
    plan = [("after", ROOT, arguments.episodes)]
    if arguments.before:
        half = max(1, arguments.before_episodes // 2)
        before = ("before", arguments.before.resolve(), half)
        plan = [before, *plan, before]
    results: dict[str, list[dict[str, Any]]] = {}
    runs = []
    for number, (name, checkout, count) in enumerate(plan):
        runs.append(f"{stamp}-{number}")
        done = block(checkout, count, arguments.at_once, runs[-1], arguments.set if name == "after" else [])
        results.setdefault(name, []).append(done)
        rate = 60 * done["episodes"] / done["seconds"]
        print(f"{name}: {done['episodes']} episodes, {rate:.0f} a minute, {done}", file=sys.stderr, flush=True)
    facts: dict[str, Any] = {name: together(blocks) for name, blocks in results.items()}
    facts["left"] = left(runs)
    if "before" in facts:
        facts["speedup"] = facts["after"]["episodes_per_minute"] / facts["before"]["episodes_per_minute"]
    print(json.dumps(facts))
    after = facts["after"]
    return int(bool(after["infrastructure_errors"] or after["wrong_verdicts"] or facts["left"]))


if __name__ == "__main__":
    sys.exit(main())
