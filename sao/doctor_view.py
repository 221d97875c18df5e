"""How findings are shown: a table with what follows from each, then the promises that this machine cannot keep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sao.doctor_finding import Finding

_STYLE = {"ok": "green", "warn": "yellow", "fail": "red"}


def as_facts(findings: Sequence[Finding]) -> dict[str, Any]:
    return {
        "ok": not any(finding.level == "fail" for finding in findings),
        "promises_lost": lost(findings),
        "findings": [finding.facts() for finding in findings],
    }


def lost(findings: Sequence[Finding]) -> list[str]:
    """Promises, once each, in the order of the findings."""
    return list(dict.fromkeys(finding.loses for finding in findings if finding.loses))


def show(findings: Sequence[Finding], console: Console) -> None:
    table = Table.grid(padding=(0, 2))
    for finding in findings:
        style = _STYLE[finding.level]
        lines = [escape(finding.text)]
        lines += [f"[dim]{escape(finding.means)}[/dim]"] if finding.means else []
        lines += [f"mend: {escape(finding.mend)}"] if finding.mend else []
        table.add_row(f"[{style}]{finding.level}[/]", f"[bold]{escape(finding.name)}[/bold]", "\n".join(lines))
    console.print(table)
    promises = lost(findings)
    if promises:
        console.print("\nThis machine cannot promise:")
        for promise in promises:
            console.print(f"  - {promise}", markup=False)
