"""Tool calls and their results inside conversations, as OpenAI's format and its kin write them.

    assistant   tool_calls: [{"id", "function": {"name", "arguments"}}], arguments as an object or its JSON text;
                the older function_call: {"name", "arguments"}
    tool        content, tool_call_id (or the order of the calls); the older role function

Raises TaskError, which says where.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from data.task import TaskError

RESULTS = ("tool", "function")


def calls_of(message: Mapping[str, Any], at: str) -> list[dict[str, Any]]:
    """{"id", "name", "arguments"} of each call, in order; none for a message without."""
    old = message.get("function_call")
    given = message.get("tool_calls") or ([old] if old else [])
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise TaskError(f"{at}: tool_calls is no list")
    return [_call(one, f"{at}, call {number}") for number, one in enumerate(given, 1)]


def _call(one: Any, at: str) -> dict[str, Any]:
    inner = one.get("function", one) if isinstance(one, Mapping) else None
    if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str) or not inner["name"]:
        raise TaskError(f"{at} has no function with a name")
    name = inner["name"]
    arguments = inner.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError) as error:
            raise TaskError(f"{at} ({name}): its arguments are no JSON: {error}") from error
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, Mapping):
        raise TaskError(f"{at} ({name}): its arguments are no JSON object")
    # Tables give every call the arguments of all tools, as null.
    kept = {key: value for key, value in arguments.items() if value is not None}
    return {"id": str(one.get("id") or ""), "name": name, "arguments": kept}


def in_call_order(
    calls: Sequence[Mapping[str, Any]], results: Sequence[Mapping[str, Any]], at: str
) -> list[Mapping[str, Any]]:
    """The results as the calls stand: by their ids where all have one, else as they come."""
    if len(results) != len(calls):
        raise TaskError(f"{at} makes {len(calls)} calls, and {len(results)} messages of the role tool follow it")
    ids = [call["id"] for call in calls]
    by_id = {result["answers"]: result for result in results}
    if not all(ids) or not all(by_id):
        return list(results)
    if len(by_id) != len(results) or set(by_id) != set(ids):
        raise TaskError(f"{at} makes the calls {', '.join(ids)}; answered are {', '.join(by_id)}")
    return [by_id[name] for name in ids]


def tools_of_row(value: Any, where: str) -> tuple[Mapping[str, Any], ...]:
    """The row's column `tools`: a list of definitions or its JSON text, each as {"type", "function"} or bare."""
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else None
        except (ValueError, RecursionError) as error:
            raise TaskError(f"{where}: tools is text, and no JSON: {error}") from error
    if value is None:
        return ()
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise TaskError(f"{where}: tools is no list")
    made = []
    for number, one in enumerate(value, 1):
        inner = one.get("function", one) if isinstance(one, Mapping) else None
        if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str):
            raise TaskError(f"{where}: tool {number} has no function with a name")
        function = {"description": "", "parameters": {"type": "object", "properties": {}}}
        function |= {key: part for key, part in inner.items() if key in ("name", "description", "parameters") and part}
        made.append({"type": "function", "function": {"name": inner["name"], **function}})
    return tuple(made)
