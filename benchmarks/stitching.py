"""Append-only ids against re-tokenising the conversation in every turn: tokens made, time, and tokens lost to drift.

    python -m benchmarks.stitching [--turns 8 16 32 64 128] [--tokenizer FOLDER] [--seed 0]

Both sides see the same conversation: a model that thinks, calls `view`, and gets a file's text back. What it samples is
not always how a tokenizer would cut the text: one token in `--split` (50) comes as two that spell the same. The usual
way keeps messages as text and renders all of them before every turn (apply_chat_template, thought and call as the
template wants them); its tokens are all that it encodes over the conversation, and lost are sampled tokens that its
last rendering does not hold in their turn. The episode's own way (renderer and `TrajectoryBuilder`) encodes the prompt
once and every observation once; lost are sampled tokens that the built trajectory does not hold in their turn.
The last line is JSON: token_ratio_at_128_turns (or at the most turns asked for), tokens_lost (ours, must be 0),
tokens_lost_retokenised, sampled_tokens.
"""

from __future__ import annotations

import argparse
import difflib
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import agent
from agent.parsers import hermes
from agent.renderers.choose import renderer_for
from agent.renderers.template import TemplateRenderer
from agent.tokenizer import load_tokenizer
from data.trajectory import ExitReason, Identity, Outcome, SpanKind, Status, TrajectoryBuilder
from envs.environment import ToolCall
from envs.tools.schema import SCHEMAS

DEMO = Path(agent.__file__).parent / "assets" / "demo"
TOOLS = (SCHEMAS["view"], SCHEMAS["submit"])
_WORDS = ("total", "price", "items", "order", "count", "the", "bug", "must", "sum", "list", "index", "name", "value")


@dataclass(frozen=True)
class Turn:
    thought: str
    call: ToolCall
    observation: str
    sampled: tuple[int, ...]
    """What the model is taken to have sampled, its end included."""


@dataclass(frozen=True)
class Row:
    turns: int
    appended: int
    """Tokens encoded, append-only."""
    appended_s: float
    retokenised: int
    retokenised_s: float
    sampled: int
    lost: int
    lost_retokenised: int


def conversation(renderer: TemplateRenderer, turns: int, split: int, seed: int) -> list[Turn]:
    chance = random.Random(seed)
    made = []
    for number in range(turns):
        thought = " ".join(chance.choice(_WORDS) for _ in range(chance.randint(8, 24)))
        call = ToolCall("view", {"path": f"shop/{chance.choice(_WORDS)}_{number}.py"})
        lines = [f"    {chance.choice(_WORDS)} = {chance.choice(_WORDS)} + {number}" for _ in range(12)]
        text = f"<think>\n{thought}\n</think>\n\n{hermes.spell([call])}"
        ids = [one for token in renderer.action_ids(text) for one in _perhaps_split(renderer, token, split, chance)]
        made.append(Turn(thought, call, f"def f{number}():\n" + "\n".join(lines), tuple(ids)))
    return made


def _perhaps_split(renderer: TemplateRenderer, token: int, split: int, chance: random.Random) -> list[int]:
    tokenizer = renderer.tokenizer
    text = tokenizer.decode([token])
    if token in tokenizer.added.values() or len(text) < 2 or not text.isascii() or chance.randrange(split):
        return [token]
    at = chance.randint(1, len(text) - 1)
    halves = [*tokenizer.encode_text(text[:at]), *tokenizer.encode_text(text[at:])]
    return halves if tokenizer.decode(halves) == text else [token]


