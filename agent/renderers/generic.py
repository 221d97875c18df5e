"""Any other model: frames read off its chat template, refused with the reason when that is not append-only.

The tool-call format is found by letting each parser read the template's own spelling of a call; a template without
tools gets them listed in the system message and Hermes calls. Checked when it is made: three rounds of tool results and
of user messages, built by appending, are what the template prints for the whole conversation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agent.parsers import Parsed, Tools, glm_xml, hermes, llama_json, qwen_xml
from agent.renderers.frames import PATHS, TOOL, Frames, check_thoughts, read_frames
from agent.renderers.template import PROBE_TOOL, RendererRefused, TemplateRenderer
from agent.tokenizer import Tokenizer
from data.reading import read_object
from envs.environment import ToolCall


@dataclass(frozen=True)
class Format:
    name: str
    parse: Callable[..., Parsed]
    spell: Callable[[Sequence[ToolCall], Tools], str]
    shape: str


FORMATS = (
    Format("hermes", hermes.parse, lambda calls, tools: hermes.spell(calls), hermes.SHAPE),
    Format("qwen_xml", qwen_xml.parse, qwen_xml.spell, qwen_xml.SHAPE),
    Format("glm_xml", glm_xml.parse, glm_xml.spell, glm_xml.SHAPE),
    Format("llama_json", llama_json.parse, lambda calls, tools: llama_json.spell(calls), llama_json.SHAPE),
)


class GenericRenderer(TemplateRenderer):
    """Raises RendererRefused (NotAppendOnly among them)."""

    family = "generic"

    def __init__(self, tokenizer: Tokenizer, *, thinking: bool | None = None) -> None:
        super().__init__(tokenizer, thinking=thinking)
        names = self._stop_names()
        self.frames = self._frames(names)
        self.format = self._format(self.frames.call)
        self.shape = self.format.shape  # type: ignore[misc]
        others = [tokenizer.added[name] for name in names if name != self.frames.stop]
        self._end = tokenizer.added[self.frames.stop]
        self._stops = (self._end, *others)

    def _stop_names(self) -> list[str]:
        """The end token of the tokenizer, and those of generation_config.json."""
        added = self.tokenizer.added
        ids = {added.get(str(self.tokenizer.hf.eos_token), -1)}
        file = self.tokenizer.folder / "generation_config.json"
        if file.is_file():
            given = read_object(file).get("eos_token_id")
            ids |= {one for one in (given if isinstance(given, list) else [given]) if isinstance(one, int)}
        names = [name for name, one in added.items() if one in ids]
        if not names:
            raise RendererRefused(f"{self.tokenizer.folder}: the tokenizer names no end token (eos_token)")
        return names

    def _frames(self, stops: Sequence[str]) -> Frames:
        try:
            frames = read_frames(self, [PROBE_TOOL], stops)
            check_thoughts(self, [PROBE_TOOL], frames)
            return frames
        except RendererRefused as error:
            raise type(error)(f"{self.tokenizer.folder}: no renderer for this model: {error}") from error

    def _format(self, written: str) -> Format:
        if not written:
            return FORMATS[0]
        wanted = (ToolCall(TOOL, {"path": PATHS[0]}),)
        for one in FORMATS:
            if one.parse(written, tools=[PROBE_TOOL]) == wanted:
                return one
        raise RendererRefused(
            f"{self.tokenizer.folder}: no renderer for this model: its template writes calls in a format that no "
            f"parser reads: {written[:200]!r}"
        )

    def _close(self, ended_by: int | None) -> list[int | str]:
        return [] if ended_by == self._end else [self._end]

    def _replies(self, texts: Sequence[str], names: Sequence[str | None], ended_by: int | None) -> list[int | str]:
        if self.frames.tool is None:
            return self._user("\n\n".join(texts), ended_by)
        frame = self.frames.tool
        pieces = self._marked(frame.before)
        for number, text in enumerate(texts):
            pieces += [*(self._marked(frame.between) if number else []), text]
        return [*pieces, *self._marked(frame.after)]

    def message_ids(self, text: str, ended_by: int | None) -> list[int]:
        if self.frames.user_refusal:
            raise RendererRefused(f"{self.tokenizer.folder}: actions without tool calls: {self.frames.user_refusal}")
        return super().message_ids(text, ended_by)

    def _user(self, text: str, ended_by: int | None) -> list[int | str]:
        frame = self.frames.user
        return [*self._marked(frame.before), text, *self._marked(frame.after)]

    def parse(self, tokens: Sequence[int], *, before: Sequence[int], cut: bool, tools: Tools) -> Parsed:
        return self.format.parse(self.action_text(tokens), cut=cut, in_thought=self.in_thought(before), tools=tools)

    def spell(self, calls: Sequence[ToolCall], tools: Tools = ()) -> str:
        return self.format.spell(calls, tools)
