"""A Docker engine that misbehaves: a proxy in front of the real one, with faults for chosen requests."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from envs.sandbox.docker_engine import engine_address

FAULTS = ("refuse", "drop before", "drop after", "500", "429", "hang")
"""drop before: the engine never hears of it; drop after: it does it, and its answer is lost."""
_REQUEST = re.compile(rb"(GET|POST|DELETE|PUT|HEAD) (\S+) HTTP/1\.1\r\n")


class EngineProxy:
    """`faults`: (what the request line must match, the fault), each used once, the first that fits."""

    def __init__(self, socket_path: Path) -> None:
        self.path = socket_path
        self.address = f"unix://{socket_path}"
        self.faults: list[tuple[str, str]] = []
        self.seen: list[str] = []
        self._closed = threading.Event()
        self._server: socket.socket | None = None
        self._open: list[socket.socket] = []

    def listen(self) -> None:
        self.path.unlink(missing_ok=True)
        server = self._server = socket.socket(socket.AF_UNIX)
        server.bind(str(self.path))
        server.listen(64)
        threading.Thread(target=self._accept, args=(server,), daemon=True).start()

    def deafen(self) -> None:
        """As an engine that is stopped: nobody listens, every connection ends."""
        if self._server is not None:
            with contextlib.suppress(OSError):
                self._server.shutdown(socket.SHUT_RDWR)
            self._server.close()
        self.path.unlink(missing_ok=True)
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._closed.set()
        self.deafen()

    def _accept(self, server: socket.socket) -> None:
        while not self._closed.is_set():
            try:
                client, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        engine = socket.socket(socket.AF_UNIX)
        engine.connect(engine_address().removeprefix("unix://"))
        self._open += [client, engine]
        answers = threading.Thread(target=self._answers, args=(engine, client), daemon=True)
        answers.start()
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                fault = self._fault(data)
                if fault in ("500", "429"):
                    text = b'{"message": "told to fail"}'
                    head = f"HTTP/1.1 {fault} Told\r\nContent-Type: application/json\r\nContent-Length: {len(text)}"
                    client.sendall(head.encode() + b"\r\nConnection: close\r\n\r\n" + text)
                    break
                if fault == "drop before":
                    break
                if fault == "hang":
                    self._closed.wait(60)
                    break
                engine.sendall(data)
                if fault == "drop after":
                    time.sleep(1.0)
                    break
        # The engine hears that the client's side has ended; what it still says goes on.
        with contextlib.suppress(OSError):
            if not self.seen or "attach" not in self.seen[-1]:
                client.shutdown(socket.SHUT_RDWR)
            engine.shutdown(socket.SHUT_WR)

    def _fault(self, data: bytes) -> str | None:
        if not (match := _REQUEST.match(data)):
            return None
        line = f"{match[1].decode()} {match[2].decode()}"
        self.seen.append(line)
        for at, (pattern, fault) in enumerate(self.faults):
            if re.search(pattern, line):
                del self.faults[at]
                return fault
        return None

    def _answers(self, engine: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := engine.recv(65536):
                client.sendall(data)
        for each in (engine, client):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def engine_proxy(folder: Path) -> Iterator[EngineProxy]:
    if not engine_address().startswith("unix://") or not os.access(engine_address().removeprefix("unix://"), os.W_OK):
        pytest.skip("DOCKER TEST NOT RUN: the proxy needs the engine's unix socket")
    proxy = EngineProxy(folder / "engine.sock")
    proxy.listen()
    try:
        yield proxy
    finally:
        proxy.close()
