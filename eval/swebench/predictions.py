"""Predictions in each form that is in use: `.jsonl`, a `.json` list, a `preds.json` map; also gzipped. A prediction is
SWE-bench's (`model_patch`), Multi-SWE-bench's (`org`, `repo`, `number`, `fix_patch`) or a row of OpenHands'
output.jsonl (`test_result.git_patch`).

Promises: one prediction an instance; two that differ are refused with their places (the official package takes the last
one silently), equal ones count once. A patch's bytes are what the JSON text says: CRLF, a missing final newline and
bytes that are no UTF-8 (lone surrogates, as `surrogateescape` writes them) come through unchanged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.atomic import write_atomically
from data.reading import InputError, check_name, is_file, json_lines, read_json, shown, user_path
from eval.errors import EvalError


@dataclass(frozen=True)
class Prediction:
    """`patch` is None where the model gave none."""

    instance_id: str
    model: str
    patch: str | None
    unpatched: bool = False
    """Run the tests although there is no patch (validation of the row)."""

    @property
    def empty(self) -> bool:
        """The official rule. Blanks are no empty patch but one that does not apply."""
        return not self.patch and not self.unpatched

    def patch_bytes(self) -> bytes:
        """Raises UnicodeEncodeError for text that stands for no bytes (surrogates beyond `surrogateescape`)."""
        return (self.patch or "").encode("utf-8", "surrogateescape")

    def official(self) -> dict[str, Any]:
        return {"instance_id": self.instance_id, "model_name_or_path": self.model, "model_patch": self.patch}


def read_predictions(path: str | Path) -> dict[str, Prediction]:
    """By instance id, in the file's order. Raises EvalError naming file and place."""
    place = user_path(path)
    if not is_file(place):
        raise EvalError(
            f"no predictions file at {shown(place)}; give a .jsonl, a .json list or a preds.json map (or .gz of one)"
        )
    try:
        entries = list(_entries(place))
    except InputError as error:
        raise EvalError(str(error)) from error
    found: dict[str, tuple[str, Prediction]] = {}
    for where, name, value in entries:
        prediction = _prediction(f"{place}, {where}", name, value)
        before = found.get(prediction.instance_id)
        if before is not None and before[1] != prediction:
            raise EvalError(
                f"{place}: two different predictions for {prediction.instance_id} ({before[0]} and {where}). Keep one: "
                "which of them is graded must not depend on their order"
            )
        found.setdefault(prediction.instance_id, (where, prediction))
    if not found:
        raise EvalError(f"{place} holds no predictions")
    return {name: prediction for name, (_, prediction) in found.items()}


def _entries(place: Path) -> Iterator[tuple[str, str | None, Any]]:
    """(where, key of the map, value)."""
    if ".jsonl" in place.suffixes:
        for number, value in json_lines(place, surrogates=True):
            yield f"line {number}", None, value
        return
    whole = read_json(place, surrogates=True)
    if isinstance(whole, dict):
        for name, value in whole.items():
            yield f"key {name}", name, value
    elif isinstance(whole, list):
        for number, value in enumerate(whole, 1):
            yield f"item {number}", None, value
    else:
        raise EvalError(f"{place} holds a JSON {type(whole).__name__}; predictions are a list or a map")


def _prediction(where: str, name: str | None, value: Any) -> Prediction:
    if not isinstance(value, dict):
        raise EvalError(
            f"{where}: is a JSON {type(value).__name__}, expected an object with instance_id and model_patch"
        )
    value = _in_our_words(where, value)
    instance_id = value.get("instance_id", name)
    if not isinstance(instance_id, str) or not instance_id:
        raise EvalError(f"{where}: instance_id is missing")
    try:
        check_name(instance_id, f"{where}: instance_id")
        check_name(str(value.get("model_name_or_path") or "none"), f"{where}: model_name_or_path")
    except InputError as error:
        raise EvalError(str(error)) from error
    if name is not None and instance_id != name:
        raise EvalError(f"{where}: its instance_id is {instance_id!r}; the key and the id must agree")
    if "model_patch" not in value:
        raise EvalError(
            f"{where} ({instance_id}): model_patch is missing; an empty answer is null or an empty text. Read are "
            "SWE-bench's predictions (model_patch), Multi-SWE-bench's (fix_patch) and OpenHands' output.jsonl "
            f"(test_result.git_patch); it holds: {', '.join(map(str, value))[:200]}"
        )
    patch = value["model_patch"]
    if patch is not None and not isinstance(patch, str):
        raise EvalError(f"{where} ({instance_id}): model_patch is {type(patch).__name__}, expected text or null")
    model = value.get("model_name_or_path") or "unknown-model"
    if not isinstance(model, str):
        raise EvalError(f"{where} ({instance_id}): model_name_or_path is {type(model).__name__}, expected text")
    return Prediction(instance_id, model, patch)


def _in_our_words(where: str, value: dict[str, Any]) -> dict[str, Any]:
    """A prediction of another format with SWE-bench's keys; what is none of them as it is. Raises EvalError."""
    if "model_patch" in value:
        return value
    if "fix_patch" in value:
        org, repo, number = (value.get(key) for key in ("org", "repo", "number"))
        if not (isinstance(org, str) and isinstance(repo, str) and org and repo):
            raise EvalError(f"{where}: a prediction of Multi-SWE-bench has org and repo as texts; here one is missing")
        if isinstance(number, bool) or not re.fullmatch(r"\d+", str(number)):
            raise EvalError(f"{where}: a prediction of Multi-SWE-bench has a number; it is {number!r}")
        return _renamed(value, f"{org}__{repo}-{number}", value["fix_patch"], value.get("model_name_or_path"))
    result = value.get("test_result")
    if isinstance(result, dict) and ("git_patch" in result or "history" in value):
        # A run that ended in an error has no git_patch: no answer, as SWE-bench counts it.
        metadata = value.get("metadata")
        about = metadata if isinstance(metadata, dict) else {}
        model = next(
            (one.get("model") for key in ("llm_config", "llm") if isinstance(one := about.get(key), dict)), None
        )
        return _renamed(value, value.get("instance_id"), result.get("git_patch"), model)
    return value


def _renamed(value: dict[str, Any], instance_id: Any, patch: Any, model: Any) -> dict[str, Any]:
    kept = {} if instance_id is None else {"instance_id": instance_id}
    return {**value, **kept, "model_patch": patch, "model_name_or_path": model}


def write_predictions(path: Path, predictions: Iterable[Prediction]) -> None:
    """SWE-bench's .jsonl; bytes that are no UTF-8 stay as escaped surrogates."""
    write_atomically(path, "".join(json.dumps(each.official()) + "\n" for each in predictions).encode())
