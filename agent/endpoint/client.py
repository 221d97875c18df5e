"""Chat completions over HTTP: one endpoint, one model, its failures as typed faults.

aiohttp, which the vLLM client uses already: tries, pauses and refusals decide what counts as whose failure, so they are
this module's own and not a client library's.

Promises:
* connection lost, time-out, 408, 409, 425, 429, 5xx and an unreadable answer are tried again after growing pauses, at
  least as long as Retry-After says, `tries` times and for `patience_s` in all; then EndpointDown. Other refusals (key,
  address, model, parameters, an empty purse) are EndpointRefused at once;
* at most `in_flight` requests at once, a waiting retry included: an endpoint that says 429 is not asked by others more;
* the key comes from an environment variable and goes into the request's header alone; where an error text of the
  endpoint repeats it, it is blotted out.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import urlsplit

import aiohttp

from agent.endpoint.answers import Answer, read_answer
from agent.endpoint.faults import EndpointDown, EndpointFault, EndpointRefused, Filtered, Refusal, TooLong, fault_of
from agent.endpoint.settings import EndpointSettings

T = TypeVar("T")
_SHOWN = 500
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_CHECK_TOKENS = 16
_CHECK_TRIES = 3
_ANYBODY_S = 30.0
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 60.0


@dataclass(frozen=True)
class Served:
    """What the check found out."""

    context: int | None = None
    """Most tokens, where the list of models says so."""
    notes: tuple[str, ...] = ()
    answered_by: str = ""


class Idle:
    """Seconds in which nobody works on the requests that it is given to: until they have a place among those in
    flight, failed tries, and the pauses after them."""

    def __init__(self) -> None:
        self._spent = 0.0
        self._since: float | None = None

    @property
    def seconds(self) -> float:
        return self._spent + (0.0 if self._since is None else time.monotonic() - self._since)

    def begins(self, since: float | None = None) -> None:
        self.ends()
        self._since = time.monotonic() if since is None else since

    def ends(self) -> None:
        self._spent, self._since = self.seconds, None


class ChatClient:
    """Make and close it in one event loop. Raises EndpointRefused when the settings cannot work."""

    def __init__(self, settings: EndpointSettings) -> None:
        settings.check()
        self.settings, self.url = settings, settings.url.rstrip("/")
        self._key = settings.key()
        self._gate = asyncio.Semaphore(settings.in_flight)
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
            timeout=aiohttp.ClientTimeout(total=settings.timeout_s, sock_connect=30.0),
            trust_env=urlsplit(self.url).hostname not in _LOOPBACK,  # proxies of the environment
        )

    async def close(self) -> None:
        await self._session.close()

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_tokens: int,
        tools: Sequence[Any] = (),
        tries: int | None = None,
        idle: Idle | None = None,
        **fields: Any,
    ) -> Answer:
        """`tries`: another number than the settings'. `idle` takes the time that no answer is to blame for.
        Raises EndpointDown, EndpointRefused, TooLong, Filtered."""
        settings = self.settings
        body: dict[str, Any] = {"model": settings.model, "messages": list(messages), **fields, **settings.extra}
        if tools:
            body["tools"] = list(tools)
        body = {key: value for key, value in body.items() if key not in settings.omit}
        if settings.limit_field:
            body[settings.limit_field] = max_tokens
        idle = idle or Idle()
        idle.begins()
        try:
            async with self._gate:
                return await self._again(lambda retries: self._answer("/chat/completions", body, retries), tries, idle)
        finally:
            idle.ends()

    async def answers(self) -> None:
        """That anybody is there: whatever is said about the list of models will do. Raises EndpointDown."""
        try:
            async with asyncio.timeout(_ANYBODY_S), self._session.get(self.url + "/models") as response:
                await response.read()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            why = self._clean(str(error)) or f"no answer within {_ANYBODY_S:g} s"
            raise EndpointDown(
                f"{self.url} was asked for a turn and says nothing any more ({why}). Start again when the endpoint "
                "answers: what is finished is kept."
            ) from error

    async def check(self, tools: Sequence[Any] = (), **fields: Any) -> Served:
        """That address, key, model, tools and parameters are taken: the list of models, and one tiny question in the
        very form of those to come. Raises EndpointDown, EndpointRefused."""
        context, notes = None, []
        try:
            listed = await self._again(lambda _: self._call("GET", "/models", None), _CHECK_TRIES)
            entries = [one for one in listed.get("data") or [] if isinstance(one, Mapping)]
            names = [str(one.get("id")) for one in entries]
            own = next((one for one in entries if one.get("id") == self.settings.model), None)
            if own is not None:
                found = own.get("max_model_len") or own.get("context_length")
                context = found if isinstance(found, int) else None
            elif names:
                shown = ", ".join(names[:8]) + (" …" if len(names) > 8 else "")
                notes.append(f"{self.url} does not list the model {self.settings.model}; it lists {shown}")
        except EndpointRefused:
            pass  # many have no list of models; a wrong key is refused below
        try:
            question = [{"role": "user", "content": "Reply with the word ready."}]
            answer = await self.chat(question, max_tokens=_CHECK_TOKENS, tools=tools, tries=_CHECK_TRIES, **fields)
        except (TooLong, Filtered) as error:
            raise EndpointRefused(f"{self.url}: {error.message}") from error
        except EndpointRefused as error:
            more = f" {notes[0]}." if notes else ""
            raise EndpointRefused(f"{error}{more}{_tools_hint(str(error)) if tools else ''}") from error
        return Served(context, tuple(notes), answer.model)

    async def _again(
        self, once: Callable[[int], Awaitable[T]], tries: int | None = None, idle: Idle | None = None
    ) -> T:
        """`once` gets the number of failed tries before it."""
        idle = idle or Idle()
        began, pause, tries = time.monotonic(), _FIRST_PAUSE_S, tries or self.settings.tries
        for tried in range(1, tries + 1):
            idle.ends()
            started = time.monotonic()
            try:
                return await once(tried - 1)
            except EndpointFault as fault:
                idle.begins(started)
                spread = pause * random.uniform(0.75, 1.25)  # so that many episodes do not come back at once
                wait = max(spread, fault.retry_after_s or 0.0)
                spent = time.monotonic() - began
                if tried == tries or spent + wait > self.settings.patience_s:
                    raise EndpointDown(
                        f"{fault}. Tried {tried} times in {spent:.0f} s"
                        + (f"; it asks to wait {fault.retry_after_s:.0f} s more" if fault.retry_after_s else "")
                        + ". Start again when the endpoint answers: what is finished is kept."
                    ) from fault
                await asyncio.sleep(wait)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
        raise AssertionError("unreachable: tries is at least 1")

    async def _answer(self, path: str, body: Any, retries: int) -> Answer:
        value = await self._call("POST", path, body)
        try:
            return read_answer(value, retries)
        except EndpointFault as error:
            raise EndpointFault(f"POST {self.url}{path}: {self._clean(str(error))[:_SHOWN]}") from error

    async def _call(self, verb: str, path: str, body: Any) -> Mapping[str, Any]:
        where = f"{verb} {self.url}{path}"
        try:
            async with self._session.request(verb, self.url + path, json=body) as response:
                raw, status, headers = await response.read(), response.status, response.headers
        except TimeoutError as error:
            raise EndpointFault(f"{where}: no answer within {self.settings.timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise EndpointFault(self._clean(f"{where}: {type(error).__name__}: {error}")) from error
        try:
            value = json.loads(raw)
        except ValueError:
            value = None
        refused = value.get("error") if isinstance(value, Mapping) else None
        if status >= 400 or refused:  # some gateways answer 200 and put the error inside
            raise fault_of(where, self._refusal(status, value, raw), _retry_after(headers.get("Retry-After")))
        if not isinstance(value, Mapping):
            text = self._clean(raw.decode("utf-8", "replace"))[:_SHOWN]
            raise EndpointFault(f"{where}: the answer is no JSON object: {text}")
        return value

    def _refusal(self, status: int, value: Any, raw: bytes) -> Refusal:
        found = value.get("error", value) if isinstance(value, Mapping) else None
        inner = found if isinstance(found, Mapping) else {}
        message = inner.get("message") or inner.get("detail") or (found if isinstance(found, str) else "")
        text = self._clean(str(message or raw.decode("utf-8", "replace")))[:_SHOWN]
        code = inner.get("code") or inner.get("type") or ""
        if status < 400:
            status = code if isinstance(code, int) and code >= 400 else 502
        return Refusal(status, text, self._clean(code)[:_SHOWN] if isinstance(code, str) else "")

    def _clean(self, text: str) -> str:
        return text.replace(self._key, "***") if self._key else text


def _retry_after(value: str | None) -> float | None:
    """Seconds, or a date."""
    if not value:
        return None
    try:
        return max(float(value), 0.0)
    except ValueError:
        pass
    try:
        when = parsedate_to_datetime(value)
    except ValueError:
        return None
    return max((when - datetime.now(when.tzinfo or UTC)).total_seconds(), 0.0) if when.tzinfo else None


def _tools_hint(text: str) -> str:
    if "tool" not in text.lower():
        return ""
    return (
        " If it knows no tool calls, have them written as text: --set endpoint.calls=text (a vLLM server needs "
        "--enable-auto-tool-choice and --tool-call-parser for its own)."
    )
