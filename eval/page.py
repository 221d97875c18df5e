"""An evaluation as one HTML page: the summary, then every instance to open. Read offline: nothing is loaded.

Instances are written as they come, so a page of hundreds needs the memory of one. Long texts keep head and tail, say
how much is missing, and link to the whole file where there is one beside the page. Every text is escaped: a log or a
model's words never become markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from urllib.parse import quote

from data.atomic import replacing

LONGEST = 16_000
"""Characters of one text that the page shows: a page of 500 instances still opens."""

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:1080px;margin:2em auto;padding:0 1em;color:#222;background:#fff}
table{border-collapse:collapse}td{padding:.15em 1.2em .15em 0;vertical-align:top}td:first-child{color:#667}
details{border-top:1px solid #ddd;padding:.3em 0}details details{border:0;margin-left:1em}
summary{cursor:pointer}summary b{font-weight:600}
pre{background:#f6f7f9;border-left:3px solid #ccd;padding:.6em;overflow:auto;max-height:32em;white-space:pre-wrap;
overflow-wrap:anywhere;font:12.5px/1.45 ui-monospace,monospace}
pre.action{border-color:#16a34a}pre.observation{border-color:#94a3b8}pre.prompt{border-color:#2563eb}
pre.quoted{border-color:#ca8a04}
.badge{display:inline-block;min-width:6.5em;padding:0 .5em;border-radius:.6em;font-size:13px;text-align:center}
.good{background:#dcfce7;color:#14532d}.bad{background:#fef3c7;color:#78350f}.none{background:#eef;color:#445}
.error{background:#fee2e2;color:#7f1d1d}.flag{color:#a21caf}
.add{color:#15803d}.del{color:#b91c1c}.at{color:#7c3aed}.dim{color:#778}
.tools{position:sticky;top:0;background:#fff;padding:.5em 0;border-bottom:1px solid #ddd}
.tools button{font:inherit;margin-right:.4em}.tools input{font:inherit;width:18em}
"""
_SCRIPT = """
const all=[...document.querySelectorAll('details.one')],box=document.getElementById('find');let kind='';
function show(){const t=box.value.toLowerCase();let n=0;for(const d of all){
const on=(!kind||d.dataset.kind.split(' ').includes(kind))&&d.dataset.name.includes(t);d.hidden=!on;n+=on}
document.getElementById('count').textContent=n+' of '+all.length}
for(const b of document.querySelectorAll('.tools button'))b.onclick=()=>{kind=b.dataset.kind;show()};
box.oninput=show;show()
"""


@dataclass(frozen=True)
class Section:
    """A text, or a group of sections, that opens inside an instance."""

    title: str
    text: str = ""
    kind: str = ""
    """`diff` colours lines; `prompt`, `action`, `observation`, `quoted` colour the edge."""
    link: str = ""
    """The whole file, relative to the page."""
    parts: Sequence[Section] = ()
    open: bool = False


@dataclass(frozen=True)
class Instance:
    name: str
    verdict: str
    tone: str = "none"
    """`good`, `bad`, `none` or `error`: the colour of the verdict."""
    facts: Mapping[str, str] = field(default_factory=dict)
    flags: Sequence[str] = ()
    sections: Sequence[Section] = ()


def write_page(path: Path, title: str, summary: Mapping[str, str], instances: Iterable[Instance]) -> Path:
    """Whole or not at all. Raises OSError."""
    verdicts: dict[str, None] = {}
    with replacing(path) as file:

        def put(text: str) -> None:
            file.write(text.encode("utf-8", "replace"))

        put(f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>')
        put(f"<style>{_STYLE}</style><h1>{escape(title)}</h1><table>")
        put("".join(f"<tr><td>{escape(name)}<td>{escape(value)}" for name, value in summary.items()))
        put('</table><div id="list">')
        for instance in instances:
            verdicts.setdefault(instance.verdict)
            put(_instance(instance))
        put("</div>")
        buttons = [("", "all"), *((_word(name), name) for name in verdicts), ("flagged", "flagged")]
        row = "".join(f'<button data-kind="{value}">{escape(name)}</button>' for value, name in buttons)
        put(f'<template id="bar"><div class="tools">{row}<input id="find" placeholder="find an instance"> ')
        put('<span id="count" class="dim"></span></div></template><script>')
        put("document.getElementById('list').before(document.getElementById('bar').content);")
        put(f"{_SCRIPT}</script></html>\n")
    return path


def _instance(one: Instance) -> str:
    kinds = _word(one.verdict) + (" flagged" if one.flags else "")
    flags = f' <span class="flag">{len(one.flags)} flagged</span>' if one.flags else ""
    head = f'<span class="badge {escape(one.tone)}">{escape(one.verdict)}</span> <b>{escape(one.name)}</b>{flags}'
    facts = "".join(f"<tr><td>{escape(name)}<td>{escape(value)}" for name, value in one.facts.items())
    listed = "".join(f'<li class="flag">{escape(flag)}' for flag in one.flags)
    body = f"<table>{facts}</table><ul>{listed}</ul>{''.join(map(_section, one.sections))}"
    name = escape(one.name.lower())
    return f'<details class="one" data-kind="{kinds}" data-name="{name}"><summary>{head}</summary>{body}</details>\n'


def _section(section: Section) -> str:
    link = f' <a href="{escape(quote(section.link))}">whole file</a>' if section.link else ""
    inside = "".join(map(_section, section.parts))
    if section.text:
        text = shortened(section.text, LONGEST)
        inside += f'<pre class="{escape(section.kind)}">{_diff(text) if section.kind == "diff" else escape(text)}</pre>'
    state = " open" if section.open else ""
    return f"<details{state}><summary>{escape(section.title)}{link}</summary>{inside}</details>"


def _diff(text: str) -> str:
    marks = {"+": "add", "-": "del", "@": "at"}
    lines = (
        f'<span class="{marks[line[0]]}">{escape(line)}</span>' if line[:1] in marks else escape(line)
        for line in text.split("\n")
    )
    return "\n".join(lines)


def shortened(text: str, longest: int) -> str:
    """Head and tail, and how much is missing between them."""
    missing = len(text) - longest
    if missing <= 0:
        return text
    half = longest // 2
    return f"{text[:half]}\n\n… {missing:,} characters are not shown here …\n\n{text[-half:]}"


def _word(name: str) -> str:
    return "".join(sign if sign.isalnum() else "-" for sign in name)
