"""Agent presets: which prompt, which tools, which limits. TOML files in agent/presets/, or any path.

Promises: unknown keys, missing placeholders and impossible limits are errors that name the file and the key.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError, model_validator

from data.reading import InputError, is_file, read_toml, shown

FOLDER = Path(__file__).parent / "presets"


class PresetError(InputError):
    """A preset cannot be used; the text says which file, which key and how to mend it."""


class Limits(BaseModel):
    """Limits of one episode. `agent.episode` documents the order in which they are checked."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_turns: PositiveInt
    """Model turns."""
    max_tokens: PositiveInt
    """Sampled tokens over all turns."""
    max_context: PositiveInt
    """Tokens of the whole episode: prompt, actions and observations. The engine's own limit also holds."""
    command_timeout_s: PositiveFloat
    """Seconds one command may run unless the model asks for more or less. The environment enforces it."""
    max_command_timeout_s: PositiveFloat = 600.0
    """The most that the model may ask for, within the episode's own time: builds and test suites take minutes."""
    episode_timeout_s: PositiveFloat
    """Seconds from the first prompt on; preparing the sandbox and grading do not count."""
    observation_chars: int = Field(ge=200)
    """Characters of one tool call's output; the middle is left out, saying so."""
    max_turn_tokens: PositiveInt | None = None
    """Sampled tokens of one turn; none: only the limits above. A turn cut here goes on after an error message."""
    answer_reserve: PositiveInt = 128
    """Tokens of the context that an observation leaves free for the model's next turn."""
    reset_timeout_s: PositiveFloat = 900.0
    """Seconds until preparing the sandbox counts as an infrastructure fault (an image may have to be pulled)."""
    grade_timeout_s: PositiveFloat = 1800.0
    """Seconds until grading counts as an infrastructure fault."""

    @property
    def longest_command_s(self) -> float:
        return max(self.command_timeout_s, min(self.max_command_timeout_s, self.episode_timeout_s))

    @model_validator(mode="after")
    def _fits(self) -> Limits:
        if self.answer_reserve >= self.max_context:
            raise ValueError(f"answer_reserve {self.answer_reserve} must be below max_context {self.max_context}")
        return self


class Preset(BaseModel):
    """`user` holds the placeholder {problem}, replaced by the environment's message as it stands."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    system: str
    user: str = "{problem}"
    tools: tuple[str, ...]
    """None where the task is answered in text and nothing else."""
    calls: Literal["native", "fenced"] = "native"
    """How the model acts: tool calls as its family writes them, or one fenced block of shell a turn."""
    max_calls: PositiveInt | None = None
    """Calls that one turn may make; a turn with more runs none of them. None: any number, in order."""
    list_tools: bool = True
    """Show the tools in the prompt as the family does. False: the preset's own text says what they are, in a tenth of
    the tokens; for small models that were fine-tuned on exactly this prompt."""
    output: Literal["screen", "raw"] = "screen"
    """How commands' output is shown: as a terminal would (redrawn lines once, no colours), or as it was written."""
    thinking: bool | None = None
    """For chat templates that ask: think before acting or not. None leaves the template's own way."""
    limits: Limits

    @model_validator(mode="after")
    def _consistent(self) -> Preset:
        if "{problem}" not in self.user:
            raise ValueError("user: the template must hold {problem}")
        if len(set(self.tools)) != len(self.tools):
            raise ValueError("tools: a tool is named twice")
        if self.calls == "fenced" and set(self.tools) != {"bash", "submit"}:
            raise ValueError('tools: with calls = "fenced" they are "bash" and "submit"')
        return self

    @property
    def label(self) -> str:
        """What trajectories record: the name and a hash of all that the preset says; an edited one is another."""
        text = json.dumps(self.model_dump(mode="json", exclude_defaults=True), sort_keys=True)
        return f"{self.name}@{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    def messages(self, problem: str) -> list[dict[str, str]]:
        """The first prompt's messages."""
        # Not str.format: problems are full of braces.
        user = {"role": "user", "content": self.user.replace("{problem}", problem)}
        return [{"role": "system", "content": self.system}, user] if self.system else [user]


def preset_names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load_preset(name: str | Path) -> Preset:
    """By name (agent/presets/<name>.toml) or by the path of a .toml file. Raises PresetError."""
    path = Path(name)
    if path.suffix != ".toml":
        path = FOLDER / f"{name}.toml"
    if not is_file(path):
        raise PresetError(
            f"no agent preset {shown(name)!r}. Known: {', '.join(preset_names())}; or give the path of a .toml file."
        )
    try:
        return Preset.model_validate(read_toml(path))
    except InputError as error:
        raise PresetError(str(error)) from error
    except ValidationError as error:
        problems = "; ".join(
            ".".join(str(part) for part in item["loc"]) + (": " if item["loc"] else "") + item["msg"]
            for item in error.errors()
        )
        raise PresetError(f"{path}: {problems}") from error
