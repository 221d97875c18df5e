"""One vLLM server over HTTP: its verbs as methods, its failures as faults.

Promises: every call has a deadline, except `generate`, whose length nobody knows (whoever calls it watches the
server's health and cancels it; a cancelled call closes its connection and the server drops the request). A connection
that cannot be made or breaks is ServerGone, a 5xx or an unreadable answer ServerFault, a 4xx ServerRefused.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from agent.engines.vllm.faults import AnswerFault, ServerFault, ServerGone, ServerRefused
from data.trajectory import Sampling

_REQUEST_PREFIX = "generate-tokens-"
"""The server's own prefix before the request ids of /inference/v1/generate."""
_TEXT_SHOWN = 500


class VllmClient:
    """`url` like http://127.0.0.1:8321; `model` the served name. Make and close it in one event loop."""

    def __init__(self, url: str, *, model: str = "policy", connections: int = 256) -> None:
        self.url, self.model = url.rstrip("/"), model
        self._session = aiohttp.ClientSession(
            # A new connection for every request: one that a dead server left behind must not fail a later request.
            connector=aiohttp.TCPConnector(limit=connections, force_close=True),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10.0),
        )

    async def close(self) -> None:
        await self._session.close()

    # ---- sampling ----

    async def generate(
        self,
        tokens: Sequence[int],
        *,
        max_new_tokens: int,
        stop_ids: Sequence[int],
        seed: int,
        sampling: Sampling,
        request_id: str,
    ) -> Mapping[str, Any]:
        """The raw answer, whole or not at all. See `answers.read_generation`."""
        body = self._request(tokens, request_id)
        body["sampling_params"] = {
            "max_tokens": max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": 0,
            "seed": seed,
            "stop_token_ids": list(stop_ids),
            "ignore_eos": True,  # our stop ids decide, not the model folder's
            "logprobs": 0,  # the sampled token's own, no others
            "detokenize": False,
        }
        return await self._call("POST", "/inference/v1/generate", body, timeout_s=None)

    async def teacher_forced(self, tokens: Sequence[int], *, request_id: str, timeout_s: float) -> Mapping[str, Any]:
        """Raw answer with `prompt_logprobs` for every token but the first, and one greedy token."""
        body = self._request(tokens, request_id)
        body["sampling_params"] = {
            "max_tokens": 1,
            "temperature": 0.0,
            "logprobs": 0,
            "prompt_logprobs": 0,
            "detokenize": False,
            "ignore_eos": True,
        }
        return await self._call("POST", "/inference/v1/generate", body, timeout_s)

    async def abort(self, request_id: str, *, timeout_s: float = 10.0) -> None:
        """End a running `generate`: it answers with what was sampled so far."""
        body = {"request_ids": [_REQUEST_PREFIX + request_id]}
        await self._call("POST", "/inference/v1/abort_requests", body, timeout_s)

    def _request(self, tokens: Sequence[int], request_id: str) -> dict[str, Any]:
        return {
            "model": self.model,
            "request_id": request_id,
            "token_ids": [int(token) for token in tokens],
            "stream": False,
        }

    # ---- weights ----

    async def pause(self, timeout_s: float) -> None:
        """Freeze the running requests; returns when no step is under way."""
        await self._call("POST", "/pause?mode=keep", None, timeout_s)

    async def resume(self, timeout_s: float) -> None:
        await self._call("POST", "/resume", None, timeout_s)

    async def set_label(self, label: str, timeout_s: float) -> None:
        """Name the weights that sample from now on; comes back in `weight_versions`."""
        await self._call("POST", "/update_weight_version", {"new_version": label}, timeout_s)

    async def label(self, timeout_s: float) -> str:
        return str((await self._call("GET", "/weight_info", None, timeout_s)).get("weight_version"))

    async def reload(self, folder: Path, method: str, timeout_s: float) -> list[Any]:
        """Read weights from a folder that the server sees under the same path; one result for each worker."""
        return await self.call_workers(method, {"weights_path": str(folder)}, timeout_s)

    async def call_workers(self, method: str, kwargs: Mapping[str, Any], timeout_s: float) -> list[Any]:
        """A method of every worker; one result for each."""
        body = {"method": method, "kwargs": dict(kwargs), "timeout": timeout_s}
        return list((await self._call("POST", "/collective_rpc", body, timeout_s)).get("results") or [])

    async def world_size(self, timeout_s: float) -> int:
        """Workers of the server, over all its parallel dimensions."""
        return int((await self._call("GET", "/get_world_size?include_dp=true", None, timeout_s))["world_size"])

    async def drop_caches(self, timeout_s: float) -> None:
        """Nothing computed by older weights stays: prefixes go, running requests are computed again."""
        answer = await self._call("POST", "/reset_prefix_cache?reset_running_requests=true", None, timeout_s)
        if answer.get("success") is not True:
            raise ServerFault(f"{self.url} did not drop its prefix cache: {answer}")

    # ---- sleep (one device for server and trainer) ----

    async def sleep(self, level: int, timeout_s: float) -> None:
        """Give the device's memory back, requests staying in the queue. `level`: see `sync.lay_down`."""
        await self._call("POST", f"/sleep?level={level}&mode=keep", None, timeout_s)

    async def wake(self, tags: Sequence[str], timeout_s: float) -> None:
        """`weights`, `kv_cache`. Once all is back the server's scheduler runs again by itself."""
        await self._call("POST", "/wake_up?" + "&".join(f"tags={tag}" for tag in tags), None, timeout_s)

    async def sleep_ability(self, timeout_s: float) -> str:
        """`frees`: sleep gives memory back; `cpu`: there is nothing to give, it only pauses; `off`: not switched on.

        Our worker knows (inside/sao_vllm_worker.py); vLLM's own /server_info fails where `lscpu` or pip is missing."""
        answers = {str(answer) for answer in await self.call_workers("sao_sleep_ability", {}, timeout_s)}
        return answers.pop() if len(answers) == 1 else "off"

    # ---- state ----

    async def healthy(self, timeout_s: float) -> bool:
        """Does the server answer for its engine?"""
        try:
            await self._call("GET", "/health", None, timeout_s)
        except (ServerFault, ServerRefused):
            return False
        return True

    async def max_context(self, timeout_s: float) -> int:
        """Most tokens, prompt and new ones together. Also proves that the model is served under our name."""
        answer = await self._call("GET", "/v1/models", None, timeout_s)
        found = {entry.get("id"): entry.get("max_model_len") for entry in answer.get("data", [])}
        if self.model not in found:
            raise ServerRefused(
                f"{self.url} serves {', '.join(map(str, found)) or 'no model'}, not {self.model!r}. Start it with "
                f"--served-model-name {self.model}, or let `sao serve` start it."
            )
        return int(found[self.model])

    async def _call(self, verb: str, path: str, body: Any, timeout_s: float | None) -> dict[str, Any]:
        where = f"{verb} {self.url}{path}"
        try:
            async with asyncio.timeout(timeout_s), self._session.request(verb, self.url + path, json=body) as response:
                raw = await response.read()
                status = response.status
        except TimeoutError as error:
            raise ServerFault(f"{where}: no answer within {timeout_s} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise ServerGone(f"{where}: {type(error).__name__}: {error}") from error
        text = raw[:_TEXT_SHOWN].decode("utf-8", "replace")
        if status >= 500:
            raise ServerFault(f"{where}: status {status}: {text}")
        if status >= 400:
            raise ServerRefused(f"{where}: status {status}: {text}{_hint(status, path)}")
        if not raw.strip():
            return {}
        try:
            answer = json.loads(raw)
        except ValueError as error:
            raise AnswerFault(f"{where}: the answer is no JSON: {text}") from error
        if not isinstance(answer, dict):
            raise AnswerFault(f"{where}: the answer is no JSON object: {text}")
        return answer


def _hint(status: int, path: str) -> str:
    if status != 404:
        return ""
    if path.startswith("/inference/"):
        return ". The server needs --enable-scale-out (`sao serve` sets it)."
    return ". The server needs VLLM_SERVER_DEV_MODE=1 (`sao serve` sets it)."
