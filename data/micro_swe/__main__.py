"""`python -m data.micro_swe --split heldout --show 3 --rates`: look at tasks, their bugs and the blind rates."""

from __future__ import annotations

import argparse
import json
import sys

from data.micro_swe import SPLIT_SIZES, bug_site, constant_policy_rates, load
from data.task import TaskError


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m data.micro_swe",
        description="Show generated tasks and what policies score that do not read the file.",
        epilog="example: python -m data.micro_swe --split heldout --show 3 --rates",
    )
    parser.add_argument("--split", choices=sorted(SPLIT_SIZES), default="heldout")
    parser.add_argument("--show", type=int, default=0, metavar="N", help="print N tasks")
    parser.add_argument("--offset", type=int, default=0, metavar="N", help="first task to print")
    parser.add_argument("--rates", action="store_true", help="print the rates of the blind policies")
    parser.add_argument("--sample", type=int, default=2000, metavar="N", help="tasks the rates are computed from")
    args = parser.parse_args(argv)
    try:
        tasks = load(args.split, limit=args.show, offset=args.offset)
    except TaskError as error:
        print(error, file=sys.stderr)
        return 2
    for task in tasks:
        site = bug_site(task)
        print(f"== {task.task_id}  {site.kind} · {site.template} · {site.layout} · {site.place}")
        print(f"issue: {task.row['problem_statement']}")
        print(f"--- {site.path}")
        print(json.loads(task.row["files"])[site.path], end="")
        print("--- candidates (* is right)")
        for candidate in site.candidates:
            print(f"{'*' if candidate == site.fixed_line else ' '} {candidate}")
        print()
    if args.rates:
        rates = constant_policy_rates(args.split, args.sample)
        print(f"blind policies on {rates.sample} tasks of {rates.split}:")
        print(f"  best constant action              {rates.constant_action:.4f}")
        print(f"  best constant choice per kind     {rates.choice_per_kind:.4f}")
        print(f"  uniform guess among candidates    {rates.uniform_guess:.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
