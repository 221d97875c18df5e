"""From a model's last text to right or wrong.

Promises: `integer` tasks are compared as exact integers and need no process; `symbolic` ones by `envs.maths.verify`; a
text without a finished box is wrong and says why; a reference answer that cannot be read is an `EnvironmentFault`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from data.maths_rows import Grading
from envs.environment import EnvironmentFault
from envs.maths.answer import NOT_AN_INTEGER, boxed, integer_of, last_number
from envs.maths.verify import Comparer


@dataclass(frozen=True)
class MathsGrade:
    correct: bool
    answer: str | None
    """Content of the last box; None: there is no answer."""
    why: str
    """equal, different, or why the answer could not count (`envs.maths.answer`, `envs.maths.verify`)."""


async def grade_text(text: str, gold: str, grading: Grading, comparer: Comparer) -> MathsGrade:
    """`text`: the model's last turn without its thoughts. Raises EnvironmentFault (GraderFault, VerifierMissing)."""
    found = last_number(text) if grading is Grading.LAST_INTEGER else boxed(text)
    if found.text is None:
        return MathsGrade(False, None, found.why)
    answer = found.text.strip()
    if grading is not Grading.SYMBOLIC:
        wanted, given = integer_of(gold), integer_of(answer)
        if wanted is None:
            raise EnvironmentFault(f"the reference answer {gold[:80]!r} is no integer: grade this task as symbolic")
        if given is None:
            return MathsGrade(False, answer, NOT_AN_INTEGER)
        return MathsGrade(given == wanted, answer, "equal" if given == wanted else "different")
    made = await comparer.compare(gold, answer)
    if made.why == "gold_unreadable":
        raise EnvironmentFault(f"the reference answer {gold[:80]!r} cannot be read by math-verify: leave this task out")
    return MathsGrade(made.equal, answer, made.why)


async def doubtful_golds(golds: Mapping[str, str], comparer: Comparer) -> dict[str, str]:
    """Those that do not verify against themselves, by math-verify alone: name -> why. They cannot be scored."""
    found: dict[str, str] = {}
    for name, gold in golds.items():
        made = await comparer.verify(gold, gold)
        if not made.equal:
            found[name] = made.why
    return found


def integer_golds(golds: Mapping[str, str]) -> Sequence[str]:
    """Names of those that are plain integers."""
    return [name for name, gold in golds.items() if integer_of(gold) is not None]
