"""The maths environment: a problem, perhaps a Python tool, and a final answer in text.

Order: `reset` gives the problem (and starts a sandbox where there is a tool), `step` runs a program, `answer` takes the
model's last turn, `grade` compares its last box with the task's answer. A task row has `problem`, `answer`, and
`grading`: "integer" or "symbolic". The same environment trains and evaluates.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from data.maths_rows import Grading
from data.task import Task, TaskError
from envs.environment import Environment, EnvironmentFault, Grade, Observation, ToolCall
from envs.maths.answer import integer_of
from envs.maths.grading import grade_text
from envs.maths.tool import WORKDIR, PythonTool
from envs.maths.verify import Comparer, require_verifier, shared_comparer
from envs.sandbox.contract import Sandbox, SandboxBackend, SandboxLimits, SandboxSpec

BASE_IMAGE = SandboxSpec().image
_SHOWN = 500


@dataclass(frozen=True)
class MathsRow:
    task_id: str
    problem: str
    gold: str
    grading: Grading
    image: str
    """Of the tool's sandbox."""


def read_maths_row(task: Task) -> MathsRow:
    """Raises TaskError naming task and column."""
    if task.kind != "maths":
        raise TaskError(f"task {task.task_id}: kind is {task.kind!r}; this environment runs kind 'maths'")
    values: dict[str, str] = {}
    for column in ("problem", "answer"):
        value = task.row.get(column)
        if not isinstance(value, str) or not value.strip():
            raise TaskError(f"task {task.task_id}, column {column}: is {value!r:.80}, expected text")
        values[column] = value
    try:
        grading = Grading(task.row.get("grading") or Grading.INTEGER)
    except ValueError:
        known = ", ".join(Grading)
        raise TaskError(f"task {task.task_id}, column grading: {task.row['grading']!r} is none of {known}") from None
    if grading is not Grading.SYMBOLIC and integer_of(values["answer"]) is None:
        raise TaskError(
            f"task {task.task_id}, column answer: {values['answer'][:80]!r} is no integer; set grading to symbolic"
        )
    image = task.row.get("image") or BASE_IMAGE
    return MathsRow(task.task_id, values["problem"], values["answer"], grading, str(image))


async def reference_problem(task: Task, comparer: Comparer | None = None) -> str:
    """Why a task cannot be graded: its row, or a reference answer that is not right by its own grader; else empty.

    Raises VerifierMissing, GraderFault."""
    try:
        row = read_maths_row(task)
    except TaskError as error:
        return str(error)
    if row.grading is not Grading.SYMBOLIC:
        return ""  # that its reference is an integer was just checked
    made = await (comparer or shared_comparer()).verify(row.gold, row.gold)
    return "" if made.equal else f"the reference answer does not verify against itself ({made.why})"


@dataclass(frozen=True)
class MathsLimits:
    sandbox: SandboxLimits = field(default_factory=SandboxLimits)
    episode_s: float = 3600.0
    """Deadline of the tool's sandbox."""


class MathsEnvironment(Environment):
    """One episode on one task. Without `tool` there is no sandbox, and `backend` is not needed."""

    takes_text = True

    def __init__(
        self,
        task: Task,
        backend: SandboxBackend | None = None,
        tool: PythonTool | None = None,
        limits: MathsLimits | None = None,
        *,
        comparer: Comparer | None = None,
    ) -> None:
        self.row = read_maths_row(task)
        if self.row.grading is Grading.SYMBOLIC:
            require_verifier()
        if tool is not None and backend is None:
            raise ValueError("the Python tool needs a sandbox backend")
        self.backend, self.tool, self.limits = backend, tool, limits or MathsLimits()
        self.tools = (tool.schema,) if tool is not None else ()
        self._comparer = comparer or shared_comparer()
        self._sandbox: Sandbox | None = None
        self._started = False
        self._calls = 0
        self._text = ""

    async def reset(self) -> str:
        if self._started:
            raise EnvironmentFault(f"task {self.row.task_id}: reset was called twice; make a new environment")
        self._started = True
        if self.tool is not None and self.backend is not None:
            self._sandbox = await self.backend.start(
                SandboxSpec(
                    image=self.row.image,
                    workdir=WORKDIR,
                    limits=self.limits.sandbox,
                    deadline_s=self.limits.episode_s,
                    labels={"task": self.row.task_id},
                )
            )
        return self.row.problem

    async def step(self, call: ToolCall) -> Observation:
        if self.tool is None or self._sandbox is None:
            raise EnvironmentFault(f"task {self.row.task_id}: a call of {call.name}, but there is no tool or no reset")
        self._calls += 1
        return await self.tool.run(call, self._sandbox, self._calls)

    def answer(self, text: str) -> None:
        self._text = text

    async def grade(self) -> Grade:
        if not self._started:
            raise EnvironmentFault(f"task {self.row.task_id}: grade needs reset first")
        made = await grade_text(self._text, self.row.gold, self.row.grading, self._comparer)
        detail: dict[str, Any] = {
            "why": made.why,
            "answer": None if made.answer is None else _shown(made.answer),
            "gold": _shown(self.row.gold),
            "grading": str(self.row.grading),
            "calls": self._calls,
        }
        return Grade(float(made.correct), detail)

    async def close(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await sandbox.close()


def _shown(text: str) -> str:
    """For logs: short, and without lone surrogates."""
    return text[:_SHOWN].encode("utf-8", "replace").decode()
