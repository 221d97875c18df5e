"""The text that makes a sandbox's `sh` its channel: channel.sh, or channel.pl where perl is there.

Promises: nothing needs to be in the image but a POSIX shell; a text cut short by the driver's death starts nothing;
which of the two an image got is remembered, so that only its first sandbox looks whether perl works.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from functools import cache
from pathlib import Path

from envs.sandbox.contract import SandboxSpec

RS = 0x1E
LOST = 71
"""Exit code of the sandbox's init when the shell that was its channel has ended, however."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def quote(text: str) -> str:
    """One shell word on one line; newlines come from the channel's own variable."""
    return '"$sao_nl"'.join("'" + part.replace("'", "'\"'\"'") + "'" for part in text.split("\n"))


def check_env(env: Mapping[str, str]) -> None:
    for name, value in env.items():
        if not _NAME.match(name) or "\0" in value:
            raise ValueError(f"environment variable {name!r}: the name must be a shell name and the value free of NUL")


def exports(env: Mapping[str, str]) -> str:
    check_env(env)
    return "".join(f"export {name}={quote(value)};" for name, value in env.items())


class Helpers(Enum):
    """May channel.pl be used?"""

    WHERE_PRESENT = "where present"
    NEVER = "never"


_known: dict[str, bool] = {}
"""Whether the helper came up, by image."""
_STEERED_BY = ("PERL5OPT", "PERL_UNICODE", "PERLIO", "PERL_SIGNALS")
"""Settings with which perl would not do what channel.pl says; images that have them get channel.sh."""


def remember(image: str, helper: bool) -> None:
    _known[image] = helper


def may_teach(spec: SandboxSpec, helpers: Helpers) -> bool:
    """Whether a sandbox without the helper says anything of its image."""
    return helpers is Helpers.WHERE_PRESENT and not any(name in spec.env for name in _STEERED_BY)


def channel_script(spec: SandboxSpec, nonce: str, limits: str, *, image: str, helpers: Helpers) -> bytes:
    """See Channel.script."""
    start, shell = _part("channel.sh").split("@HELPER@\n")
    helper = f"exec perl - 4<&0 <<'{nonce}'\n{_part('channel.pl')}{_part('channel_files.pl')}{nonce}\n"
    known = _known.get(image)
    values = {
        "NONCE": nonce,
        "RS": chr(RS),
        "NOFILE": str(spec.limits.nofile),
        "LIMITS": limits,
        "WORKDIR": quote(spec.workdir).replace('"$sao_nl"', "\n"),
        "DEADLINE": str(max(1, int(spec.deadline_s))),
    }

    def filled(text: str) -> str:
        return re.sub(r"@([A-Z]+)@", lambda m: values[m[1]], text)

    # channel.sh tells its own processes by their parent, so it cannot be init, which orphans get as theirs.
    inner = "'\"'\"'".join(filled(start + shell).split("'"))
    below = f"{{\nsh -c '{inner}'\nexit {LOST}\n}}\n"
    if known is False or not may_teach(spec, helpers):
        text = below
    elif known:
        text = filled(f"{start}{{\n{helper}}}\n")
    else:
        steered = "".join(f"${{{name}-}}" for name in _STEERED_BY)
        works = f'[ -z "{steered}" ] && command -v perl >/dev/null && perl -Mstrict -e 1'
        text = filled(f"{start}if {{ {works}; }} 2>/dev/null; then\n{helper}else\n") + f"{below}fi\n"
    return text.encode("utf-8", "surrogateescape")


@cache
def _part(name: str) -> str:
    """Without what only people read."""
    lines = (Path(__file__).parent / name).read_text().splitlines()
    return "".join(f"{line}\n" for line in lines if line.strip() and not line.lstrip().startswith("#"))
