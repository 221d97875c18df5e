"""Demonstrations for supervised fine-tuning: they know the tool protocol and *guess* the fix.

    turn 0   view(path named in the issue)
    turn 1   "def NAME HINT PART": the function named in the issue, the word of its docstring that says what is right,
             and the part that the guess puts in; then
             str_replace(old_str = the buggy line, new_str = the candidate line with that part) and submit
             where the candidate is drawn uniformly.

The thought before the call costs some five tokens. The model reads its place in the file off its own text, and what
reinforcement learning has to find out (which part goes with which word) stands side by side.

Promises:
* the ids are those of a real episode that plays these turns: prompt and observations come from the renderer, texts from
  the tools' own functions (a test plays them in a sandbox and compares);
* the guess is drawn without looking at which candidate is right: the demonstrations carry no reward signal;
* pure function of (seed, number): any demonstration can be made again alone, so training resumes anywhere.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent.presets import Preset
from agent.renderers.qwen import QwenRenderer
from agent.seeds import derive_seed
from data.micro_swe import task
from envs.tools import ToolSet
from envs.tools.text import cap, view_text
from trainer.drills import draw_drill
from trainer.edits import Edit, edit_of


@dataclass(frozen=True, eq=False)
class Demonstration:
    """One token axis [T]. `action` marks what is learned; `free`, inside it, what differs between candidates: the
    guess itself, which no policy can foresee."""

    tokens: NDArray[np.int32]
    action: NDArray[np.bool_]
    free: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.tokens)


def call_text(name: str, arguments: Mapping[str, Any]) -> str:
    """A tool call as the model writes it."""
    body = json.dumps({"name": name, "arguments": dict(arguments)}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def thought_of(edit: Edit, new_line: str) -> str:
    part = edit.fills[edit.candidates.index(new_line)].strip()
    return " ".join(word for word in ("def", edit.function, edit.hint, part) if word)


def turns_of(edit: Edit, new_line: str) -> tuple[str, str]:
    """The two model turns, without their ends. `new_line` is one of the candidates."""
    replace = call_text("str_replace", {"path": edit.path, "old_str": edit.old_line, "new_str": new_line})
    return call_text("view", {"path": edit.path}), f"{thought_of(edit, new_line)}\n{replace}\n{call_text('submit', {})}"


class Demonstrator:
    """Writes demonstrations in one chat format for one agent preset."""

    def __init__(self, renderer: QwenRenderer, preset: Preset) -> None:
        self.renderer, self.preset = renderer, preset
        self._schemas = ToolSet(preset.tools).schemas

    def write(self, edit: Edit, new_line: str) -> Demonstration:
        """The episode that replaces the buggy line by `new_line`, up to the end of the last action: what follows
        `submit` is never acted on."""
        limit = self.preset.limits.observation_chars
        shown = cap(view_text(edit.text.encode()), limit)
        view, _ = turns_of(edit, new_line)
        first = self.renderer.prompt_ids(self.preset.messages(edit.problem), self._schemas)
        second = self.renderer.action_ids(view)
        third = self.renderer.observation_ids([shown], self.renderer.stop_ids[0])
        last = self._last_turn(edit, new_line)
        parts = (first, second, third, last)
        action = np.repeat([False, True, False, True], [len(part) for part in parts])
        free = np.zeros(len(action), dtype=bool)
        start = len(free) - len(last)
        free[start : start + len(last)] = self._guessed(edit, new_line, last)
        return Demonstration(np.asarray([*first, *second, *third, *last], dtype=np.int32), action, free)

    def _guessed(self, edit: Edit, new_line: str, turn: list[int]) -> NDArray[np.bool_]:
        """Marks the tokens of the thought that differ between candidates (or the one after, where a candidate's part is
        empty). The rest of the turn follows from them."""
        thought = len(self.renderer.tokenizer.encode_marked(thought_of(edit, new_line)))
        others = [self._last_turn(edit, line) for line in edit.candidates if line != new_line]
        first = min((_common(turn, other) for other in others), default=thought)
        places = np.arange(len(turn))
        return (places >= first) & (places < max(thought, first + 1)) if others else np.zeros(len(turn), dtype=bool)

    def _last_turn(self, edit: Edit, new_line: str) -> list[int]:
        return self.renderer.action_ids(turns_of(edit, new_line)[1])


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the common beginning."""
    pairs = zip(left, right, strict=False)
    return next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(left), len(right)))


def micro_swe_demonstrations(
    demonstrator: Demonstrator,
    *,
    split: str,
    tasks: int,
    seed: int,
    offset: int = 0,
    drill_share: float = 0.0,
    drill_lists: bool = True,
) -> Callable[[int], Demonstration]:
    """number -> demonstration. Number n takes a random one of `tasks` tasks from `offset` on, or, with probability
    `drill_share`, a copying drill (trainer.drills)."""

    def make(number: int) -> Demonstration:
        rng = random.Random(derive_seed(seed, "demonstration", number))
        if rng.random() < drill_share:
            edit = draw_drill(rng, lists=drill_lists)
        else:
            edit = edit_of(task(split, offset + rng.randrange(tasks)))
        return demonstrator.write(edit, rng.choice(edit.candidates))

    return make
