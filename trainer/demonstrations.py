"""Demonstrations for supervised fine-tuning, in any family's format: they know the tool protocol and *guess* the fix.

    turn 0   view(path named in the issue)
    turn 1   "def NAME HINT PART": the function named in the issue, the word of its docstring that says what is right,
             and the part that the guess puts in; then
             str_replace(old_str = the buggy line, new_str = the candidate line with that part) and submit
             where the candidate is drawn uniformly. Formats with one call a turn submit in a turn of its own.

The thought before the call costs some five tokens. The model reads its place in the file off its own text, and what
reinforcement learning has to find out (which part goes with which word) stands side by side.

Promises:
* the ids are those of a real episode that plays these turns: prompt, turns and observations come from the model's
  renderer, texts from the tools' own functions (a test plays them in a sandbox and compares);
* the family's parser reads the calls back that were written (checked in every turn, `TemplateRenderer.call_ids`);
* it ends within the preset's limits: an edit that does not fit is drawn again;
* the guess is drawn without looking at which candidate is right: the demonstrations carry no reward signal;
* pure function of (seed, number): any demonstration can be made again alone, so training resumes anywhere.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent.presets import Preset, PresetError
from agent.renderers.template import TemplateRenderer
from agent.seeds import derive_seed
from data.micro_swe import task
from envs.environment import ToolCall
from envs.tools import ToolSet
from envs.tools.text import cap, edited_text, view_text
from trainer.drills import draw_drill
from trainer.edits import Edit, edit_of

_TOOLS = ("view", "str_replace", "submit")
_ATTEMPTS = 200


@dataclass(frozen=True, eq=False)
class Demonstration:
    """One token axis [T]. `action` marks what is learned; `free`, inside it, what differs between candidates: the
    guess itself, which no policy can foresee."""

    tokens: NDArray[np.int32]
    action: NDArray[np.bool_]
    free: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class Turn:
    """What a demonstration says before its calls, and the calls."""

    words: str
    calls: tuple[ToolCall, ...]


def thought_of(edit: Edit, new_line: str) -> str:
    part = edit.fills[edit.candidates.index(new_line)].strip()
    return " ".join(word for word in ("def", edit.function, edit.hint, part) if word)


def turns_of(edit: Edit, new_line: str, calls_a_turn: int | None = None) -> tuple[Turn, ...]:
    """The model's turns. `new_line` is one of the candidates."""
    replace = ToolCall("str_replace", {"path": edit.path, "old_str": edit.old_line, "new_str": new_line})
    view, submit = ToolCall("view", {"path": edit.path}), ToolCall("submit", {})
    words = thought_of(edit, new_line)
    if calls_a_turn == 1:
        return Turn("", (view,)), Turn(words, (replace,)), Turn("", (submit,))
    return Turn("", (view,)), Turn(words, (replace, submit))


class Demonstrator:
    """Writes demonstrations in one chat format for one agent preset. Raises PresetError where the preset's agent cannot
    act like this."""

    def __init__(self, renderer: TemplateRenderer, preset: Preset) -> None:
        missing = [name for name in _TOOLS if name not in preset.tools]
        if missing or preset.calls != "native":
            why = f"it lacks {', '.join(missing)}" if missing else "it acts in fenced shell"
            raise PresetError(
                f"preset {preset.name}: micro-SWE demonstrations call {', '.join(_TOOLS)}, and {why}. Take another "
                "--preset: demo, editor or default"
            )
        self.renderer, self.preset = renderer, preset
        self._schemas = ToolSet(preset.tools).schemas
        limits = [one for one in (renderer.calls_a_turn, preset.max_calls) if one is not None]
        self.calls_a_turn = 1 if limits and min(limits) == 1 else None

    def write(self, edit: Edit, new_line: str) -> Demonstration:
        """The episode that replaces the buggy line by `new_line`, up to the end of the last action: what follows
        `submit` is never acted on."""
        ids = self.renderer.prompt_ids(self.preset.messages(edit.problem), self._listed)
        spans: list[tuple[int, int]] = []
        free = (0, 0)
        turns = turns_of(edit, new_line, self.calls_a_turn)
        for turn in turns:
            made = self._turn(turn, ids)
            spans.append((len(ids), len(ids) + len(made)))
            if turn.words:
                free = self._guessed(edit, new_line, ids, made)
            ids = [*ids, *made]
            if turn is not turns[-1]:
                texts = [cap(_shown(call, edit), self.preset.limits.observation_chars) for call in turn.calls]
                ids += self.renderer.observation_ids(texts, made[-1], [call.name for call in turn.calls])
        places = np.arange(len(ids))
        action = np.any([(places >= start) & (places < end) for start, end in spans], axis=0)
        return Demonstration(np.asarray(ids, dtype=np.int32), action, (places >= free[0]) & (places < free[1]))

    def misfit(self, one: Demonstration) -> str:
        """Which of the preset's limits a demonstration breaks; empty: none."""
        limits = self.preset.limits
        edges = np.flatnonzero(np.diff(np.concatenate([[0], one.action.astype(np.int8), [0]])))
        turns = [int(end - start) for start, end in zip(edges[::2], edges[1::2], strict=True)]
        for name, found, limit in (
            ("max_turns", len(turns), limits.max_turns),
            ("max_tokens", sum(turns), limits.max_tokens),
            ("max_context", len(one), limits.max_context),
            ("max_turn_tokens", max(turns), limits.max_turn_tokens),
        ):
            if limit is not None and found > limit:
                return f"{name} is {limit}, and it takes {found}"
        return ""

    @property
    def _listed(self) -> Sequence[Mapping[str, Any]]:
        return self._schemas if self.preset.list_tools else ()

    def _turn(self, turn: Turn, before: Sequence[int]) -> list[int]:
        return self.renderer.call_ids(turn.calls, self._schemas, before=before, words=turn.words)

    def _guessed(self, edit: Edit, new_line: str, before: list[int], made: list[int]) -> tuple[int, int]:
        """The tokens of the thought that differ between candidates (or the one after, where a candidate's part is
        empty). The rest of the turn follows from them."""
        said = len(self.renderer.words_ids(thought_of(edit, new_line), before=before))
        others = [
            self._turn(turn, before)
            for line in edit.candidates
            if line != new_line
            for turn in turns_of(edit, line, self.calls_a_turn)
            if turn.words
        ]
        if not others:
            return 0, 0
        first = min(_common(made, other) for other in others)
        return len(before) + first, len(before) + max(said, first + 1)


def _shown(call: ToolCall, edit: Edit) -> str:
    return view_text(edit.text.encode()) if call.name == "view" else edited_text(edit.path)


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
        misfit = ""
        for _ in range(_ATTEMPTS):
            if rng.random() < drill_share:
                edit = draw_drill(rng, lists=drill_lists)
            else:
                edit = edit_of(task(split, offset + rng.randrange(tasks)))
            made = demonstrator.write(edit, rng.choice(edit.candidates))
            misfit = demonstrator.misfit(made)
            if not misfit:
                return made
        preset = demonstrator.preset.name
        raise PresetError(f"preset {preset}: none of {_ATTEMPTS} demonstrations fits it (the last: {misfit})")

    return make
