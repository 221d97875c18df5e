"""A small registry (distribution protocol, version 2) on 127.0.0.1 that misbehaves when told to.

It serves images made here: one or more tar.gz layers with content of their own, a config, a manifest. `faults` are
taken in order by the requests they match; `seen` records every request as "METHOD path".
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import tarfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"


@dataclass
class Fault:
    """`what`: part of "METHOD path" that it answers; `status` (0: only cut), headers, or the answer spoiled."""

    what: str
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b'{"errors":[{"code":"X","message":"made up"}]}'
    cut_at: int | None = None
    """Bytes of the true answer that are sent before the connection is cut."""
    spoil: bool = False
    """The true answer with its last byte changed."""
    hang_s: float = 0.0
    times: int = 1


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def layer(files: dict[str, bytes]) -> tuple[bytes, str]:
    """(tar.gz, diff id)."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o755
            tar.addfile(info, io.BytesIO(data))
    plain = stream.getvalue()
    return gzip.compress(plain, 1, mtime=0), digest_of(plain)


class FakeRegistry:
    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[tuple[str, str], tuple[str, bytes]] = {}
        self.faults: list[Fault] = []
        self.seen: list[str] = []
        self.times: list[float] = []
        """When each was seen (time.monotonic)."""
        self.headers: dict[str, str] = {}
        """Sent with every answer to a manifest request."""
        self.token = ""
        """When set, requests without it are sent to /token."""
        self.busy = self.most_busy = 0
        """Requests for manifests at once."""
        self._lock = threading.Lock()
        self._release = threading.Event()
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                registry._serve(self)

            do_HEAD = do_GET

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self.address = f"127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._release.set()
        self._server.shutdown()
        self._server.server_close()

    def add(self, repository: str, tag: str = "latest", *layers: dict[str, bytes], arch: str = "amd64") -> str:
        """Returns the name to pull. Default: one small layer of random content."""
        packed = [layer(files) for files in layers or ({"data": os.urandom(2000)},)]
        config = json.dumps(
            {
                "architecture": arch,
                "os": "linux",
                "config": {"Cmd": ["/bin/true"]},
                "rootfs": {"type": "layers", "diff_ids": [diff for _, diff in packed]},
                "history": [{"created_by": f"layer {i}"} for i in range(len(packed))],
            }
        ).encode()
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": self._blob("application/vnd.docker.container.image.v1+json", config),
            "layers": [self._blob("application/vnd.docker.image.rootfs.diff.tar.gzip", data) for data, _ in packed],
        }
        self.put_manifest(repository, tag, MANIFEST, json.dumps(manifest).encode())
        return f"{self.address}/{repository}:{tag}"

    def put_manifest(self, repository: str, tag: str, kind: str, data: bytes) -> str:
        self.manifests[repository, tag] = self.manifests[repository, digest_of(data)] = kind, data
        return digest_of(data)

    def _blob(self, kind: str, data: bytes) -> dict[str, Any]:
        self.blobs[digest_of(data)] = data
        return {"mediaType": kind, "size": len(data), "digest": digest_of(data)}

    def requests(self, what: str) -> int:
        return sum(what in line for line in self.seen)

    def _take(self, line: str) -> Fault | None:
        with self._lock:
            for fault in self.faults:
                if fault.times > 0 and fault.what in line:
                    fault.times -= 1
                    return fault
        return None

    @contextlib.contextmanager
    def _counted(self, step: int) -> Iterator[None]:
        with self._lock:
            self.busy += step
            self.most_busy = max(self.most_busy, self.busy)
        try:
            yield
        finally:
            with self._lock:
                self.busy -= step

    def _serve(self, request: BaseHTTPRequestHandler) -> None:
        line = f"{request.command} {request.path}"
        with self._lock:
            self.seen.append(line)
            self.times.append(time.monotonic())
        with self._counted("/manifests/" in line):
            status, headers, body = self._answer(request)
            fault = self._take(line)
            if fault is not None:
                self._release.wait(fault.hang_s)
                if fault.status:
                    status, headers, body = (
                        fault.status,
                        {"Content-Type": "application/json", **fault.headers},
                        fault.body,
                    )
                elif fault.spoil:
                    body = body[:-1] + bytes([body[-1] ^ 1])
            with contextlib.suppress(OSError):
                request.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    request.send_header(name, value)
                request.end_headers()
                if request.command == "GET":
                    cut = fault.cut_at if fault else None
                    request.wfile.write(body if cut is None else body[:cut])
                    if cut is not None:
                        request.wfile.flush()
                        request.close_connection = True
                        request.connection.shutdown(2)

    def _answer(self, request: BaseHTTPRequestHandler) -> tuple[int, dict[str, str], bytes]:
        plain = {"Docker-Distribution-Api-Version": "registry/2.0"}
        parts = request.path.partition("?")[0].strip("/").split("/")
        if parts[0] == "token":
            return 200, plain, json.dumps({"token": self.token}).encode()
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            ask = f'Bearer realm="http://{self.address}/token",service="fake",scope="repository:x:pull"'
            return 401, {**plain, "WWW-Authenticate": ask}, b"{}"
        if len(parts) > 3 and parts[-2] == "manifests":
            found = self.manifests.get(("/".join(parts[1:-2]), parts[-1]))
            if found:
                kind, data = found
                return (
                    200,
                    {**plain, **self.headers, "Content-Type": kind, "Docker-Content-Digest": digest_of(data)},
                    data,
                )
            return 404, plain, b'{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}'
        if len(parts) > 3 and parts[-2] == "blobs":
            data = self.blobs.get(parts[-1], b"")
            start = request.headers.get("Range", "").removeprefix("bytes=").rstrip("-")
            if data and start.isdigit():
                at = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}
                return 206, {**plain, **at}, data[int(start) :]
            return (200, plain, data) if data else (404, plain, b"{}")
        return (200, plain, b"{}") if parts == ["v2"] else (404, plain, b"{}")
