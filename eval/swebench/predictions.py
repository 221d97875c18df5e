"""Predictions in each form that is in use: `.jsonl`, a `.json` list, a `preds.json` map; also gzipped.

Promises: one prediction an instance; two that differ are refused with their places (the official package takes the last
one silently), equal ones count once. A patch's bytes are what the JSON text says: CRLF, a missing final newline and
bytes that are no UTF-8 (lone surrogates, as `surrogateescape` writes them) come through unchanged.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.atomic import write_atomically
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
    place = Path(path).expanduser()
    if not place.is_file():
        raise EvalError(
            f"no predictions file at {place}; give a .jsonl, a .json list or a preds.json map (or .gz of one)"
        )
    try:
        data = place.read_bytes()
        text = (gzip.decompress(data) if place.suffix == ".gz" else data).decode("utf-8", "surrogateescape")
    except (OSError, EOFError) as error:
        raise EvalError(f"{place} cannot be read: {error}") from error
    found: dict[str, tuple[str, Prediction]] = {}
    for where, name, value in _entries(place, text):
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


def _entries(place: Path, text: str) -> Iterator[tuple[str, str | None, Any]]:
    """(where, key of the map, value)."""
    if ".jsonl" in place.suffixes:
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                yield f"line {number}", None, _json(place, f"line {number}", line)
        return
    whole = _json(place, "as a whole", text)
    if isinstance(whole, dict):
        for name, value in whole.items():
            yield f"key {name}", name, value
    elif isinstance(whole, list):
        for number, value in enumerate(whole):
            yield f"item {number}", None, value
    else:
        raise EvalError(f"{place} holds a JSON {type(whole).__name__}; predictions are a list or a map")


def _json(place: Path, where: str, text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_no_twice)
    except ValueError as error:
        raise EvalError(f"{place}, {where}: no valid JSON: {error}") from error


def _no_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON itself lets a key come twice and keeps the last."""
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made and made[key] != value:
            raise ValueError(f"key {key!r} comes twice with different values")
        made[key] = value
    return made


def _prediction(where: str, name: str | None, value: Any) -> Prediction:
    if not isinstance(value, dict):
        raise EvalError(
            f"{where}: is a JSON {type(value).__name__}, expected an object with instance_id and model_patch"
        )
    instance_id = value.get("instance_id", name)
    if not isinstance(instance_id, str) or not instance_id:
        raise EvalError(f"{where}: instance_id is missing")
    if name is not None and instance_id != name:
        raise EvalError(f"{where}: its instance_id is {instance_id!r}; the key and the id must agree")
    if "model_patch" not in value:
        raise EvalError(f"{where} ({instance_id}): model_patch is missing; an empty answer is null or an empty text")
    patch = value["model_patch"]
    if patch is not None and not isinstance(patch, str):
        raise EvalError(f"{where} ({instance_id}): model_patch is {type(patch).__name__}, expected text or null")
    model = value.get("model_name_or_path") or "unknown-model"
    if not isinstance(model, str):
        raise EvalError(f"{where} ({instance_id}): model_name_or_path is {type(model).__name__}, expected text")
    return Prediction(instance_id, model, patch)


def write_predictions(path: Path, predictions: Iterable[Prediction]) -> None:
    """SWE-bench's .jsonl; bytes that are no UTF-8 stay as escaped surrogates."""
    write_atomically(path, "".join(json.dumps(each.official()) + "\n" for each in predictions).encode())
