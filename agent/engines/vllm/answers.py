"""What a server answered, checked before a token of it is believed.

Promises: a Generation comes out only when tokens, log-probabilities and version spans agree in number and place, every
log-probability is that of the token beside it, finite and at most 0, the version spans tile the tokens, and the reason
for the end is borne out by the tokens. Anything else is an AnswerFault that names the first disagreement.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from agent.engines.vllm.faults import AnswerFault
from agent.policy import Generation, StopReason

_REASONS = {"stop": StopReason.STOP, "length": StopReason.LENGTH, "abort": StopReason.ABORTED}
_ROUNDING = 1e-5
"""A log-probability this little above 0 is rounding."""


def read_generation(
    answer: Mapping[str, Any], *, max_new_tokens: int, stop_ids: Collection[int], versions: Mapping[str, int]
) -> tuple[Generation, list[str]]:
    """The generation and the labels of the weights that sampled it, in order. `versions`: label → version number."""
    choice = _only(answer.get("choices"), "choices")
    tokens = choice.get("token_ids")
    if not isinstance(tokens, list) or any(type(token) is not int or token < 0 for token in tokens):
        raise AnswerFault(f"token_ids is no list of token ids: {str(tokens)[:200]}")
    reason = _REASONS.get(choice.get("finish_reason", ""))
    if reason is None:
        raise AnswerFault(f"finish_reason {choice.get('finish_reason')!r} is none of {', '.join(_REASONS)}")
    _check_end(tokens, reason, max_new_tokens, stop_ids)
    logprobs = _logprobs(choice.get("logprobs"), tokens)
    spans = _spans(choice.get("weight_versions"), len(tokens))
    numbers: list[int] = []
    for label, start, end in spans:
        if label not in versions:
            raise AnswerFault(
                f"tokens [{start}, {end}) were sampled by weights {label!r}, which this run never gave the server: it "
                "was started again, or another run changes its weights"
            )
        numbers += [versions[label]] * (end - start)
    return Generation(tokens, logprobs, numbers, reason), [label for label, _, _ in spans]


def read_prompt_logprobs(answer: Mapping[str, Any], tokens: Sequence[int]) -> tuple[list[float], str]:
    """Log-probabilities of tokens[1:] given what precedes them, and the label of the weights that computed them."""
    listed = answer.get("prompt_logprobs")
    if not isinstance(listed, list) or len(listed) != len(tokens):
        raise AnswerFault(f"prompt_logprobs has {len(listed or ())} entries for {len(tokens)} tokens")
    found: list[float] = []
    for place, token in enumerate(tokens[1:], 1):
        entry = (listed[place] or {}).get(str(token))
        value = _number(entry.get("logprob")) if isinstance(entry, Mapping) else None
        if value is None:
            raise AnswerFault(f"prompt_logprobs has no number for token {token} at {place}: {str(listed[place])[:200]}")
        found.append(value)
    choice = _only(answer.get("choices"), "choices")
    spans = _spans(choice.get("weight_versions"), len(choice.get("token_ids") or ()))
    if len(spans) != 1:
        raise AnswerFault(f"the probe was answered by {len(spans)} versions")
    return found, spans[0][0]


def _only(listed: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(listed, list) or len(listed) != 1 or not isinstance(listed[0], Mapping):
        raise AnswerFault(f"{name} does not hold exactly one: {str(listed)[:200]}")
    return listed[0]


def _check_end(tokens: Sequence[int], reason: StopReason, limit: int, stop_ids: Collection[int]) -> None:
    stop = next((place for place, token in enumerate(tokens) if token in stop_ids), None)
    if len(tokens) > limit:
        raise AnswerFault(f"{len(tokens)} tokens where at most {limit} were asked for")
    if reason is StopReason.STOP and stop != len(tokens) - 1:
        raise AnswerFault(f"it says that a stop token ended it, but the last of {len(tokens)} tokens is none")
    if reason is not StopReason.STOP and stop is not None:
        raise AnswerFault(f"token {tokens[stop]} at {stop} is a stop token, but it went on ({reason})")
    if reason is StopReason.LENGTH and len(tokens) != limit:
        raise AnswerFault(f"cut by length after {len(tokens)} tokens where {limit} were asked for")


def _logprobs(given: Any, tokens: Sequence[int]) -> list[float]:
    content = given.get("content") if isinstance(given, Mapping) else None
    content = content or []
    if len(content) != len(tokens):
        raise AnswerFault(f"{len(content)} log-probabilities for {len(tokens)} tokens")
    found = []
    for place, (token, entry) in enumerate(zip(tokens, content, strict=True)):
        if not isinstance(entry, Mapping) or entry.get("token_id") != token:
            raise AnswerFault(f"the log-probability at {place} is not of token {token}: {str(entry)[:200]}")
        value = _number(entry.get("logprob"))
        # -9999 stands for "none known"; no sampled token is that unlikely.
        if value is None or not -9000 < value <= _ROUNDING:
            raise AnswerFault(f"the log-probability of token {token} at {place} is {entry.get('logprob')}")
        found.append(min(value, 0.0))
    return found


def _spans(given: Any, count: int) -> list[tuple[str, int, int]]:
    if count == 0:
        return []
    spans = []
    for entry in given if isinstance(given, list) else []:
        try:
            label, start, end = str(entry["version"]), int(entry["start"]), int(entry["end"])
        except (KeyError, TypeError, ValueError) as error:
            raise AnswerFault(f"weight_versions holds {entry!r}: {error}") from error
        if start != end:
            spans.append((label, start, end))
    edges = [0, *(end for _, _, end in spans)]
    if not spans or edges[-1] != count or any(start != edge for (_, start, _), edge in zip(spans, edges, strict=False)):
        raise AnswerFault(f"weight_versions {given} does not tile {count} tokens. Is the server older than 0.32?")
    return spans


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
