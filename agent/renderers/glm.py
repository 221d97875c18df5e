"""GLM-4.5 and later: <|user|>, <|assistant|>, <|observation|>, calls as tags (`parsers.glm_xml`).

A turn has no end of its own: the model samples the token that begins the next message, <|observation|> behind calls and
<|user|> behind an answer. The versions differ in line breaks only, so the frames are read off the template. Where it
would rewrite history:
* it drops thoughts before the last user message and puts <think></think> in their place: here they stay;
* it trims a turn's text: here it stays as sampled.
A turn that ended with <|user|> is answered there, as the user, calls or not.
"""

from __future__ import annotations

from collections.abc import Sequence

from agent.parsers import Parsed, Tools, glm_xml
from agent.renderers.frames import read_frames
from agent.renderers.template import PROBE_TOOL, TemplateRenderer
from agent.tokenizer import Tokenizer
from envs.environment import ToolCall

OBSERVATION, USER, LAST = "<|observation|>", "<|user|>", "<|endoftext|>"


class GlmRenderer(TemplateRenderer):
    family = "glm"
    shape = glm_xml.SHAPE

    def __init__(self, tokenizer: Tokenizer, *, thinking: bool | None = None) -> None:
        super().__init__(tokenizer, thinking=thinking)
        self._observation, self._user_id = tokenizer.added_id(OBSERVATION), tokenizer.added_id(USER)
        self._stops = (self._observation, self._user_id, tokenizer.added_id(LAST))
        self._frames = read_frames(self, [PROBE_TOOL], (OBSERVATION, USER))

    def _close(self, ended_by: int | None) -> list[int | str]:
        return []  # the next message's first token is the end

    def _replies(self, texts: Sequence[str], names: Sequence[str | None], ended_by: int | None) -> list[int | str]:
        frame = self._frames.tool
        if ended_by == self._user_id or frame is None:
            return self._user("\n\n".join(texts), ended_by)
        pieces: list[int | str] = [] if ended_by == self._observation else [self._observation]
        pieces += self._marked(frame.before)
        for number, text in enumerate(texts):
            pieces += [*(self._marked(frame.between) if number else []), text]
        return [*pieces, *self._marked(frame.after)]

    def _user(self, text: str, ended_by: int | None) -> list[int | str]:
        frame = self._frames.user
        first: list[int | str] = [] if ended_by == self._user_id else [self._user_id]
        return [*first, *self._marked(frame.before), text, *self._marked(frame.after)]

    def _answer_end(self) -> int:
        return self._user_id

    def parse(self, tokens: Sequence[int], *, before: Sequence[int], cut: bool, tools: Tools) -> Parsed:
        return glm_xml.parse(self.action_text(tokens), cut=cut, in_thought=self.in_thought(before), tools=tools)

    def spell(self, calls: Sequence[ToolCall], tools: Tools = ()) -> str:
        return glm_xml.spell(calls, tools)
