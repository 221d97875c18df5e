"""Makes a list of an evaluation set for data/evaluation_sets/: hashes of its rows, no text.

    .venv/bin/python scripts/evaluation_hashes.py --name swebench-verified rows.jsonl more.jsonl.gz
    .venv/bin/python scripts/evaluation_hashes.py --shared FOLDER      # every list that is shipped, from the data files

Rows: .jsonl(.gz), .json or .csv with the columns of SWE-bench (ids, repo, base_commit, problem and patches) or of
maths sets (id, problem or question or prompt). Files of reports (instance id -> report) give ids alone, trajectories of
mini-swe-agent (.traj.json) the id and the problem that the agent was told. A list that is there is added to.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data.atomic import write_atomically
from data.contamination import FOLDER, hashes_of, patch_hash

PROBLEM = ("problem_statement", "problem", "question", "Problem", "prompt")
TOLD = re.compile(r"<pr_description>\s*Consider the following PR description:\n(.*?)\n</pr_description>", re.DOTALL)
IDS = ("instance_id", "id", "Problem ID")
SHIPPED = {
    "aime2025": ["math/aime2025.jsonl", "math/aime2025.prompted.orig.jsonl"],
    "beyondaime": ["math/beyondaime.jsonl", "math/beyondaime.prompted.orig.jsonl"],
    "imo-answerbench": [
        "math/imo_answerbench_v2.jsonl",
        "math/imo_answerbench_v1.orig.csv",
        "math/imo_answerbench_v2.orig.csv",
    ],
    "swebench-verified": [
        "swe/verified_mini50.jsonl",
        "swe/verified500_preds_gemini3pro.jsonl.gz",
        "swe/verified500_reports_gemini3pro.jsonl.gz",
        "trajectories/*.traj.json.gz",
    ],
    "swebench-dev": ["swe/sweagent_swe-bench-dev-easy.json"],
}


def rows(path: Path) -> Iterator[dict[str, Any]]:
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    if ".csv" in path.suffixes:
        yield from csv.DictReader(io.StringIO(text))
    elif ".jsonl" in path.suffixes:
        yield from (json.loads(line) for line in text.splitlines() if line.strip())
    elif ".traj" in path.suffixes:
        yield told(json.loads(text))
    else:
        yield from json.loads(text)


def told(trajectory: dict[str, Any]) -> dict[str, Any]:
    """Of a mini-swe-agent trajectory: its instance, and the problem as its first message has it."""
    first = next((one["content"] for one in trajectory["messages"] if one["role"] == "user"), "")
    text = first if isinstance(first, str) else "".join(part.get("text", "") for part in first)
    found = TOLD.search(text)
    return {"instance_id": trajectory["instance_id"], "problem_statement": found[1] if found else ""}


def hashes(row: dict[str, Any]) -> Iterable[str]:
    if all(isinstance(value, dict) for value in row.values()):  # a report: instance id -> outcome
        return [hashes_of(instance_id=name)["id"] for name in row]
    problem = next((row[name] for name in PROBLEM if isinstance(row.get(name), str)), "")
    swe = isinstance(row.get("instance_id"), str)
    made = hashes_of(
        instance_id=next((row[name] for name in IDS if telling(row.get(name))), ""),
        repo=str(row.get("repo") or ""),
        base_commit=str(row.get("base_commit") or ""),
        problem=problem,
        maths=not swe,
    )
    if "prompt" in row and not swe:  # problem and instruction: the whole and the end are not the problem's
        made = {kind: value for kind, value in made.items() if kind == "head"}
    patches = [patch_hash(row[name]) for name in ("patch", "test_patch") if isinstance(row.get(name), str)]
    return [*made.values(), *filter(None, patches)]


def telling(name: Any) -> bool:
    """An id that no other set has: "12" would take everybody's twelfth row for a benchmark's."""
    return isinstance(name, str) and len(name) >= 6 and any(sign.isalpha() for sign in name)


def write(name: str, files: list[Path]) -> None:
    target = FOLDER / f"{name}.txt"
    old = target.read_text(encoding="utf-8").splitlines() if target.exists() else []
    found = {line for line in old if line and not line.startswith("#")}
    for file in files:
        found.update(value for row in rows(file) for value in hashes(row))
    if not found:
        raise SystemExit(f"no row of {', '.join(map(str, files))} could be read: nothing was written")
    lines = [f"# Evaluation set {name}: hashes of its tasks (data/contamination.py), no text.", *sorted(found)]
    target.parent.mkdir(exist_ok=True)
    write_atomically(target, ("\n".join(lines) + "\n").encode())
    print(f"{target}: {len(found)} hashes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", help="of the set")
    parser.add_argument("--shared", type=Path, help="folder that the shipped lists are made from")
    parser.add_argument("files", nargs="*", type=Path)
    given = parser.parse_args()
    if given.shared:
        for name, files in SHIPPED.items():
            write(name, [path for file in files for path in sorted(given.shared.glob(file))])
    if given.name:
        write(given.name, given.files)
    if not given.shared and not given.name:
        parser.error("give --name and files, or --shared")


if __name__ == "__main__":
    main()
