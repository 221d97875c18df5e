"""What sandboxes left on a Docker engine: finding it, judging whose it is, removing it.

Promises: everything we make carries the labels RUN, OWNER, DEADLINE and SANDBOX, so `survey` sees all of it, of every
run; `remove` takes a container's volumes along, returns when it is gone, and never raises for what is gone already.
"""

from __future__ import annotations

import contextlib
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from envs.sandbox.ending import Table
from envs.sandbox.owner import Found, standing

RUN, OWNER, DEADLINE, SANDBOX = "sao.run", "sao.owner", "sao.deadline", "sao.sandbox"
REMOVAL_S = 10.0


def survey(api: Any) -> list[Found]:
    """Containers, volumes and kept states (images), in the order in which they can be removed."""
    mine = {"label": OWNER}
    found = [
        _found("container", _name(each), each, each["Created"], f"{each['Image']}, {each['Status']}")
        for each in api.containers(all=True, filters=mine)
    ]
    found += [
        _found("volume", each["Name"], each, _seconds(each.get("CreatedAt")), "")
        for each in api.volumes(filters=mine).get("Volumes") or []
    ]
    found += [
        _found("image", (each["RepoTags"] or [each["Id"]])[0], each, each["Created"], "a kept state")
        for each in api.images(filters=mine)
    ]
    return found


def _found(kind: Any, name: str, facts: dict[str, Any], made_at: float | None, note: str) -> Found:
    labels = facts.get("Labels") or {}
    owner, deadline = labels.get(OWNER, ""), labels.get(DEADLINE, "")
    ends_at = float(deadline) if deadline.isdigit() else None
    run, sandbox = labels.get(RUN, ""), labels.get(SANDBOX, "")
    return Found(kind, name, standing(owner, ends_at), owner, run, sandbox, made_at, ends_at, note)


def _name(container: dict[str, Any]) -> str:
    return container["Names"][0].lstrip("/") if container["Names"] else container["Id"]


def _seconds(text: str | None) -> float | None:
    if not text:
        return None
    with contextlib.suppress(ValueError):
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    return None


def remove(api: Any, found: Found) -> bool:
    """False: it was gone already, or (an image) something still stands on it."""
    import docker

    try:
        match found.kind:
            case "container":
                return remove_container(api, found.name)
            case "volume":
                api.remove_volume(found.name, force=True)
            case "image":
                api.remove_image(found.name, force=False)
            case other:
                raise ValueError(f"a Docker engine has no {other}")
    except docker.errors.APIError as error:
        if error.response is None or error.response.status_code not in (404, 409):
            raise
        return False
    return True


_KILL = ["/bin/sh", "-c", "kill -KILL -1"]


def end_container(api: Any, name: str) -> None:
    """Kill every process of a running container. The engine kills its init alone, which may wait long for its turn
    where the others are busy and it runs at idle priority."""
    import docker

    with contextlib.suppress(docker.errors.APIError, OSError):
        facts = api.inspect_container(name)
        pid = int(facts["State"].get("Pid") or 0)
        if pid and (table := Table.of(pid)) is not None:
            with table:
                if _is_of(pid, facts["Id"]) and table.end():
                    return
        if facts["State"].get("Running"):  # another machine's, or not ours to signal: from within, all but its init
            api.exec_start(api.exec_create(name, _KILL, user="0:0")["Id"], detach=True)


def _is_of(pid: int, container_id: str) -> bool:
    """The number is of this machine, and of this container."""
    try:
        return container_id in Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return False


def remove_container(api: Any, name: str) -> bool:
    """Kill and remove, with anonymous volumes; returns when it is gone. False when there was none."""
    import docker

    end_container(api, name)
    give_up_at = time.monotonic() + REMOVAL_S
    while True:
        try:
            api.remove_container(name, force=True, v=True)
            return True
        except docker.errors.NotFound:
            return False
        except docker.errors.APIError as error:
            # 409: it is removing itself already. 500 "did not receive an exit event", "device busy": not yet.
            status = error.response.status_code if error.response is not None else 0
            if status not in (409, 500) or time.monotonic() > give_up_at:
                raise
        if _vanishes(api, name, 1.0):
            return True


def _vanishes(api: Any, name: str, seconds: float) -> bool:
    import docker

    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            api.inspect_container(name)
        except docker.errors.NotFound:
            return True
        time.sleep(0.05)
    return False


def await_removal(api: Any, container_id: str, seconds: float) -> bool:
    """Wait for a container that is ending by itself, which spares the engine a kill; False when it has not ended."""
    import docker
    import requests

    try:
        api.wait(container_id, timeout=seconds, condition="removed")
        return True
    except docker.errors.NotFound:
        return True
    except (docker.errors.APIError, requests.exceptions.RequestException):
        return False
