"""Does a log show that a run missed the network, or only that an installer tried and went on?

Without a network pip, uv, npm, conda and apt print their retries, and most evaluation scripts go on all the same: what
they install is in the image. Such lines say nothing. What counts: an installer that gave up, for want of the network,
in its own last word; or a word of the network in what the tests print.
"""

from __future__ import annotations

import re

START, END = ">>>>> Start Test Output", ">>>>> End Test Output"
_MISSED = re.compile(
    r"could not resolve host|temporary failure in name resolution|name or service not known|nodename nor servname|"
    r"getaddrinfo (?:failed|ENOTFOUND|EAI_AGAIN)|network is unreachable|no route to host|"
    r"failed to establish a new connection|max retries exceeded|dns error|UnknownHostException",
    re.IGNORECASE,
)
_RETRY = re.compile(
    r"^\s*(?:warning|warn|npm (?:warn|http)|info|debug|ign:?\d*|trying|collecting)\b"
    r"|.*\b(?:retry(?:ing)?|attempt \d+)\b",
    re.IGNORECASE,
)
_GAVE_UP = re.compile(
    r"^\s*(?:error: (?:could not (?:find a version|install packages)|no matching distribution)"
    r"|error: subprocess-exited-with-error"
    r"|npm (?:err!|error) .*(?:ENOTFOUND|EAI_AGAIN|network)|e: (?:failed to fetch|unable to fetch)"
    r"|condahttperror|error: failed to (?:fetch|download)|fatal: unable to access)",
    re.IGNORECASE,
)


def missed_network(log: str) -> bool:
    """Of a run that failed. Linear in the log."""
    before, mark, rest = log.partition(START)
    tests = rest.split(END, 1)[0] if mark else before
    if any(_MISSED.search(line) and not _RETRY.match(line) for line in tests.split("\n")):
        return True
    installing = (before if mark else "").split("\n")
    return any(map(_GAVE_UP.match, installing)) and any(map(_MISSED.search, installing))
