"""What each tool takes, as JSON schemas (OpenAI function format), and the check of a call against them.

Promises: a call that passes has exactly the declared arguments with the declared types; a call that does not gets a
named error (unknown_tool, missing_argument, extra_argument, wrong_type, bad_value) that says what to send instead.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from envs.environment import ToolCall


class CallError(ValueError):
    """A call the tools cannot run. `name` is the error's name, the text is for the model."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


def _function(name: str, description: str, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": properties,
                "required": required,
                "additionalProperties": False,
            },
        },
    }


def _string(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


_PATH = _string("Path, relative to the repository or absolute.")

Schemas = Mapping[str, Mapping[str, Any]]
SCHEMAS: Schemas = {
    "bash": _function(
        "bash",
        "Run a shell command in the repository's folder. Every call is a fresh shell; stdin is closed; no network.",
        {
            "command": _string("The command."),
            "timeout": {"type": "number", "exclusiveMinimum": 0, "description": "Seconds before it is ended."},
        },
        ["command"],
    ),
    "view": _function(
        "view",
        "Show a file's text, or list a directory.",
        {
            "path": _PATH,
            "start": {"type": "integer", "minimum": 1, "description": "First line to show, from 1."},
            "end": {"type": "integer", "minimum": 1, "description": "Last line to show."},
        },
        ["path"],
    ),
    "str_replace": _function(
        "str_replace",
        "Replace a text that occurs exactly once in a file.",
        {
            "path": _PATH,
            "old_str": _string("The text to replace, exactly as in the file."),
            "new_str": _string("The text to put in its place."),
        },
        ["path", "old_str", "new_str"],
    ),
    "create": _function(
        "create",
        "Write a new file.",
        {"path": _PATH, "content": _string("The whole text of the file.")},
        ["path", "content"],
    ),
    "think": _function(
        "think",
        "Write a thought down, for example a plan or what an output means. Nothing is run or changed.",
        {"thought": _string("The thought.")},
        ["thought"],
    ),
    "submit": _function("submit", "Finish: the repository as it is now is your answer.", {}, []),
}
"""Every tool, in the order it is offered."""


def with_timeout(schema: Mapping[str, Any], usual_s: float, most_s: float) -> Mapping[str, Any]:
    """The schema of a tool that runs commands, saying how long they may take."""
    made = copy.deepcopy(dict(schema))
    made["function"]["parameters"]["properties"]["timeout"] |= {
        "maximum": most_s if most_s % 1 else int(most_s),
        "description": f"Seconds before it is ended: {usual_s:g} unless given, at most {most_s:g}.",
    }
    return made


_TYPES: Mapping[str, tuple[type, ...]] = {"string": (str,), "integer": (int,), "number": (int, float)}


def signature(name: str, schemas: Schemas = SCHEMAS) -> str:
    """For error texts: view(path, start?, end?)."""
    parameters = schemas[name]["function"]["parameters"]
    required = parameters["required"]
    return f"{name}({', '.join(key if key in required else key + '?' for key in parameters['properties'])})"


def check_call(call: ToolCall, offered: Sequence[str], schemas: Schemas = SCHEMAS) -> dict[str, Any]:
    """The call's arguments, checked. An optional argument given as null counts as not given."""
    if call.name not in offered:
        known = ", ".join(signature(name, schemas) for name in offered)
        raise CallError("unknown_tool", f"there is no tool {call.name!r}. Tools: {known}.")
    parameters = schemas[call.name]["function"]["parameters"]
    properties, required = parameters["properties"], parameters["required"]
    usage = f"Use {signature(call.name, schemas)}."
    given = {key: value for key, value in call.arguments.items() if value is not None or key in required}
    missing = [key for key in required if key not in given]
    if missing:
        raise CallError("missing_argument", f"{call.name} needs {', '.join(missing)}. {usage}")
    extra = [key for key in given if key not in properties]
    if extra:
        raise CallError("extra_argument", f"{call.name} does not take {', '.join(map(str, extra))}. {usage}")
    return {key: _check_value(call.name, key, value, properties[key]) for key, value in given.items()}


def _check_value(tool: str, key: str, value: Any, schema: Mapping[str, Any]) -> Any:
    kind = schema["type"]
    if kind == "integer" and isinstance(value, float) and value.is_integer():
        value = int(value)  # JSON has one number type: 3.0 is the integer 3
    if isinstance(value, bool) or not isinstance(value, _TYPES[kind]):
        got = "null" if value is None else type(value).__name__
        raise CallError("wrong_type", f"{tool}: {key} must be {_article(kind)}, not {got}.")
    if "minimum" in schema and value < schema["minimum"]:
        raise CallError("bad_value", f"{tool}: {key} must be at least {schema['minimum']}, not {value}.")
    if "exclusiveMinimum" in schema and not value > schema["exclusiveMinimum"]:
        raise CallError("bad_value", f"{tool}: {key} must be above {schema['exclusiveMinimum']}, not {value}.")
    if isinstance(value, str):
        if key == "path" and not (value and value.isprintable()):
            raise CallError("bad_value", f"{tool}: path {value!r} is empty or has characters that do not print.")
        if key == "command" and "\0" in value:
            raise CallError("bad_value", f"{tool}: command has a NUL character.")
    return value


def _article(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"
