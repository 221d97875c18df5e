"""What has come back for one request of a channel: frames and raw bytes put together to a result.

Promises: a command's output is exactly what came between its frames; where bytes are missing, their number and place
are known; a command counts as complete only when its output and its end have both been seen.
"""

from __future__ import annotations

import errno
import os
import time

from envs.sandbox.contract import ExecResult

TIMED_OUT_CODE = 124


class Request:
    """What has come back for one request. `size` counts raw bytes since T, frames of this request included."""

    def __init__(self, seq: int, cap: int = 0) -> None:
        self.seq, self.cap = seq, cap
        self.head = bytearray()
        self.tail = bytearray()
        self.begun = self.in_tail = self.ended = self.exited = self.closed = False
        self.started = self.nofork = self.over = False
        self.size = self.total = 0
        self.code: int | None = None
        self.words: list[str] = []
        self.seen = time.monotonic()

    def data(self, data: bytes) -> None:
        self.seen = time.monotonic()
        if self.in_tail:
            self.size += len(data)
        if self.begun and not self.ended:
            (self.tail if self.in_tail else self.head).extend(data)

    def frame(self, kind: str, words: list[str], length: int) -> None:
        self.seen = time.monotonic()
        if kind == "A":
            self.started = True
        elif kind == "B":
            self.begun = True
        elif kind == "E":
            self.ended = True
            self.words = words or ["1"]
            self.size += length if self.in_tail else 0
            self.code = int(words[0]) if words and words[0].lstrip("-").isdigit() else None
        elif kind == "D":
            self.exited, self.code = True, int(words[0])
        elif kind == "X":
            self.exited, self.over, self.nofork = True, True, bool(words)
        elif kind == "T":
            self.in_tail = True
        elif kind in "ZC":
            self.closed = True
            self.total = int(words[0]) if kind == "Z" else self.total

    @property
    def complete(self) -> bool:
        return (self.ended and not self.in_tail) or (self.closed and (self.ended or self.exited))

    def result(self, seconds: float, timed_out: bool) -> ExecResult:
        cap = self.cap
        missing = max(0, self.total - self.size) if self.in_tail else 0
        head, tail = bytes(self.head), bytes(self.tail)
        excess = len(head) + len(tail) - cap
        if missing or excess > 0:  # cut where bytes are missing already, else in the middle
            if not missing:
                whole = head + tail
                head, tail = whole[: cap // 2], whole[cap // 2 :]
            missing += max(0, len(head) - cap)  # one read of the head may be more than a small cap
            head = head[:cap]
            keep = cap - len(head)
            missing += max(0, len(tail) - keep)
            tail = tail[len(tail) - keep :] if keep < len(tail) else tail
        code = TIMED_OUT_CODE if timed_out else (137 if self.code is None else self.code)
        return ExecResult(head + tail, code, seconds, timed_out, missing, len(head) if missing else 0)


_ERRNOS = (errno.EISDIR, errno.ENOTDIR, errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EFBIG, errno.EEXIST, errno.ELOOP)


def raise_for(words: list[str], path: str) -> None:
    """The error number is read off the message, which is the C locale's."""
    if words[0] == "0":
        return
    text = " ".join(words[1:]) or f"exit code {words[0]}"
    for number in _ERRNOS:
        if os.strerror(number).lower() in text.lower():
            raise OSError(number, text, path)
    raise OSError(errno.EIO, text, path)
