"""Why a sandbox ended: by what ran in it, or by anything else.

Promises: `EndedInside` has a proof. Either its first process ended before the deadline with an exit code that no signal
from outside and no end of the driver's stream gives, while the engine answered; or its channel is silent although it
runs, and a fresh sandbox of the same kind answers. Whatever is not proved is SandboxDead.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from envs.sandbox.channel_text import LOST

FROM_OUTSIDE = frozenset({0, 137, 143, 255})
"""Exit codes of a sandbox's init that say nothing of its commands: the end of its stream or its lease; SIGKILL and
SIGTERM, which nothing inside can send it; not known."""
_EVENTS_LAG_S = 0.5


@dataclass(frozen=True)
class End:
    """What a backend knows of a sandbox whose channel broke."""

    running: bool = False
    code: int | None = None
    """Of its init; None when it is not known."""
    oom: bool = False
    outside: bool = False
    """Somebody else killed or stopped it."""
    said: str = ""

    @property
    def by_itself(self) -> bool:
        return self.code is not None and self.code >= 0 and self.code not in FROM_OUTSIDE


def container_end(api: Any, container_id: str, since: float, silent: bool) -> End:
    """Blocking. Of a container that broke its channel (`silent`: without ending, as far as is known)."""
    import docker

    if silent:
        try:
            state = api.inspect_container(container_id)["State"]
        except docker.errors.NotFound:
            state = {}
        if state.get("Running"):
            return End(running=True, outside=bool(state.get("Paused")))
    for _ in range(10):
        died, end = _events(api, container_id, since)
        # The event of a full memory may come after that of the end.
        if died is not None and (end.oom or end.code not in (137, LOST) or time.time() - died > _EVENTS_LAG_S):
            return end
        time.sleep(0.1)
    return end


def _events(api: Any, container_id: str, since: float) -> tuple[float | None, End]:
    """The engine keeps recent events also for containers that have removed themselves."""
    code = died = oom_at = None
    outside = False
    until = f"{time.time():.9f}"
    for event in api.events(since=f"{since:.9f}", until=until, filters={"container": container_id}, decode=True):
        at = event["timeNano"] / 1e9
        match event.get("Action"):
            case "oom":
                oom_at = at
            case "kill" | "pause":
                outside = True
            case "die":
                died = at
                told = event["Actor"]["Attributes"].get("exitCode", "")
                code = int(told) if told.isdigit() else None
    oom = oom_at is not None and died is not None and abs(died - oom_at) < 3.0 and code in (137, LOST)
    return died, End(code=code, oom=oom, outside=outside)
