"""The socket between driver and sandbox, for both backends.

Promises: bytes reach the channel in order; the end of the connection reaches it too, once; Docker's multiplexed stream
is taken apart here, and what the sandbox's main process says on standard error is kept for error texts, not mixed in.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket

from envs.sandbox.channel import Channel

_HEADER = 8
_KEPT = 2000


class SandboxStream(asyncio.Protocol):
    def __init__(self, channel: Channel, *, multiplexed: bool) -> None:
        self._channel = channel
        self._multiplexed = multiplexed
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self.said = b""
        """The end of the main process's standard error (multiplexed streams only)."""

    async def connect(self, sock: socket.socket) -> None:
        """Takes the socket over."""
        sock.setblocking(False)
        self._transport, _ = await asyncio.get_running_loop().create_connection(lambda: self, sock=sock)

    def write(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            self._channel.lost()
        else:
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            with contextlib.suppress(OSError):  # ends it for every duplicate of the socket; it may have ended already
                self._transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._channel.lost()

    def data_received(self, data: bytes) -> None:
        if not self._multiplexed:
            self._channel.feed(data)
            return
        self._buffer += data
        at = 0
        out = []
        while len(self._buffer) - at >= _HEADER:
            end = at + _HEADER + int.from_bytes(self._buffer[at + 4 : at + _HEADER], "big")
            if end > len(self._buffer):
                break
            body = bytes(self._buffer[at + _HEADER : end])
            if self._buffer[at] == 2:
                self.said = (self.said + body)[-_KEPT:]
            else:
                out.append(body)
            at = end
        if at:
            del self._buffer[:at]
        if out:
            self._channel.feed(b"".join(out))
