"""The run's summary: the official fields (schema 2), and ours beside them.

Promises: total = resolved + unresolved + error + empty + incomplete; the score's denominator is the whole task set, as
the benchmark counts; coverage says for how many instances the verdict is about the model; findings are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from eval.endpoint import summary_rows
from eval.markdown import code, document, table
from eval.statistics import wilson_interval
from eval.swebench.outcome import Graded, Verdict
from eval.swebench.predictions import Prediction
from eval.swebench.rows import HarnessRow

_SHOWN = 10


def run_report(
    rows: Sequence[HarnessRow],
    predictions: Mapping[str, Prediction],
    graded: Mapping[str, Graded],
    *,
    validated: Collection[str] = (),
    **facts: Any,
) -> dict[str, Any]:
    """`graded`: what this run has verdicts for; `validated`: rows that told right from wrong; `facts` (harness version,
    backend, ...) are added as they are."""
    known = [row.instance_id for row in rows]
    by: dict[Verdict, list[str]] = {verdict: [] for verdict in Verdict}
    for name in known:
        if name in graded:
            by[graded[name].verdict].append(name)
    incomplete = [name for name in known if name not in graded]
    infra = [name for name, each in graded.items() if not each.about_model]
    suspicious = {name: [str(one) for one in each.suspicious] for name, each in graded.items() if each.suspicious}
    resolved, total = len(by[Verdict.RESOLVED]), len(known)
    completed = [*by[Verdict.RESOLVED], *by[Verdict.UNRESOLVED]]
    reasons = {name: each.failure_reason for name, each in graded.items() if each.failure_reason}
    environment = sorted(name for name in reasons if graded[name].failure_tier == "environment")
    ambiguous = sorted(set(reasons) - set(environment))
    official = {
        "total_instances": total,
        "submitted_instances": len(predictions),
        "completed_instances": len(completed),
        "resolved_instances": resolved,
        "unresolved_instances": len(by[Verdict.UNRESOLVED]),
        "infra_failure_instances": len(environment),
        "ambiguous_failure_instances": len(ambiguous),
        "empty_patch_instances": len(by[Verdict.EMPTY]),
        "error_instances": len(by[Verdict.ERROR]),
        "completed_ids": sorted(completed),
        "incomplete_ids": sorted(incomplete),
        "empty_patch_ids": sorted(by[Verdict.EMPTY]),
        "submitted_ids": sorted(predictions),
        "resolved_ids": sorted(by[Verdict.RESOLVED]),
        "unresolved_ids": sorted(by[Verdict.UNRESOLVED]),
        "infra_failure_ids": environment,
        "ambiguous_failure_ids": ambiguous,
        "failure_reasons": dict(sorted(reasons.items())),
        "error_ids": sorted(by[Verdict.ERROR]),
        "schema_version": 2,
    }
    covered = total - len(incomplete) - len(infra)
    ours = {
        "score": resolved / total if total else 0.0,
        "wilson_95": list(wilson_interval(resolved, total)),
        "coverage": covered / total if total else 0.0,
        "score_of_covered": resolved / covered if covered else 0.0,
        "errors_by_kind": dict(Counter(str(each.error) for each in graded.values() if each.error)),
        "suspicious_instances": len(suspicious),
        "suspicious_ids": sorted(suspicious),
        "resolved_and_suspicious_ids": sorted(set(suspicious) & set(by[Verdict.RESOLVED])),
        "findings": dict(sorted(suspicious.items())),
        "disagreement_ids": sorted(name for name, each in graded.items() if not each.agrees),
        "unknown_ids": unknown_ids(known, predictions),
        "validated_instances": sum(name in validated for name in known),
        "not_validated_ids": sorted(set(known) - set(validated)),
        "missed_network_ids": sorted(name for name, each in graded.items() if each.missed_network),
        "network_ids": sorted(name for name, each in graded.items() if each.network != "none"),
    }
    return {**official, **ours, **facts}


def figure_rows(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(what, figure) of the report's head, for terminal and page."""
    low, high = report["wilson_95"]
    total, with_network = report["total_instances"], report["network_ids"]
    kinds = ", ".join(f"{kind.replace('_', ' ')} {count}" for kind, count in report["errors_by_kind"].items())
    both = len(report["resolved_and_suspicious_ids"])
    network = f"bridge for {', '.join(with_network)}, none for the others" if with_network else "none"
    return [
        ("resolved", f"{report['resolved_instances']}/{total} = {100 * report['score']:.1f} % "
                     f"[{100 * low:.1f}, {100 * high:.1f}] 95 % Wilson"),
        ("coverage", f"{100 * report['coverage']:.1f} % of the instances have a verdict about the model"),
        ("rows", _checked(report)),
        ("unresolved", str(report["unresolved_instances"])),
        *_environment(report),
        ("empty patch", str(report["empty_patch_instances"])),
        ("error", f"{report['error_instances']}{f' ({kinds})' if kinds else ''}"),
        ("incomplete", str(len(report["incomplete_ids"]))),
        ("suspicious", f"{report['suspicious_instances']}, {both} of them resolved"),
        ("harness", f"{report['harness']}, {report['sandbox']} sandboxes, time limit {report['timeout_s']:g} s"),
        ("network", network),
        *agent_rows(report.get("agent", {})),
        *summary_rows(report.get("endpoint", {})),
    ]  # fmt: skip


