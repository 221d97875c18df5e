"""The demo's study: three seeds of SAO and its controls, each scored before and after on tasks it never trained on.

    make study                                     # all of it, about an hour on two cores; goes on where it stopped
    python -m benchmarks.demo_study --report-only  # write the page again from the runs that are there

The policy is scored once before (all runs start from it) and its frozen episodes and critic are made once; each run is
a `sao train` of its own, scored after. What is finished under runs/study/ is not run again. The page (demo.md and
demo.svg) is made from the runs' files alone. The last line is one JSON object. `make demo` does one seed of it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.atomic import write_atomically
from data.micro_swe import constant_policy_rates
from sao.plot import plot, smooth
from sao.train_files import read_json
from sao.train_report import rate_text
from sao.train_view import mean
from trainer.metrics import read_metrics
from trainer.paths import TrainerPaths

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Run:
    name: str
    title: str
    seed: int
    options: tuple[str, ...] = ()
    critic: bool = True
    """Starts from the pretrained critic that all such runs share."""


def matched(name: str, control: str, what: str, seed: int) -> Run:
    return Run(f"{name}-{seed}", f"no critic: {what}, seed {seed}", seed, ("--control", control), critic=False)


def plan(seeds: Sequence[int]) -> list[Run]:
    first = seeds[0]
    blind = ("--set", "agent.blind=true", "--set", "train.value_episodes=0")
    return [
        *(Run(f"sao-{seed}", f"SAO, seed {seed}", seed) for seed in seeds),
        # The matched question of what the critic is worth: lambda and batch stay, a mean stands in the critic's place.
        *(matched("loo", "batch_leave_one_out", "the batch's other rewards, SAO's lambda", seed) for seed in seeds),
        *(matched("flat", "batch_leave_one_out_flat", "the batch's other rewards, lambda 1", seed) for seed in seeds),
        Run(
            "no-critic",
            "no critic, lambda 1, a lagging mean: global running mean (window 128)",
            first,
            ("--control", "running_mean_global"),
            False,
        ),
        Run("k1", "K = 1: one critic update per policy update", first, ("--control", "one_critic_update")),
        Run("blind", "observation-blind policy, trained equally", first, blind, False),
    ]


class Study:
    """Where the runs lie and how they are started; everything here is resumed by doing it again."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.folder: Path = arguments.runs.resolve()
        self.shared = ["--config", arguments.config, "--plain"]
        self.shared += ["--sandbox", arguments.sandbox] if arguments.sandbox else []
        self.shared += [part for value in arguments.set for part in ("--set", value)]

    def sao(self, *words: str) -> None:
        """Raises CalledProcessError."""
        subprocess.run([sys.executable, "-m", "sao", *words], cwd=ROOT, check=True)

    def scores(self, name: str, model: str, options: Sequence[str] = ()) -> None:
        """name.json: every split's score of `model`."""
        target = self.folder / f"{name}.json"
        if target.exists():
            return
        found = {}
        for split, tasks in (("heldout", self.arguments.score), ("unseen", self.arguments.score // 2)):
            part = self.folder / f"{name}-{split}.json"
            words = ["eval", "micro-swe", *self.shared, "--model", model, "--split", split, "--tasks", str(tasks)]
            self.sao(*words, "--json", str(part), *options)
            found |= read_json(part)
        write_atomically(target, json.dumps(found, indent=1).encode() + b"\n")

    def critic(self, episodes: int) -> Path:
        target = self.folder / "critic"
        if not target.exists():
            began = time.monotonic()
            seed = ["--set", "rollout.seed=1000003", "--episodes", str(episodes)]
            self.sao("rollout", *self.shared, "--run", str(self.folder / "frozen"), *seed)
            played = time.monotonic()
            shared = [part for part in self.shared if part not in ("--sandbox", self.arguments.sandbox)]
            self.sao("pretrain-value", str(self.folder / "frozen"), *shared, "--out", str(target))
            seconds = {"frozen episodes": played - began, "value pretraining": time.monotonic() - played}
            write_atomically(self.folder / "critic.json", json.dumps(seconds).encode())
        return target

    def run(self, run: Run) -> None:
        folder = self.folder / run.name
        if not (folder / "summary.json").exists():
            words = ["train", *self.shared, "--run", str(folder), "--seed", str(run.seed), *run.options]
            words += ["--critic", str(self.folder / "critic")] if run.critic else []
            self.sao(*words)
        self.scores(
            f"{run.name}-after", str(folder / "final"), run.options if "agent.blind=true" in run.options else ()
        )


def facts(folder: Path, run: Run) -> dict[str, Any] | None:
    """What the page says of one run; None while it is not finished."""
    summary, after = read_json(folder / run.name / "summary.json"), read_json(folder / f"{run.name}-after.json")
    if not summary or not after:
        return None
    metrics = read_metrics(TrainerPaths(folder / run.name).metrics)
    rewards = [line["reward"] for line in metrics]
    explained = [line["explained_variance"] for line in metrics if line.get("explained_variance") is not None]
    return {
        "run": run,
        "after": after,
        "seconds": summary["seconds"],
        "steps": len(metrics),
        "batch": metrics[0]["trajectories"],
        "first": sum(rewards[:10]) / len(rewards[:10]),
        "last": sum(rewards[-10:]) / len(rewards[-10:]),
        "explained": sum(explained[-20:]) / len(explained[-20:]) if explained else None,
        "rejected": mean([line.get("rejected_share") for line in metrics]) or 0.0,
        "staleness": mean([line.get("staleness_mean") for line in metrics]) or 0.0,
        "alarms": Counter(alarm["kind"] for line in metrics for alarm in line.get("alarms", ())),
        "dropped": metrics[-1].get("dropped") or {},
        "faults": summary["faults"],
        "curve": smooth([(float(line["step"]), float(line["reward"])) for line in metrics], 10),
    }


def gap(before: dict[str, Any], after: dict[str, Any]) -> float:
    """Lower 95 % bound after minus upper bound before."""
    return after["wilson_95"][0] - before["wilson_95"][1]


def machine() -> str:
    model = ""
    if (info := Path("/proc/cpuinfo")).is_file():
        named = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        model = f", {named[0]}" if named else ""
    return f"{os.cpu_count()} cores{model}, {platform.system()}, Python {platform.python_version()}, no GPU used"


def page(known: Sequence[dict[str, Any]], before: dict[str, Any], arguments: argparse.Namespace) -> str:
    blind = constant_policy_rates("heldout")
    lines = [
        "# The demo's study: does the policy learn from its own sandbox episodes?",
        "",
        f"Made by `make study` on {machine()}. Every run is `sao train --config {arguments.config}`: episodes in "
        f"{arguments.sandbox or 'the configured'} sandboxes, sampled at temperature 1; scores on held-out task "
        "templates (and on a family of templates that training never shows), one episode a task, 95 % Wilson.",
        "",
        f"Before: held-out {rate_text(before['heldout'])}, unseen family {rate_text(before['unseen'])}.",
        "",
        "| run | held-out after | lower bound after − upper bound before | unseen family after |",
        "|---|---|---|---|",
    ]
    for one in known:
        after = one["after"]
        lines.append(
            f"| {one['run'].title} | {rate_text(after['heldout'])} | {gap(before['heldout'], after['heldout']):+.3f} | "
            f"{rate_text(after['unseen'])} |"
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
        "tokens | mean staleness | alarms | dropped draws | training, minutes |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in known:
        explained = "—" if one["explained"] is None else f"{one['explained']:.2f}"
        alarms = ", ".join(f"{count} {kind}" for kind, count in sorted(one["alarms"].items())) or "none"
        lines.append(
            f"| {one['run'].title} | {one['steps']} × {one['batch']} | {one['first']:.3f} → {one['last']:.3f} | "
            f"{explained} | {one['rejected']:.2%} | {one['staleness']:.2f} | {alarms} | {one['dropped'] or 'none'} | "
            f"{one['seconds'].get('training', 0.0) / 60:.1f} |"
        )
    shared = read_json(arguments.runs / "critic.json")
    if shared:
        lines += ["", "Before them, once: " + ", ".join(f"{k} {v / 60:.1f} min" for k, v in shared.items()) + "."]
    notes = arguments.out / "demo-notes.md"
    if notes.is_file():
        lines += ["", notes.read_text(encoding="utf-8").strip()]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--score", type=int, default=500, help="held-out tasks scored before and after; half as many unseen"
    )
    parser.add_argument("--episodes", type=int, default=256, help="of the frozen policy, for the critic")
    parser.add_argument("--config", default="demo")
    parser.add_argument("--sandbox", default="", help="embedded or docker; empty: the configuration's")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="passed on to every run")
    parser.add_argument("--only", nargs="+", default=[], help="names of runs, e.g. sao-0 blind")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "study")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results", help="folder of demo.md and demo.svg")
    parser.add_argument("--report-only", action="store_true")
    arguments = parser.parse_args()
    runs = [run for run in plan(arguments.seeds) if not arguments.only or run.name in arguments.only]
    if not arguments.report_only:
        study = Study(arguments)
        study.folder.mkdir(parents=True, exist_ok=True)
        try:
            study.scores("before", "demo")
            study.critic(arguments.episodes)
            for number, run in enumerate(runs, 1):
                print(f"== {number}/{len(runs)} {run.title}", flush=True)
                study.run(run)
        except subprocess.CalledProcessError as error:
            print(f"a part ended with exit code {error.returncode}; the same command goes on there", file=sys.stderr)
            return error.returncode or 1
    before = read_json(arguments.runs / "before.json")
    known = [found for run in runs if (found := facts(arguments.runs, run)) is not None]
    if not known or not before:
        print(f"no finished run under {arguments.runs}", file=sys.stderr)
        return 1
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "demo.md").write_text(page(known, before, arguments), encoding="utf-8")
    curves = {one["run"].title: one["curve"] for one in known}
    drawn = plot(curves, x="training step", y="held-out tasks solved (share)", height=336)
    (arguments.out / "demo.svg").write_text(drawn + "\n", encoding="utf-8")
    result = {
        one["run"].name: {
            "before": before["heldout"]["rate"],
            "after": one["after"]["heldout"]["rate"],
            "gap": gap(before["heldout"], one["after"]["heldout"]),
            "training_minutes": one["seconds"].get("training", 0.0) / 60,
        }
        for one in known
    }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