def appended(renderer: TemplateRenderer, turns: Sequence[Turn]) -> tuple[int, int]:
    """(tokens encoded, sampled tokens lost)."""
    prompt = renderer.prompt_ids(_first(), TOOLS)
    builder, encoded = TrajectoryBuilder(prompt), len(prompt)
    for turn in turns:
        builder.append_action(turn.sampled, [-1.0] * len(turn.sampled), [0] * len(turn.sampled))
        observation = renderer.observation_ids([turn.observation], turn.sampled[-1], ["view"])
        encoded += len(observation)
        builder.append_observation(observation)
    who = Identity("benchmark-000000-0", "stitching", 0, 0, renderer.tokenizer_fingerprint)
    made = builder.finish(Outcome(Status.CUT, ExitReason.SYSTEM_CUT), who)
    spans = [span for span in made.spans if span.kind is SpanKind.ACTION]
    tokens = made.tokens.tolist()
    kept = [_kept(turn.sampled, tokens[span.start : span.end]) for turn, span in zip(turns, spans, strict=True)]
    return encoded, sum(len(turn.sampled) for turn in turns) - sum(kept)


def retokenised(renderer: TemplateRenderer, turns: Sequence[Turn]) -> tuple[int, int]:
    """(tokens encoded over all turns, sampled tokens that are not in the last rendering where they were)."""
    encode, messages, encoded = renderer.tokenizer.encode_marked, _first(), 0
    ids = encode(renderer.template_text(messages, TOOLS))
    encoded += len(ids)
    starts = []
    has_thoughts = "reasoning_content" in renderer.tokenizer.chat_template
    for turn in turns:
        starts.append(len(ids))
        function = {"name": turn.call.name, "arguments": dict(turn.call.arguments)}
        thought = {"reasoning_content": turn.thought, "content": ""}
        said = thought if has_thoughts else {"content": f"<think>\n{turn.thought}\n</think>\n"}
        messages += [
            {"role": "assistant", "tool_calls": [{"function": function}], **said},
            {"role": "tool", "content": turn.observation},
        ]
        ids = encode(renderer.template_text(messages, TOOLS))
        encoded += len(ids)
    kept = sum(_kept(turn.sampled, ids[at : at + len(turn.sampled)]) for turn, at in zip(turns, starts, strict=True))
    return encoded, sum(len(turn.sampled) for turn in turns) - kept


def _kept(sampled: Sequence[int], found: Sequence[int]) -> int:
    matcher = difflib.SequenceMatcher(None, sampled, found, autojunk=False)
    return sum(block.size for block in matcher.get_matching_blocks())


def _first() -> list[dict[str, Any]]:
    return [{"role": "system", "content": "You fix bugs."}, {"role": "user", "content": "total() is wrong."}]


def measure(renderer: TemplateRenderer, turns: Sequence[Turn]) -> Row:
    began = time.process_time()
    ours, lost = appended(renderer, turns)
    middle = time.process_time()
    theirs, lost_theirs = retokenised(renderer, turns)
    sampled = sum(len(turn.sampled) for turn in turns)
    return Row(len(turns), ours, middle - began, theirs, time.process_time() - middle, sampled, lost, lost_theirs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, nargs="+", default=[8, 16, 32, 64, 128])
    parser.add_argument("--tokenizer", type=Path, default=DEMO)
    parser.add_argument("--split", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    renderer = renderer_for(load_tokenizer(options.tokenizer))
    whole = conversation(renderer, max(options.turns), options.split, options.seed)
    renderer.prompt_ids(_first(), TOOLS)  # the template is compiled once
    print("turns  tokens encoded          ratio        CPU s  sampled      lost")
    print("       append    again                append  again           append  again")
    rows = [measure(renderer, whole[:turns]) for turns in sorted(options.turns)]
    for row in rows:
        print(
            f"{row.turns:>5} {row.appended:>7} {row.retokenised:>8} {row.retokenised / row.appended:>10.1f} "
            f"{row.appended_s:>9.2f} {row.retokenised_s:>6.2f} {row.sampled:>7} {row.lost:>8} {row.lost_retokenised:>6}"
        )
    last = rows[-1]
    summary = {
        f"token_ratio_at_{last.turns}_turns": round(last.retokenised / last.appended, 1),
        "tokens_lost": sum(row.lost for row in rows),
        "tokens_lost_retokenised": last.lost_retokenised,
        "sampled_tokens": last.sampled,
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
