"""The demo's study: three seeds of SAO and its controls, each scored before and after on tasks it never trained on.

    make study                                     # all of it, about an hour on two cores; goes on where it stopped
    python -m benchmarks.demo_study --report-only  # write the page again from the runs that are there

Each run is a `sao train` of its own under runs/study/; one that is finished is not run again. The page
(docs/results/demo.md and demo.svg) is made from the runs' files alone. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.micro_swe import constant_policy_rates
from eval.statistics import wilson_interval
from sao.plot import plot, smooth
from sao.train_files import HELDOUT, read_json, read_lines
from trainer.metrics import read_metrics
from trainer.paths import TrainerPaths

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Run:
    name: str
    title: str
    seed: int
    options: tuple[str, ...] = ()
    critic_of: str = ""
    """Run whose pretrained critic this one starts from: equal data, and no frozen episodes of its own."""


def plan(seeds: Sequence[int]) -> list[Run]:
    first = f"sao-{seeds[0]}"
    runs = [Run(f"sao-{seed}", f"SAO, seed {seed}", seed) for seed in seeds]
    blind = ("--set", "agent.blind=true", "--set", "train.value_episodes=0")
    return [
        *runs,
        Run("blind", "observation-blind policy, trained equally", seeds[0], blind),
        Run(
            "no-critic", "critic off: global running mean (window 128)", seeds[0], ("--control", "running_mean_global")
        ),
        Run("k1", "K = 1: one critic update per policy update", seeds[0], ("--control", "one_critic_update"), first),
    ]


def command(run: Run, folder: Path, arguments: argparse.Namespace) -> list[str]:
    parts = [sys.executable, "-m", "sao", "train", "--config", arguments.config, "--plain", "--run"]
    parts += [str(folder / run.name), "--seed", str(run.seed), "--score", str(arguments.score), *run.options]
    parts += ["--critic", str(folder / run.critic_of / "critic")] if run.critic_of else []
    parts += ["--sandbox", arguments.sandbox] if arguments.sandbox else []
    return parts + [part for value in arguments.set for part in ("--set", value)]


def facts(folder: Path, run: Run) -> dict[str, Any] | None:
    """What the page says of one run; None while it is not finished."""
    summary = read_json(folder / run.name / "summary.json")
    if not summary:
        return None
    metrics = read_metrics(TrainerPaths(folder / run.name).metrics)
    rewards = [line["reward"] for line in metrics]
    explained = [line["explained_variance"] for line in metrics if line.get("explained_variance") is not None]
    return {
        "run": run,
        "scores": summary["scores"],
        "seconds": summary["seconds"],
        "steps": len(metrics),
        "batch": metrics[0]["trajectories"],
        "first": sum(rewards[:10]) / len(rewards[:10]),
        "last": sum(rewards[-10:]) / len(rewards[-10:]),
        "explained": sum(explained[-20:]) / len(explained[-20:]) if explained else None,
        "rejected": mean(metrics, "rejected_share"),
        "staleness": mean(metrics, "staleness_mean"),
        "alarms": sum(len(line.get("alarms", ())) for line in metrics),
        "dropped": metrics[-1].get("dropped") or {},
        "faults": summary["faults"],
        "curve": smooth([(float(line["step"]), float(line["reward"])) for line in metrics], 10),
        "heldout": [(line["step"], line["rate"]) for line in read_lines(folder / run.name / HELDOUT)],
    }


def mean(metrics: Sequence[dict[str, Any]], name: str) -> float:
    """Over the steps that have it: critic-only ones reject nothing."""
    values = [line[name] for line in metrics if line.get(name) is not None]
    return sum(values) / max(len(values), 1)


def rate(score: dict[str, Any]) -> str:
    low, high = wilson_interval(score["passed"], score["graded"])
    return f"{score['rate']:.3f} [{low:.3f}, {high:.3f}] ({score['passed']}/{score['graded']})"


def gap(known: dict[str, Any], split: str) -> float:
    """Lower 95 % bound after minus upper bound before."""
    before, after = known["scores"][f"before/{split}"], known["scores"][f"after/{split}"]
    return after["wilson_95"][0] - before["wilson_95"][1]


def machine() -> str:
    model = ""
    if (info := Path("/proc/cpuinfo")).is_file():
        named = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        model = f", {named[0]}" if named else ""
    return f"{os.cpu_count()} cores{model}, {platform.system()}, Python {platform.python_version()}, no GPU used"


def page(known: Sequence[dict[str, Any]], arguments: argparse.Namespace) -> str:
    blind = constant_policy_rates("heldout")
    lines = [
        "# The demo's study: does the policy learn from its own sandbox episodes?",
        "",
        f"Made by `{arguments.made_by}` on {machine()}. Every run is `sao train --config {arguments.config}`: episodes "
        f"in {arguments.sandbox or 'the configured'} sandboxes, sampled at temperature 1; scores on held-out task "
        "templates (and on a family of templates that training never shows), one episode a task, 95 % Wilson.",
        "",
        "| run | held-out before | held-out after | lower bound after − upper bound before | unseen before | after |",
        "|---|---|---|---|---|---|",
    ]
    for one in known:
        scores = one["scores"]
        lines.append(
            f"| {one['run'].title} | {rate(scores['before/heldout'])} | {rate(scores['after/heldout'])} | "
            f"{gap(one, 'heldout'):+.3f} | {rate(scores['before/unseen'])} | {rate(scores['after/unseen'])} |"
        )
    lines += [
        "",
        "What can be scored without reading the docstring's hint (`python -m data.micro_swe --rates`, held-out, "
        f"{blind.sample} tasks): best constant action {blind.constant_action:.3f}; perfect finding and copying with "
        f"the best constant choice per kind {blind.choice_per_kind:.3f}, a uniform guess {blind.uniform_guess:.3f}.",
        "",
        "![training reward](demo.svg)",
        "",
        "Training reward, mean of 10 steps, every run.",
        "",
        "| run | steps × batch | train reward, first and last 10 steps | explained variance, last 20 | rejected "
        "tokens | mean staleness | alarms | dropped draws | minutes: frozen episodes + value pretraining + training |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in known:
        spent = one["seconds"]
        minutes = [spent.get(name, 0.0) / 60 for name in ("frozen episodes", "value pretraining", "training")]
        explained = "—" if one["explained"] is None else f"{one['explained']:.2f}"
        lines.append(
            f"| {one['run'].title} | {one['steps']} × {one['batch']} | {one['first']:.3f} → {one['last']:.3f} | "
            f"{explained} | {one['rejected']:.2%} | {one['staleness']:.2f} | {one['alarms']} | "
            f"{one['dropped'] or 'none'} | {' + '.join(f'{value:.1f}' for value in minutes)} |"
        )
    notes = arguments.out / "demo-notes.md"
    if notes.is_file():
        lines += ["", notes.read_text(encoding="utf-8").strip()]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--score", type=int, default=256, help="tasks of each split, before and after")
    parser.add_argument("--config", default="demo")
    parser.add_argument("--sandbox", default="", help="embedded or docker; empty: the configuration's")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="passed on to every run")
    parser.add_argument("--only", nargs="+", default=[], help="names of runs, e.g. sao-0 blind")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "study")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results", help="folder of demo.md and demo.svg")
    parser.add_argument("--report-only", action="store_true")
    arguments = parser.parse_args()
    arguments.made_by = "make study"
    runs = [run for run in plan(arguments.seeds) if not arguments.only or run.name in arguments.only]
    if not arguments.report_only:
        for number, run in enumerate(runs, 1):
            if facts(arguments.runs, run) is None:
                print(f"== {number}/{len(runs)} {run.title}", flush=True)
                if code := subprocess.run(command(run, arguments.runs.resolve(), arguments), cwd=ROOT).returncode:
                    print(f"{run.name} ended with exit code {code}; the same command goes on there", file=sys.stderr)
                    return code
    known = [found for run in runs if (found := facts(arguments.runs, run)) is not None]
    if not known:
        print(f"no finished run under {arguments.runs}", file=sys.stderr)
        return 1
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "demo.md").write_text(page(known, arguments), encoding="utf-8")
    curves = {one["run"].title: one["curve"] for one in known}
    (arguments.out / "demo.svg").write_text(plot(curves, height=320) + "\n", encoding="utf-8")
    print(
        json.dumps(
            {
                one["run"].name: {
                    "before": one["scores"]["before/heldout"]["rate"],
                    "after": one["scores"]["after/heldout"]["rate"],
                    "gap": gap(one, "heldout"),
                    "training_minutes": one["seconds"].get("training", 0.0) / 60,
                }
                for one in known
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