def _checked(report: Mapping[str, Any]) -> str:
    """A FAIL_TO_PASS test that passes without any change counts as solved: nobody but validate has looked."""
    good, total = report["validated_instances"], report["total_instances"]
    if good == total:
        return f"all {total} checked by validate"
    told = f"{good} of {total} checked by validate" if good else "not validated"
    return (
        f"{told}: a FAIL_TO_PASS test that passes without any change counts as solved, a reference fix that fails here "
        "as unresolved. sao eval swebench validate finds such rows; its list goes to --skip"
    )


def _environment(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Failures that look like the machine's: no verdict changes by them, and coverage counts them."""
    rows = []
    for what, key in (
        ("environment?", "infra_failure_ids"),
        ("ambiguous?", "ambiguous_failure_ids"),
        ("missed network", "missed_network_ids"),
    ):
        if names := report[key]:
            reasons = report["failure_reasons"]
            shown = ", ".join(f"{name} ({reasons[name]})" if name in reasons else name for name in names[:_SHOWN])
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            rows.append((what, f"{len(names)} may be the machine's and not the model's: {shown}{more}"))
    if rows:
        rows.append(("", "sao eval swebench validate says whether their reference fixes pass here"))
    return rows


def agent_rows(agent: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the agent was; nothing for predictions that came from elsewhere."""
    if not agent:
        return []
    temperature = "the endpoint's own" if agent["temperature"] is None else f"{agent['temperature']:g}"
    return [
        ("agent", f"preset {agent['preset']}, prompt {agent['prompt_sha256'][:12]}, tools {', '.join(agent['tools'])}"),
        ("temperature", temperature),
        (
            "limits",
            f"{agent['max_turns']} turns, {agent['max_tokens']:,} sampled tokens, context {agent['max_context']:,}",
        ),
    ]  # fmt: skip


def markdown(report: Mapping[str, Any], name: str, graded: Mapping[str, Graded]) -> str:
    """The head, then an instance a line."""
    rows = []
    for instance in sorted([*graded, *report["incomplete_ids"]]):
        one = graded.get(instance)
        if one is None:
            rows.append((instance, "incomplete", "", ""))
            continue
        why = code(one.why, 160) if one.why else ""
        rows.append((instance, str(one.verdict), why, "; ".join(map(str, one.suspicious))))
    return document(
        name,
        table(("what", "figure"), figure_rows(report)),
        table(("instance", "verdict", "why", "suspicious"), rows),
    )


def unknown_ids(known: Collection[str], predictions: Mapping[str, Prediction]) -> list[str]:
    """Predictions for instances that are not in the task set: not graded, but said."""
    return sorted(set(predictions) - set(known))


def scores(rows: Sequence[HarnessRow], graded: Mapping[str, Graded], name: str) -> dict[str, Any]:
    """For `sao eval compare`: 1 or 0 an instance, null where there is no verdict about the model."""
    by_id = {row.instance_id: graded[row.instance_id].score if row.instance_id in graded else None for row in rows}
    return {"suite": "swebench", "name": name, "scores": by_id}
