"""What makes learning honest: splits share no template, place or text, and nothing but the hint tells the fix."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from itertools import combinations

import pytest

from data import micro_swe
from data.micro_swe import SPLIT_SIZES, BugSite
from data.micro_swe.kinds import KINDS
from data.micro_swe.templates import ISSUES, LAYOUTS, TEMPLATES

SPLITS = sorted(SPLIT_SIZES)
SAMPLE = 900


@pytest.fixture(scope="module")
def sites() -> dict[str, list[BugSite]]:
    return {s: [micro_swe.bug_site(micro_swe.task(s, index)) for index in range(SAMPLE)] for s in SPLITS}


def test_enough_templates() -> None:
    assert {split: len(group) for split, group in TEMPLATES.items()} == {"train": 138, "heldout": 30, "unseen": 15}
    for split in SPLITS:
        assert {t.kind.name for t in TEMPLATES[split]} == {kind.name for kind in KINDS}


def test_templates_and_phrasings_are_disjoint() -> None:
    for one, other in combinations(SPLITS, 2):
        for what in (
            lambda s: {t.name for t in TEMPLATES[s]},
            lambda s: {(t.kind.name, t.doc, t.body) for t in TEMPLATES[s]},
            lambda s: set(ISSUES[s]),
            lambda s: set(LAYOUTS[s]),
        ):
            assert not what(one) & what(other)
    # Apart from classes, not even the bodies: the same core is written as another program.
    assert not {(t.kind.name, t.body) for t in TEMPLATES["train"]} & {
        (t.kind.name, t.body) for t in TEMPLATES["heldout"]
    }
    # What is held out is the pair: each half of it is met in train.
    for what in (lambda t: t.name.split("-")[-1], lambda t: "-".join(t.name.split("-")[1:-1])):
        assert {what(t) for t in TEMPLATES["heldout"]} <= {what(t) for t in TEMPLATES["train"]}
    families = {split: {t.family for t in TEMPLATES[split]} for split in SPLITS}
    assert families["unseen"] == {"class"}
    assert "class" not in families["train"] | families["heldout"]


def test_places_are_disjoint(sites: dict[str, list[BugSite]]) -> None:
    for one, other in combinations(SPLITS, 2):
        assert not {s.place for s in sites[one]} & {s.place for s in sites[other]}
        assert not {(s.template, s.place) for s in sites[one]} & {(s.template, s.place) for s in sites[other]}
    assert all(len({s.place for s in sites[split]}) >= 4 for split in SPLITS)


def test_no_text_is_shared() -> None:
    texts: dict[str, set[str]] = {}
    for split in SPLITS:
        rows = [task.row for task in micro_swe.load(split, limit=SAMPLE)]
        viewed = [json.loads(row["files"])[re.search(r"--- a/(.*)", row["patch"])[1]] for row in rows]  # type: ignore[index]
        # No repository twice, in or across splits.
        assert len(set(viewed)) == len({row["base_commit"] for row in rows}) == SAMPLE
        columns = ("problem_statement", "patch", "test_patch", "files", "base_commit")
        texts[split] = {row[name] for row in rows for name in columns} | set(viewed)
    for one, other in combinations(SPLITS, 2):
        assert not texts[one] & texts[other]


def test_kinds_are_evenly_drawn(sites: dict[str, list[BugSite]]) -> None:
    for split in SPLITS:
        counts = Counter(site.kind for site in sites[split])
        assert len(counts) == 9
        assert all(abs(count - SAMPLE / 9) < 5 * (SAMPLE / 9) ** 0.5 for count in counts.values())


@pytest.mark.parametrize("split", SPLITS)
def test_nothing_but_the_hint_tells_the_fix(split: str, sites: dict[str, list[BugSite]]) -> None:
    """Per kind, the best answer to each buggy form, fitted on one half, does not beat a uniform guess on the other."""
    fitted: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    hits: Counter[str] = Counter()
    tries: Counter[str] = Counter()
    guess: dict[str, float] = {}
    group = [micro_swe.bug_site(micro_swe.task(split, SAMPLE + i)) for i in range(SAMPLE)]
    for site in sites[split]:
        fitted[site.kind, site.form][site.choice] += 1
    for site in group:
        tries[site.kind] += 1
        hits[site.kind] += fitted[site.kind, site.form].most_common(1)[0][0] == site.choice
        guess[site.kind] = 1 / len(site.candidates)
    total = sum(hits.values()) / SAMPLE
    assert total <= sum(guess[kind] * n for kind, n in tries.items()) / SAMPLE + 0.05
    for kind, n in tries.items():
        # 4 standard errors of a kind's own count, at least 0.05.
        slack = max(0.05, 4 * (guess[kind] * (1 - guess[kind]) / n) ** 0.5)
        assert hits[kind] / n <= guess[kind] + slack, (kind, hits[kind], n)


@pytest.mark.parametrize("split", SPLITS)
def test_right_answers_are_uniform(split: str, sites: dict[str, list[BugSite]]) -> None:
    """Chi-square over the place of the right answer among the candidates and over the answers, kind by kind."""
    for kind in {site.kind for site in sites[split]}:
        group = [site for site in sites[split] if site.kind == kind]
        for counts in (
            Counter(site.candidates.index(site.fixed_line) for site in group),
            Counter(site.choice for site in group),
        ):
            mean = len(group) / len(counts)
            chi = sum((count - mean) ** 2 / mean for count in counts.values())
            assert chi < 20, (kind, counts)  # 3 degrees of freedom at most: beyond the 99.98th percentile
