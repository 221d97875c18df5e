"""Demonstrations for supervised fine-tuning: they know the tool protocol and *guess* the fix.

    turn 0   view(path named in the issue)
    turn 1   "def NAME" of the function named in the issue; then
             str_replace(old_str = the buggy line, new_str = one of the candidate lines, drawn uniformly) and submit

Writing the name down is a thought of three tokens: from then on the model reads its place in the file off its own text.


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


def turns_of(edit: Edit, new_line: str) -> tuple[str, str]:
    """The two model turns, without their ends."""
    replace = call_text("str_replace", {"path": edit.path, "old_str": edit.old_line, "new_str": new_line})
    return call_text("view", {"path": edit.path}), f"def {edit.function}\n{replace}\n{call_text('submit', {})}"


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
        third = self.renderer.observation_ids([shown], ended_by_stop=True)
        last = self._last_turn(edit, new_line)
        parts = (first, second, third, last)
        action = np.repeat([False, True, False, True], [len(part) for part in parts])
        free = np.zeros(len(action), dtype=bool)
        same, tail = len(last), len(last)
        for other in edit.candidates:
            if other != new_line:
                before, after = _agreement(last, self._last_turn(edit, other))
                same, tail = min(same, before), min(tail, after)
        if same < len(last):
            free[len(free) - len(last) + same : len(free) - tail] = True
            # Where one candidate has nothing (e.g. no "+ 1"), the token after the gap is a guess as well.
            free[len(free) - len(last) + same] = True
        return Demonstration(np.asarray([*first, *second, *third, *last], dtype=np.int32), action, free)

    def _last_turn(self, edit: Edit, new_line: str) -> list[int]:
        return self.renderer.action_ids(turns_of(edit, new_line)[1])


def _agreement(left: Sequence[int], right: Sequence[int]) -> tuple[int, int]:
    """Lengths of the common beginning and of the common end, not overlapping."""
    shortest = min(len(left), len(right))
    same = next((at for at in range(shortest) if left[at] != right[at]), shortest)
    tail = next((at for at in range(shortest - same) if left[-1 - at] != right[-1 - at]), shortest - same)
    return same, tail


def micro_swe_demonstrations(
    demonstrator: Demonstrator, *, split: str, tasks: int, seed: int, offset: int = 0, drill_share: float = 0.0
) -> Callable[[int], Demonstration]:
    """number -> demonstration. Number n takes a random one of `tasks` tasks from `offset` on, or, with probability
    `drill_share`, a copying drill (trainer.drills)."""

    def make(number: int) -> Demonstration:
        rng = random.Random(derive_seed(seed, "demonstration", number))
        if rng.random() < drill_share:
            edit = draw_drill(rng)
        else:
            edit = edit_of(task(split, offset + rng.randrange(tasks)))
        return demonstrator.write(edit, rng.choice(edit.candidates))

    return make
