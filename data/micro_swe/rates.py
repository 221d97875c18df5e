"""What can be scored on micro-SWE without reading the observation: the floor that a learned policy must beat."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from data.micro_swe.rows import BugSite, bug_site, build, task


@dataclass(frozen=True)
class ConstantRates:
    """Pass rates over `sample` tasks of a split."""

    split: str
    sample: int
    constant_action: float
    """Best single (path, old_str, new_str) played on every task, chosen and scored on the same tasks."""
    choice_per_kind: float
    """Perfect localisation and copying, blind to the hint: best answer per (kind, form of the buggy line), chosen on
    the even tasks and scored on the odd ones."""
    uniform_guess: float
    """Perfect localisation, one of the candidates at random: mean of 1/len(candidates)."""


def constant_policy_rates(split: str, sample: int = 2000) -> ConstantRates:
    """Rates of the three blind policies on tasks 0..sample-1 of `split`."""
    sites = [bug_site(task(split, index)) for index in range(sample)]
    actions: Counter[tuple[str, str, str]] = Counter()
    for index, site in enumerate(sites):
        actions.update(_winning_actions(site, build(split, index).before[site.path]))
    fitted: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for site in sites[::2]:
        fitted[site.kind, site.form][site.choice] += 1
    scored = sites[1::2]
    hits = sum(
        bool(seen := fitted[site.kind, site.form]) and seen.most_common(1)[0][0] == site.choice for site in scored
    )
    return ConstantRates(
        split=split,
        sample=sample,
        constant_action=max(actions.values(), default=0) / max(sample, 1),
        choice_per_kind=hits / max(len(scored), 1),
        uniform_guess=sum(1 / len(site.candidates) for site in sites) / max(sample, 1),
    )


def _winning_actions(site: BugSite, text: str) -> set[tuple[str, str, str]]:
    """Every str_replace within the buggy line that mends this task: the smallest one, with any amount of context."""
    old, new = site.old_line, site.fixed_line
    left = next((i for i, (x, y) in enumerate(zip(old, new, strict=False)) if x != y), min(len(old), len(new)))
    right = 0
    while right < min(len(old), len(new)) - left and old[-1 - right] == new[-1 - right]:
        right += 1
    actions = set()
    for before in range(left + 1):
        for after in range(right + 1):
            piece = old[left - before : len(old) - right + after]
            if piece and text.count(piece) == 1:
                actions.add((site.path, piece, new[left - before : len(new) - right + after]))
    return actions
