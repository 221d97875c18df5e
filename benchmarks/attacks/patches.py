"""Git's patch from a layout's repository to one with an attack's files."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from benchmarks.attacks.site import Files

_ENV = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}


class Differ:
    """A scratch repository with a layout's files."""

    def __init__(self, base: Mapping[str, str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="attacks-")
        self._git("init", "-q")
        self.base = self._tree({path: text for path, text in base.items()}, ())

    def patch(self, files: Files, executable: tuple[str, ...] = ()) -> bytes:
        index = self._tree(files, executable, self.base)
        return self._git("diff", "-p", "--binary", "--full-index", self.base, index)

    def close(self) -> None:
        self._folder.cleanup()

    def _tree(self, files: Files, executable: tuple[str, ...], start: str = "") -> str:
        with tempfile.TemporaryDirectory(dir=self._folder.name) as scratch:
            more = {"GIT_INDEX_FILE": str(Path(scratch) / "index")}
            if start:
                self._git("read-tree", start, more=more)
            lines = []
            for path, content in files.items():
                if content is None:
                    self._git("update-index", "--force-remove", "--", path, more=more)
                    continue
                link = isinstance(content, str) and content.startswith("-> ")
                data = content[3:] if link else content
                raw = data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data
                name = self._git("hash-object", "-w", "--stdin", stdin=raw).decode().strip()
                mode = "120000" if link else "100755" if path in executable else "100644"
                lines.append(f"{mode},{name},{path}")
            for line in lines:
                self._git("update-index", "--add", "--replace", "--cacheinfo", line, more=more)
            return self._git("write-tree", more=more).decode().strip()

    def _git(self, *words: str, stdin: bytes = b"", more: Mapping[str, str] | None = None) -> bytes:
        env = {**_ENV, **(more or {})}
        done = subprocess.run(
            ["git", *words], cwd=self._folder.name, env=env, input=stdin, check=False, capture_output=True
        )
        if done.returncode:
            raise RuntimeError(f"git {' '.join(words)}: {done.stderr.decode('utf-8', 'replace')}")
        return done.stdout
