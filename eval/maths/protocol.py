"""How a maths suite is run: a data file that names the agent preset, the sampling and the number of samples.

Promises: unknown keys and a sampling that the engines cannot do are errors; the file's hash stands in the report.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from data.reading import InputError, is_file, parse_toml, read_bytes, user_path
from eval.errors import EvalError

FOLDER = Path(__file__).parent / "protocols"


class Protocol(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    agent: str
    """Agent preset: prompt, tools and limits."""
    agent_with_python: str
    """The one that also has the Python tool."""
    temperature: float = Field(ge=0)
    top_p: float = Field(1.0, ge=1, le=1)
    """The engines sample from the whole distribution: 1 is all they can do."""
    samples: PositiveInt
    """Of each problem, where the suite has no number of its own."""
    samples_of: dict[str, PositiveInt] = {}
    note: str = ""
    sha256: str = ""
    """Of the file; not a key of it."""

    def samples_for(self, suite: str) -> int:
        return self.samples_of.get(suite, self.samples)


def protocol_names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load_protocol(name: str) -> Protocol:
    """By name or by the path of a .toml file. Raises EvalError."""
    path = user_path(name)
    if path.suffix != ".toml":
        path = FOLDER / f"{name}.toml"
    if not is_file(path):
        raise EvalError(
            f"no maths protocol {name!r}. Known: {', '.join(protocol_names())}; or give the path of a .toml file"
        )
    try:
        data = read_bytes(path)
        values = parse_toml(data.decode("utf-8"), str(path))
        if "sha256" in values:
            raise EvalError(f"{path}: unknown key sha256")
        return Protocol.model_validate({**values, "sha256": hashlib.sha256(data).hexdigest()})
    except UnicodeDecodeError as error:
        raise EvalError(f"{path}: not valid TOML ({error})") from error
    except InputError as error:
        raise EvalError(str(error)) from error
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        raise EvalError(f"{path}: {problems}") from error
