"""How long the offline SWE-bench instance of the test data takes: `sao eval swebench grade` against the package alone.

    python -m benchmarks.swebench_toy [--package]

Needs a Docker engine, sao-base and the extra `eval`; makes the instance's image. Wall times of whole commands, start of
Python included. The last line is JSON: gold_s (best of three), reused_s (started again), sixteen_s (16 instances at
once), package_s (with --package: the official harness on the same engine).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.eval.toy import TOY, toy_image

COMMAND = [sys.executable, "-c", "from sao.cli import main; main()", "eval", "swebench", "grade"]


def wall(command: list[str], folder: Path) -> float:
    began = time.perf_counter()
    env = {**os.environ, "SAO_RUNS": str(folder / "runs")}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return seconds


def grade(folder: Path, rows: str, run: str, *more: str) -> float:
    words = ["-p", "gold", "--rows", rows, "--sandbox", "docker", "--plain", "--run", run, *more]
    return wall([*COMMAND, *words], folder)


def package(folder: Path, row: dict[str, object]) -> float:
    (folder / "gold.json").write_text(
        json.dumps([{"instance_id": row["instance_id"], "model_name_or_path": "gold", "model_patch": row["patch"]}])
    )
    words = ["-m", "swebench.harness.run_evaluation", "-d", "toy.jsonl", "-p", "gold.json", "-id", "alone"]
    seconds = wall([sys.executable, *words, "--max_workers", "1"], folder)
    report = json.loads((folder / "gold.alone.json").read_text())
    if report["resolved_instances"] != 1:
        raise SystemExit(f"the package alone does not resolve it: {report}")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", action="store_true", help="also time the official harness")
    arguments = parser.parse_args()
    toy_image()
    row = json.loads((TOY / "toy_calc_v5.jsonl").read_text())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(TOY / "toy_calc_v5.jsonl", folder / "toy.jsonl")
        many = [{**row, "instance_id": f"toy__calc-{number}"} for number in range(16)]
        (folder / "sixteen.jsonl").write_text("".join(json.dumps(each) + "\n" for each in many))
        figures = {
            "gold_s": min(grade(folder, "toy.jsonl", f"gold{number}") for number in range(3)),
            "reused_s": grade(folder, "toy.jsonl", "gold0"),
            "sixteen_s": grade(folder, "sixteen.jsonl", "sixteen", "--workers", "16"),
        }
        if arguments.package:
            figures["package_s"] = package(folder, row)
    for key, value in figures.items():
        print(f"{key:12} {value:6.2f}")
    print(json.dumps({key: round(value, 2) for key, value in figures.items()}))


if __name__ == "__main__":
    main()
