"""An optional LLM judge of answers that the rules cannot decide, behind an OpenAI-compatible endpoint.

Promises:
* only answers are judged, never whole solutions; which ones is `wanted`, and the rule's own verdict is never changed;
* problem, reference and answer are data between marks with a code that follows from all three, which no answer can know
  beforehand; a verdict is one line with that code, alone and last, or there is none;
* a judge that fails, or whose verdict cannot be read, gives an error, never a "wrong";
* equal questions are asked once; what was answered is kept in a file, so that a killed run asks only the rest.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, TypeAdapter, ValidationError

from agent.endpoint.client import ChatClient
from agent.endpoint.faults import Filtered, TooLong
from agent.parsers.common import after_thought
from agent.policy import EngineError
from data.reading import InputError, parse_json, parse_toml, read_bytes, read_text
from eval.errors import EvalError
from eval.maths.report import Sample, Samples

FOLDER = Path(__file__).parent / "judges"
PROMPT = "v1"
UNDECIDED, ALL = "undecided", "all"
STORED_CHARS = 500
"""An answer as long as this may have been cut when it was logged."""
_UNDECIDED = ("unreadable", "too_hard")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_WORD = re.compile(r"[^\W\d_]{3,}")
_FUNCTIONS = {"sin", "cos", "tan", "cot", "log", "exp", "max", "min", "gcd", "lcm", "mod", "det", "deg", "abs", "sqrt"}


class JudgePrompt(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    system: str
    user: str
    max_tokens: PositiveInt
    temperature: float = Field(ge=0)
    sha256: str = ""
    """Of the file; not a key of it."""

    def messages(self, question: Question) -> list[dict[str, str]]:
        # One pass: a text that spells a placeholder stays as it is.
        values = {**asdict(question), "mark": question.mark}
        pattern = re.compile(r"\{(" + "|".join(values) + r")\}")
        system, user = (pattern.sub(lambda found: values[found[1]], text) for text in (self.system, self.user))
        return [{"role": "system", "content": system}, {"role": "user", "content": user}]


@dataclass(frozen=True)
class Question:
    problem: str
    reference: str
    answer: str

    @property
    def mark(self) -> str:
        text = json.dumps([self.problem, self.reference, self.answer])
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Judgement:
    correct: bool | None
    """None: no verdict, and `error` says why."""
    text: str = ""
    """The judge's whole reply."""
    error: str = ""
    model: str = ""
    """That answered, as the endpoint says."""

    def told(self) -> dict[str, Any]:
        """For the report."""
        verdict = "error" if self.correct is None else ("correct" if self.correct else "incorrect")
        return {"verdict": verdict, "text": self.text, **({"error": self.error} if self.error else {})}


_TEXT: TypeAdapter[str] = TypeAdapter(str)
_JUDGEMENT: TypeAdapter[Judgement] = TypeAdapter(Judgement)


def load_prompt(name: str = PROMPT) -> JudgePrompt:
    """Raises EvalError."""
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    try:
        data = read_bytes(path)
        values = parse_toml(data.decode("utf-8"), str(path))
        return JudgePrompt.model_validate({**values, "sha256": hashlib.sha256(data).hexdigest()})
    except (InputError, UnicodeDecodeError, ValidationError) as error:
        raise EvalError(f"{path} is no prompt for a judge: {error}") from error


def read_verdict(text: str, mark: str) -> Judgement:
    """Strict: exactly one verdict with the question's code, in the last line."""
    said = after_thought(text, "</think>" in text and not text.lstrip().startswith("<think>"))
    lines = [line.strip().strip("*`").strip() for line in said.strip().splitlines()]
    verdicts = [line for line in lines if line.startswith(f"VERDICT {mark}")]
    known = {f"VERDICT {mark}: CORRECT": True, f"VERDICT {mark}: INCORRECT": False}
    if len(verdicts) != 1 or lines[-1] not in known:
        return Judgement(None, text, f"no verdict of the asked form ({len(verdicts)} lines begin like one)")
    return Judgement(known[lines[-1]], text)


def undecided(sample: Sample, reference: str) -> bool:
    """The rules could not read it, gave up, or compared words letter by letter."""
    if sample.why in _UNDECIDED or sample.why.startswith("failed"):
        return True
    return sample.why == "different" and (has_words(reference) or has_words(sample.answer or ""))


def has_words(text: str) -> bool:
    return any(word.lower() not in _FUNCTIONS for word in _WORD.findall(_COMMAND.sub(" ", text)))


