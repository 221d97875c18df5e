"""A hub of our own on the loopback: the few requests that the hub's client makes for a model, served from a folder."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

NO_ID = "0" * 40
COMMIT = "c0ffee" + "0" * 34


class Hub:
    """`repos`: id -> folder. `asked`: the paths of all requests, in order."""

    def __init__(self, repos: dict[str, Path]) -> None:
        self.repos = repos
        self.asked: list[str] = []
        self.url = ""

    def answer(self, path: str) -> tuple[int, bytes, str]:
        """Status, body, ETag."""
        self.asked.append(path)
        for repo, folder in self.repos.items():
            if path.startswith(f"/{repo}/resolve/{COMMIT}/"):
                data = (folder / path.rsplit(f"{COMMIT}/", 1)[1]).read_bytes()
                return 200, data, hashlib.sha1(data, usedforsecurity=False).hexdigest()
            files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
            if path.startswith(f"/api/models/{repo}/tree/"):
                tree = [
                    {
                        "type": "file",
                        "path": str(file.relative_to(folder)),
                        "size": file.stat().st_size,
                        "oid": "0" * 40,
                    }
                    for file in files
                ]
                return 200, json.dumps(tree).encode(), ""
            if path.startswith(f"/api/models/{repo}"):
                names = [{"rfilename": str(file.relative_to(folder))} for file in files]
                about = {"id": repo, "modelId": repo, "sha": COMMIT, "siblings": names, "private": False, "tags": []}
                return 200, json.dumps(about).encode(), ""
        return 404, b"{}", ""


@contextmanager
def serving(repos: dict[str, Path]) -> Iterator[Hub]:
    hub = Hub(repos)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body, etag = hub.answer(self.path.split("?")[0])
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Type", "application/json")
            self.send_header("X-Repo-Commit", COMMIT)
            if etag:
                self.send_header("ETag", f'"{etag}"')
            if status == 404:
                self.send_header("X-Error-Code", "RepoNotFound")
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
