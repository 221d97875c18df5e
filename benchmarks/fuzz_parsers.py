"""Made-up model outputs through every tool-call parser: no exception, no hang, no wrong execution.

    python -m benchmarks.fuzz_parsers [--count 100000] [--seed 0]

Outputs are of four kinds: fragments in any order; whole turns with thoughts that hold calls, prose and arguments full
of tags, quotes, here-documents and odd Unicode; such turns cut at any character (by the token limit, or ended there);
whole turns with characters removed, doubled or put in. What must hold:
* every output gives a call or a named error;
* a whole turn gives its calls, argument for argument;
* a turn cut by the limit gives only calls that end before the cut, and none where values have no escape;
* a turn that ends early gives only calls that stand in it complete, as `spell` writes them.
The last line is JSON: outputs, exceptions, wrong (executions), slowest_ms.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent.parsers import (
    CallError,
    Parsed,
    Unspeakable,
    deepseek,
    fenced,
    glm_xml,
    harmony,
    hermes,
    llama_json,
    marks,
    qwen_xml,
)
from envs.environment import ToolCall
from envs.tools.schema import SCHEMAS

TOOLS = tuple(SCHEMAS.values())


@dataclass(frozen=True)
class Format:
    name: str
    parse: Callable[..., Parsed]
    """Text in."""
    spell: Callable[[Sequence[ToolCall]], str]
    exact_when_cut: bool
    """JSON says where a call ends, so whole calls of a cut turn count."""
    most: int = 3
    """Calls of one turn."""
    prose: bool = True
    """Text may stand before the calls."""
    thoughts: bool = True


def _marked(module: Any, names: Sequence[str]) -> Callable[..., Parsed]:
    return lambda text, **options: module.parse(marks.split(text, names), **options)


FORMATS = (
    Format("hermes", hermes.parse, hermes.spell, True),
    Format("qwen_xml", qwen_xml.parse, lambda calls: qwen_xml.spell(calls, TOOLS), False),
    Format("glm_xml", glm_xml.parse, lambda calls: glm_xml.spell(calls, TOOLS), False),
    Format("llama_json", llama_json.parse, llama_json.spell, True),
    Format("deepseek", _marked(deepseek, deepseek.MARKS), lambda calls: "".join(deepseek.spell(calls)), True),
    Format(
        "harmony", _marked(harmony, harmony.MARKS), lambda calls: "".join(harmony.spell(calls)), True, 1, False, False
    ),
    Format("fenced", fenced.parse, fenced.spell, False, 1),
)

_VALUES = (
    "a", "total", " ", "\n", "\n\n", "\t", "{", "}", "{}", '"', "'", "\\", "\\n", "`", "```", "\n```\n", "\n```bash\n",
    "#", "<", ">",
    "<tool_call>", "</tool_call>", "<function=bash>", "</function>", "<parameter=x>", "\n</parameter>\n",
    "<arg_key>k</arg_key>", "<arg_value>", "</arg_value>", "<think>", "</think>", "<tool_response>", "\u2028", "\u2029",
    "\x85", "\x1c", "\ufeff", "\u200d", "🐍", "é", "\x00", "\r\n", "\r", "null", "NaN", "1e9", '{"name": "bash"}',
    "cat > f <<'EOF'\n", "\nEOF\n", "<<-END\n", "$(( 1 << 2 ))", "'<<X'", "x = {'a': [1, 2]}", "; rm -rf /", "/* */",
)  # fmt: skip
_MARKS = ("<|call|>", "<|end|>", "<|message|>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "<|im_end|>", "<|python_tag|>")
_SOUP = (
    *_VALUES, *_MARKS, *deepseek.MARKS, *harmony.MARKS, "<function=view>", "<parameter=path>",
    "commentary to=functions.view", "analysis", "json", '{"name": "view", "arguments": {"path": "a.py"}}',
    '{"name": "bash", "parameters": {"command": ', "assistant",
    "view\n<arg_key>path</arg_key>", "```bash\n", "submit", ", ", ": ", "[", "]", "function", "\n```json\n",
)  # fmt: skip
_PROSE = (
    "I look.",
    "Let me see\nwhat total() does.\n",
    "",
    "\n",
    "é \u2028",
    "The tag </tool_call> ends it, I think.\n",
)


@dataclass
class Report:
    outputs: int = 0
    exceptions: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    slowest_ms: float = 0.0
    calls: int = 0
    """Executed."""


class Fuzz:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.report = Report()

    def run(self, count: int) -> Report:
        kinds = (self._soup, self._whole, self._cut, self._cut, self._mutated)
        for number in range(count):
            kinds[number % len(kinds)](FORMATS[number // len(kinds) % len(FORMATS)])
        return self.report

    def _soup(self, form: Format) -> None:
        text = "".join(self.random.choice(_SOUP) for _ in range(self.random.randint(0, 20)))
        self._parse(form, text, cut=self.random.random() < 0.5, in_thought=self.random.random() < 0.2)

    def _whole(self, form: Format) -> None:
        text, calls, _ = self._turn(form)
        parsed = self._parse(form, text)
        if parsed != tuple(calls):
            self._wrong(form, "a whole turn", text, parsed)

    def _cut(self, form: Format) -> None:
        text, calls, ends = self._turn(form)
        size, cut = self.random.randint(0, len(text)), self.random.random() < 0.5
        text = text[:size]
        ran = [item for item in self._parse(form, text, cut=cut) if isinstance(item, ToolCall)]
        if form.exact_when_cut:
            right = ran == [call for call, end in zip(calls, ends, strict=True) if end <= size]
        elif cut:
            right = not ran
        else:
            right = not ran or self._stands(form, text, ran)
        if not right:
            self._wrong(form, f"a turn cut at {size} (limit: {cut})", text, ran)

    def _mutated(self, form: Format) -> None:
        text, _, _ = self._turn(form)
        for _ in range(self.random.randint(1, 3)):
            at = self.random.randint(0, len(text))
            kind = self.random.randint(0, 2)
            put = self.random.choice(_SOUP) if kind == 0 else text[at : at + self.random.randint(1, 30)] * (kind == 1)
            text = text[:at] + put + text[at + (self.random.randint(1, 8) if kind == 2 else 0) :]
        self._parse(form, text, cut=self.random.random() < 0.3)

    def _stands(self, form: Format, text: str, ran: Sequence[ToolCall]) -> bool:
        """The text ends with exactly these calls."""
        try:
            return text.rstrip().endswith(form.spell(ran))
        except Unspeakable:
            return False

    def _turn(self, form: Format) -> tuple[str, list[ToolCall], list[int]]:
        """A turn that the format can carry, its calls, and where each ends."""
        while True:
            calls = [self._call(form) for _ in range(self.random.randint(1, form.most))]
            try:
                begin = self._before(form)
                ends = [len(begin) + len(form.spell(calls[: number + 1])) for number in range(len(calls))]
                if form.name == "deepseek":  # <｜tool▁calls▁end｜> stands behind the last call only
                    ends = [end - len(deepseek.CALLS_END) for end in ends]
                return begin + form.spell(calls), calls, ends
            except Unspeakable:
                continue

    def _before(self, form: Format) -> str:
        thought = ""
        if form.thoughts and self.random.random() < 0.4:
            inner = (
                form.spell([ToolCall("bash", {"command": "rm -rf /"})]) if form.name != "fenced" else "```bash\nrm\n```"
            )
            thought = f"<think>\nmaybe {inner} or not\n</think>\n\n"
        prose = self.random.choice(_PROSE) if form.prose else ""
        if form.name in ("hermes", "llama_json", "fenced") and prose and not prose.endswith("\n"):
            prose += "\n"
        return thought + prose

    def _call(self, form: Format) -> ToolCall:
        name = (
            "bash" if form.name == "fenced" else self.random.choice(("bash", "view", "str_replace", "create", "submit"))
        )
        properties = SCHEMAS[name]["function"]["parameters"]["properties"]
        kept = [key for key in properties if key == "command" or (form.name != "fenced" and self.random.random() < 0.8)]
        return ToolCall(name, {key: self._value(form, properties[key]["type"]) for key in kept})

    def _value(self, form: Format, kind: str) -> Any:
        if kind != "string":
            return self.random.randint(0, 10**6)
        # Marks in an argument are text that the tokenizer tells apart; spelled here they would be marks.
        choices = _VALUES if form.name in ("deepseek", "harmony") else (*_VALUES, *_MARKS)
        return "x" + "".join(self.random.choice(choices) for _ in range(self.random.randint(0, 10)))

    def _parse(self, form: Format, text: str, **options: Any) -> Parsed:
        began = time.perf_counter()
        try:
            parsed = form.parse(text, tools=TOOLS, **options)
        except Exception as error:  # what this looks for
            self.report.exceptions.append(f"{form.name}: {error!r} on {text!r}")
            return ()
        self.report.slowest_ms = max(self.report.slowest_ms, 1000 * (time.perf_counter() - began))
        self.report.outputs += 1
        self.report.calls += sum(isinstance(item, ToolCall) for item in parsed)
        if not parsed or not all(isinstance(item, ToolCall | CallError) for item in parsed):
            self._wrong(form, "neither call nor error", text, parsed)
        return parsed

    def _wrong(self, form: Format, what: str, text: str, got: object) -> None:
        self.report.wrong.append(f"{form.name}: {what}: {text!r} gave {got!r}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began = time.perf_counter()
    report = Fuzz(options.seed).run(options.count)
    for line in [*report.exceptions, *report.wrong][:5]:
        print(line)
    print(f"{report.outputs} outputs, {report.calls} calls executed, {time.perf_counter() - began:.0f} s")
    summary = {
        "outputs": report.outputs,
        "exceptions": len(report.exceptions),
        "wrong": len(report.wrong),
        "slowest_ms": round(report.slowest_ms, 1),
    }
    print(json.dumps(summary))
    raise SystemExit(1 if report.wrong or report.exceptions else 0)


if __name__ == "__main__":
    main()