def wanted(samples: Samples, which: str) -> dict[tuple[str, int], Question]:
    """What to ask about which sample. A sample without an answer is wrong by the rules, whoever judges."""
    found: dict[tuple[str, int], Question] = {}
    rows = {task.task_id: task.row for task in samples.tasks}
    for place, sample in sorted(samples.made.items()):
        row = rows[sample.task_id]
        if sample.answer is not None and (which == ALL or undecided(sample, str(row["answer"]))):
            found[place] = Question(str(row["problem"]), str(row["answer"]), sample.answer)
    return found


class JudgeBook:
    """What a judge said, a line each in a file. A reply without a verdict is kept to be looked at; the next start asks
    again, as after a fault of the endpoint."""

    def __init__(self, path: Path, prompt: JudgePrompt, model: str) -> None:
        self.path, self._about = path, (prompt.sha256, model)
        self._known: dict[str, Judgement] = {}
        if path.exists():
            for number, line in enumerate(read_text(path, errors="replace").split("\n"), 1):
                try:
                    value = parse_json(line, str(path))
                except InputError:
                    continue  # the line that a kill cut off: asked again
                key, kept = _kept(value, f"{path}, line {number}")
                if kept.correct is not None:
                    self._known[key] = kept

    def key(self, question: Question) -> str:
        text = json.dumps([*self._about, question.problem, question.reference, question.answer])
        return hashlib.sha256(text.encode()).hexdigest()

    def get(self, question: Question) -> Judgement | None:
        return self._known.get(self.key(question))

    def put(self, question: Question, judgement: Judgement) -> None:
        key = self.key(question)
        self._known[key] = judgement
        line = json.dumps({"key": key, **asdict(judgement)}) + "\n"
        with self.path.open("ab+") as file:
            whole = file.tell() == 0 or (file.seek(-1, os.SEEK_END), file.read(1))[1] == b"\n"
            file.write(line.encode() if whole else b"\n" + line.encode())
            file.flush()
            os.fsync(file.fileno())


def _kept(value: Any, where: str) -> tuple[str, Judgement]:
    """Raises EvalError for a line that this class did not write."""
    try:
        value = dict(value)
        return _TEXT.validate_python(value.pop("key")), _JUDGEMENT.validate_python(value)
    except (ValidationError, TypeError, ValueError, KeyError) as error:
        raise EvalError(
            f"{where}: no judgement of ours ({type(error).__name__}). Remove the line (it is asked again), or the file"
        ) from error


async def judge_all(
    client: ChatClient,
    prompt: JudgePrompt,
    questions: Iterable[Question],
    book: JudgeBook,
    on_done: Callable[[], None] = lambda: None,
) -> dict[Question, Judgement]:
    """A judgement, perhaps an error, for every question."""

    async def one(question: Question) -> Judgement:
        known = book.get(question)
        if known is None:
            known = await _ask(client, prompt, question)
            if known.text or known.correct is not None:
                book.put(question, known)
        on_done()
        return known

    different = list(dict.fromkeys(questions))
    return dict(zip(different, await asyncio.gather(*map(one, different)), strict=True))


async def _ask(client: ChatClient, prompt: JudgePrompt, question: Question) -> Judgement:
    if len(question.answer) >= STORED_CHARS:
        return Judgement(None, error=f"the answer is logged cut at {STORED_CHARS} characters: half of it is not judged")
    try:
        answer = await client.chat(
            prompt.messages(question), max_tokens=prompt.max_tokens, temperature=prompt.temperature
        )
    except (EngineError, TooLong, Filtered) as error:
        return Judgement(None, error=f"{type(error).__name__}: {error}"[:500])
    if answer.finish == "length":
        return Judgement(None, answer.text, "the judge's reply was cut by its limit", answer.model)
    made = read_verdict(answer.content, question.mark)
    return Judgement(made.correct, made.text or answer.text, made.error, answer.model)


def judged_samples(
    samples: Samples, asked: Mapping[tuple[str, int], Question], made: Mapping[Question, Judgement]
) -> Samples:
    """The samples with the judge's verdict in place of the rule's; those that it failed on are missing."""
    kept = dict(samples.made)
    for place, question in asked.items():
        verdict = made[question].correct
        if verdict is None:
            del kept[place]
        else:
            kept[place] = replace(kept[place], correct=verdict)
    return Samples(samples.tasks, samples.k, kept)
