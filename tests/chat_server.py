"""A small real server that speaks chat completions and misbehaves on command. What it says follows from the request.

`answer` is a function of the request's body; `faults` are used up first, one by each request: a status, `cut` (the
connection closes in mid-answer), `slow`, `hang` (from then on it takes connections and says nothing, to nobody),
`no_json`, `no_choices`, `inside` (200 with an error), `too_long`, `filtered`, `empty`, or `ok`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from aiohttp import web

Answer = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def say(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def call(name: str, arguments: Any, *, content: str | None = None, number: int = 0, **more: Any) -> dict[str, Any]:
    """A message with one tool call; `arguments` that are text are sent as they are."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    function = {"name": name, "arguments": text}
    return say(content, tool_calls=[{"id": f"c{number}", "type": "function", "function": function}], **more)  # type: ignore[arg-type]


def turns_of(body: Mapping[str, Any]) -> int:
    """Turns of the model that the request's history holds."""
    return sum(message["role"] == "assistant" for message in body["messages"])


class ChatServer:
    def __init__(self, answer: Answer, *, model: str = "small", key: str = "", context: int = 0) -> None:
        self.answer, self.model, self.key, self.context = answer, model, key, context
        self.faults: deque[Any] = deque()
        self.usage = True
        self.lists_models = True
        self.hung = False
        self.knows_tools = True
        self.headers: dict[str, str] = {}
        """Of refusals."""
        self.delay_s = 0.0
        self.slow_s = 30.0
        self.bodies: list[dict[str, Any]] = []
        self.live = self.most_live = 0
        self.url = ""

    async def _models(self, request: web.Request) -> web.Response:
        if self.hung:
            await asyncio.sleep(self.slow_s)
        if not self.lists_models:
            return web.json_response({"detail": "Not Found"}, status=404)
        if refused := self._unknown(request):
            return refused
        entry: dict[str, Any] = {"id": self.model, "object": "model"}
        if self.context:
            entry["max_model_len"] = self.context
        return web.json_response({"object": "list", "data": [entry]})

    def _unknown(self, request: web.Request) -> web.Response | None:
        given = request.headers.get("Authorization", "")
        if self.key and given != f"Bearer {self.key}":
            return _error(401, f"Incorrect API key provided: {given.removeprefix('Bearer ')}", "invalid_api_key")
        return None

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        self.live += 1
        self.most_live = max(self.most_live, self.live)
        try:
            return await self._reply(request)
        finally:
            self.live -= 1

    async def _reply(self, request: web.Request) -> web.StreamResponse:
        if refused := self._unknown(request):
            return refused
        body = await request.json()
        self.bodies.append(body)
        if body["model"] != self.model:
            return _error(404, f"The model `{body['model']}` does not exist.", "model_not_found")
        if "tools" in body and not self.knows_tools:
            return _error(400, '"auto" tool choice requires --enable-auto-tool-choice', "BadRequestError")
        for message in body["messages"]:
            for one in message.get("tool_calls") or []:
                json.loads(one["function"]["arguments"])  # as vLLM does with a history: a broken one is its 500
        if any(not (message.get("content") or message.get("tool_calls")) for message in body["messages"]):
            return _error(400, "messages: text content blocks must be non-empty", "invalid_request_error")
        asked = {one["id"] for message in body["messages"] for one in message.get("tool_calls") or []}
        given = {message["tool_call_id"] for message in body["messages"] if message["role"] == "tool"}
        if asked != given:
            return _error(400, f"tool_call_ids did not have response messages: {sorted(asked ^ given)}", "invalid")
        prompt = len(json.dumps(body["messages"])) // 4
        limit = body.get("max_tokens") or body.get("max_completion_tokens")
        if self.context and prompt + limit > self.context:
            text = f"This model's maximum context length is {self.context} tokens. However, you requested "
            text += f"{prompt + limit} tokens ({prompt} in the messages, {limit} in the completion)"
            return _error(400, text, "")
        fault = self.faults.popleft() if self.faults else None
        if fault is not None and (made := await self._misbehave(request, fault)) is not None:
            return made
        await asyncio.sleep(self.delay_s)
        message = dict(self.answer(body))
        finish = message.pop("finish", "tool_calls" if message.get("tool_calls") else "stop")
        completion = int(message.pop("tokens", len(json.dumps(message)) // 4))
        value: dict[str, Any] = {
            "id": "x",
            "object": "chat.completion",
            "model": f"{self.model}-2026",
            "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        }
        if self.usage:
            value["usage"] = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": 0}
        return web.json_response(value)

    async def _misbehave(self, request: web.Request, fault: Any) -> web.StreamResponse | None:
        if isinstance(fault, int):
            return _error(fault, "try later", "", headers=self.headers)
        if fault == "cut":
            response = web.StreamResponse(headers={"Content-Length": "1000"})
            await response.prepare(request)
            await response.write(b'{"choices": [')
            assert request.transport is not None
            request.transport.abort()
            return response
        if fault == "ok":
            return None
        if fault == "hang":
            self.hung = True
        if fault in ("slow", "hang"):
            await asyncio.sleep(self.slow_s)
            return None
        if fault == "no_json":
            return web.Response(text="<html>Bad gateway</html>")
        if fault == "no_choices":
            return web.json_response({"choices": []})
        if fault == "too_long":
            return _error(400, "prompt is too long: 9 tokens > 8 maximum", "invalid_request_error")
        if fault == "filtered":
            return _error(400, "The response was filtered.", "content_filter")
        if fault == "inside":
            return web.json_response({"error": {"code": 503, "message": "provider is overloaded"}})
        if fault == "empty":
            choice = {"message": {"role": "assistant", "content": None}, "finish_reason": "stop"}
            return web.json_response({"choices": [choice]})
        raise ValueError(fault)

    async def start(self) -> web.AppRunner:
        application = web.Application()
        application.router.add_get("/v1/models", self._models)
        application.router.add_post("/v1/chat/completions", self._chat)
        runner = web.AppRunner(application, shutdown_timeout=0.01)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        assert site._server is not None
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/v1"  # type: ignore[attr-defined]
        return runner


def _error(status: int, message: str, code: str, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.json_response({"error": {"message": message, "code": code}}, status=status, headers=headers)


@contextlib.asynccontextmanager
async def serving(server: ChatServer) -> Any:
    runner = await server.start()
    try:
        yield server
    finally:
        await runner.cleanup()


@contextlib.contextmanager
def in_thread(server: ChatServer) -> Iterator[ChatServer]:
    """For commands, which have an event loop of their own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    runner = asyncio.run_coroutine_threadsafe(server.start(), loop).result(10)
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
