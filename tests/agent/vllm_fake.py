"""A small HTTP server with vLLM's verbs that misbehaves on command. For faults only: no model samples here.

Its tokens follow from seed and place, its log-probabilities from the token, so a stitched, cut or doubled turn shows.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aiohttp import web

VOCABULARY = 100


def token_at(seed: int, place: int) -> int:
    return (seed * 7919 + place * 104729) % VOCABULARY


def logprob_of(token: int) -> float:
    return -(token + 1) / 64


def write_weights(folder: Path, mark: float) -> Path:
    """A published folder as the trainer leaves it: `mark` stands for the weights and is what a probe gives."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"vocab_size": VOCABULARY}))
    (folder / "model.safetensors").write_bytes(str(mark).encode())
    tokens = [token_at(1, place) for place in range(48)]
    write_probe(folder, {"tokens": tokens, "logprobs": [mark] * (len(tokens) - 1)})
    return folder


def write_probe(folder: Path, probe: Mapping[str, Any]) -> None:
    (folder / "manifest.json").write_text(json.dumps({"about": {"probe": probe}}))


class FakeServer:
    def __init__(self) -> None:
        self.behaviours: deque[str] = deque()
        """One for each coming generate; `ok` when used up."""
        self.label, self.mark = "default", 0.0
        self.stale = False
        """Pretends to load weights and keeps the old ones."""
        self.fails_to_load = False
        self.dies_at: str = ""
        """The verb at which it is gone, once."""
        self.sick = False
        self.ability = "frees"
        """What our worker says about its sleep."""
        self.asleep: set[str] = set()
        """Memory that was given back. As vLLM's: the scheduler runs again once none of it is missing."""
        self.paused = False
        self.workers = 1
        self.calls: list[str] = []
        self.requests: list[dict[str, Any]] = []
        self.live = self.most_live = 0
        self.delay_s = 0.0
        self.port = 0
        self._aborts: dict[str, asyncio.Event] = {}
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Also after `kill`, at the same port: another process, so the first weights again."""
        self.label, self.mark, self.asleep, self.paused = "default", 0.0, set(), False
        application = web.Application()
        for verb, path, handler in (
            ("GET", "/health", self._health),
            ("GET", "/v1/models", self._models),
            ("GET", "/weight_info", self._weight_info),
            ("POST", "/update_weight_version", self._set_label),
            ("POST", "/pause", self._pause),
            ("POST", "/resume", self._resume),
            ("POST", "/collective_rpc", self._reload),
            ("POST", "/reset_prefix_cache", self._reset),
            ("GET", "/get_world_size", self._world_size),
            ("POST", "/sleep", self._sleep),
            ("POST", "/wake_up", self._wake),
            ("POST", "/inference/v1/generate", self._generate),
            ("POST", "/inference/v1/abort_requests", self._abort),
        ):
            application.router.add_route(verb, path, handler)
        self._runner = web.AppRunner(application, shutdown_timeout=0.01)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        assert site._server is not None
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]

    async def kill(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def _maybe_die(self, request: web.Request) -> None:
        if request.path == self.dies_at:
            self.dies_at = ""
            assert request.transport is not None
            request.transport.abort()
            self._dying = asyncio.create_task(self.kill())
            raise web.HTTPServiceUnavailable

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=503 if self.sick else 200)

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "policy", "max_model_len": 512}]})

    async def _weight_info(self, _: web.Request) -> web.Response:
        return web.json_response({"weight_version": self.label}, status=503 if self.sick else 200)

    async def _set_label(self, request: web.Request) -> web.Response:
        self._maybe_die(request)
        self.calls.append("label")
        self.label = (await request.json())["new_version"]
        return web.json_response({})

    async def _pause(self, request: web.Request) -> web.Response:
        self._maybe_die(request)
        assert request.query["mode"] == "keep"
        self.calls.append("pause")
        self.paused = True
        return web.json_response({})

    async def _world_size(self, _: web.Request) -> web.Response:
        return web.json_response({"world_size": self.workers})

    async def _sleep(self, request: web.Request) -> web.Response:
        self._maybe_die(request)
        assert request.query["mode"] == "keep"
        assert self.calls[-2:] == ["pause", "reset"], "requests that keep their keys and values wake up with garbage"
        self.calls.append(f"sleep {request.query['level']}")
        self.asleep, self.mark = {"weights", "kv_cache"}, 0.0
        return web.json_response({"status": "sleeping"})

    async def _wake(self, request: web.Request) -> web.Response:
        self._maybe_die(request)
        tags = request.query.getall("tags")
        self.calls.append(f"wake {' '.join(tags)}")
        self.asleep -= set(tags)
        if not self.asleep:
            self.paused = False
        return web.json_response({"status": "sleeping" if self.asleep else "awake"})

    async def _resume(self, _: web.Request) -> web.Response:
        assert not self.asleep, "it would run without its memory"
        self.calls.append("resume")
        self.paused = False
        return web.json_response({})

    async def _reset(self, request: web.Request) -> web.Response:
        self._maybe_die(request)
        assert request.query["reset_running_requests"] == "true"
        assert self.paused
        self.calls.append("reset")
        return web.json_response({"success": True})

    async def _reload(self, request: web.Request) -> web.Response:
        if (await request.json())["method"] == "sao_sleep_ability":
            return web.json_response({"results": [self.ability]})
        self._maybe_die(request)
        assert "weights" not in self.asleep, "there is nothing to load into"
        self.calls.append("reload")
        if self.fails_to_load:
            return web.json_response({"error": "no such model"}, status=500)
        folder = Path((await request.json())["kwargs"]["weights_path"])
        if not self.stale:
            self.mark = float((folder / "model.safetensors").read_bytes())
        return web.json_response({"results": [None]})

    async def _abort(self, request: web.Request) -> web.Response:
        for name in (await request.json())["request_ids"]:
            if (event := self._aborts.get(name.removeprefix("generate-tokens-"))) is not None:
                event.set()
        return web.Response()

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        while self.paused:  # noqa: ASYNC110 - queued, as vLLM's are
            await asyncio.sleep(0.01)
        assert not self.asleep
        if "prompt_logprobs" in body["sampling_params"]:
            return web.json_response(self._probe(body))
        self.requests.append(body)
        self.live += 1
        self.most_live = max(self.most_live, self.live)
        aborted = self._aborts.setdefault(body["request_id"], asyncio.Event())
        try:
            behaviour = self.behaviours.popleft() if self.behaviours else "ok"
            limit = self.delay_s if behaviour != "slow" else 3600.0
            if limit:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(aborted.wait(), limit)
            return await self._answer(request, body, behaviour, aborted.is_set())
        finally:
            self.live -= 1

    async def _answer(
        self, request: web.Request, body: dict[str, Any], behaviour: str, aborted: bool
    ) -> web.StreamResponse:
        asked = body["sampling_params"]
        tokens = [token_at(asked["seed"], place) for place in range(asked["max_tokens"])]
        stops = [place for place, token in enumerate(tokens) if token in asked["stop_token_ids"]]
        reason = "length"
        if stops:
            tokens, reason = tokens[: stops[0] + 1], "stop"
        if aborted or behaviour == "unasked_abort":
            tokens, reason = tokens[: len(tokens) // 2], "abort"
        choice = {
            "finish_reason": reason,
            "token_ids": tokens,
            "logprobs": {"content": [{"token_id": token, "logprob": logprob_of(token)} for token in tokens]},
            "weight_versions": [{"version": self.label, "start": 0, "end": len(tokens)}],
        }
        if behaviour == "500":
            return web.json_response({"error": "engine core is busy dying"}, status=500)
        if behaviour == "400":
            return web.json_response({"error": "no"}, status=400)
        if behaviour == "not_json":
            return web.Response(text="<html>proxy</html>")
        spoil(choice, behaviour)
        payload = json.dumps({"choices": [choice]}).encode()
        if behaviour == "cut":
            response = web.StreamResponse(headers={"Content-Length": str(len(payload))})
            await response.prepare(request)
            await response.write(payload[: len(payload) // 2])
            assert request.transport is not None
            request.transport.close()
            return response
        return web.Response(body=payload, content_type="application/json")

    def _probe(self, body: dict[str, Any]) -> dict[str, Any]:
        tokens = body["token_ids"]
        rest = [{str(token): {"logprob": self.mark}} for token in tokens[1:]]
        spans = [{"version": self.label, "start": 0, "end": 1}]
        choice = {"finish_reason": "length", "token_ids": [1], "weight_versions": spans}
        return {"choices": [choice], "prompt_logprobs": [None, *rest]}


SPOILT = (
    "no_logprobs",
    "short_logprobs",
    "other_token",
    "nan",
    "positive",
    "unknown",
    "short_spans",
    "foreign",
    "more",
)


def spoil(choice: dict[str, Any], behaviour: str) -> None:
    content: list[dict[str, Any]] = choice["logprobs"]["content"]
    spans: Sequence[dict[str, Any]] = choice["weight_versions"]
    if behaviour == "no_logprobs":
        choice["logprobs"] = None
    elif behaviour == "short_logprobs":
        content.pop()
    elif behaviour == "other_token":
        content[0]["token_id"] += 1
    elif behaviour == "nan":
        content[0]["logprob"] = float("nan")
    elif behaviour == "positive":
        content[-1]["logprob"] = 0.5
    elif behaviour == "unknown":
        content[-1]["logprob"] = -9999.0
    elif behaviour == "short_spans":
        spans[-1]["end"] -= 1
    elif behaviour == "foreign":
        spans[0]["version"] = "default"
    elif behaviour == "more":
        choice["token_ids"] += choice["token_ids"]
    elif behaviour == "short_tokens":
        for part in (choice["token_ids"], content):
            part.pop()
        spans[-1]["end"] -= 1
