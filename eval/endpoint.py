"""What an endpoint did in a run, for the report: which model answered, its counts, finish and refusal reasons.

Promises: from the trajectories alone, in their order; what the endpoint did not say is not filled in, but counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from data.trajectory import Trajectory

_SHOWN = 200


def endpoint_summary(trajectories: Iterable[Trajectory], episodes: Collection[str] | None = None) -> dict[str, Any]:
    """Over graded episodes (those of `episodes`, where given); empty when none was an endpoint's."""
    from data.quoted import endpoint_facts  # numpy, which the rows for a page need not load
    from data.trajectory import Status

    asked: Counter[str] = Counter()
    answered: Counter[str] = Counter()
    finish: Counter[str] = Counter()
    refusals: Counter[str] = Counter()
    fingerprints: Counter[str] = Counter()
    calls: set[str] = set()
    sums: Counter[str] = Counter()
    for one in trajectories:
        facts = endpoint_facts(one)
        if not facts or one.outcome.status is not Status.GRADED:
            continue
        if episodes is not None and one.identity.episode_id not in episodes:
            continue
        asked[str(facts["model"])] += 1
        calls.add(str(facts["calls"]))
        for turn in facts["turns"]:
            sums["turns"] += 1
            sums["retries"] += turn.get("retries", 0)
            sums["turns_without_usage"] += bool(turn.get("guessed"))
            for name in ("prompt", "completion", "reasoning", "cached"):
                sums[f"{name}_tokens"] += turn.get(f"{name}_tokens", 0)
            answered[turn.get("model") or "not said"] += 1
            finish[turn.get("finish") or "not said"] += 1
            if turn.get("refusal"):
                refusals[turn["refusal"][:_SHOWN]] += 1
            if turn.get("fingerprint"):
                fingerprints[turn["fingerprint"]] += 1
    if not asked:
        return {}
    counted = ("turns", "prompt_tokens", "completion_tokens", "reasoning_tokens", "cached_tokens")
    return {
        "asked_for": sorted(asked),
        "answered_by": dict(sorted(answered.items())),
        "calls": sorted(calls),
        "episodes": sum(asked.values()),
        **{name: sums[name] for name in counted},
        "turns_without_usage": sums["turns_without_usage"],
        "retries": sums["retries"],
        "finish_reasons": dict(sorted(finish.items())),
        "refusals": dict(sorted(refusals.items())),
        "fingerprints": dict(sorted(fingerprints.items())),
    }


def summary_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(what, figure) for tables and pages; none when there was no endpoint."""
    if not summary:
        return []
    usage = f"{summary['prompt_tokens']:,} prompt, {summary['completion_tokens']:,} completion"
    usage += f" ({summary['reasoning_tokens']:,} reasoning)" if summary["reasoning_tokens"] else ""
    if summary["turns_without_usage"]:
        usage += f"; {summary['turns_without_usage']} turns came without counts and are guessed"
    refused = sum(summary["refusals"].values())
    asked, answered = ", ".join(summary["asked_for"]), _counts(summary["answered_by"])
    rows = [
        ("endpoint's model", f"asked for {asked}; answered by {answered}"),
        ("endpoint's turns", f"{summary['turns']}: {_counts(summary['finish_reasons'])}; {summary['retries']} retries"),
        ("endpoint's tokens", usage),
        ("tool calls", ", ".join(summary["calls"])),
        ("trajectories", "text only: no ids, no log-probabilities, never trained on"),
    ]
    if refused:
        rows.append(("refused by the endpoint", f"{refused}: {_counts(summary['refusals'])}"))
    return rows


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} × {count}" for name, count in counts.items())
