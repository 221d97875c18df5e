"""Running the driver's own git in a sandbox, so that nothing the agent wrote can steer it.

Promises: no system or user configuration, no hooks, no filters, no replacement objects, no prompts; repository paths
are bytes, never decoded lossily; output larger than the sandbox's cap is fetched whole through a file.
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Mapping

from envs.environment import EnvironmentFault
from envs.sandbox.contract import ExecResult, Sandbox

_CONFIG = {
    "safe.directory": "*",
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.attributesFile": "/dev/null",
    "core.excludesFile": "/dev/null",
    "core.autocrlf": "false",
    "core.fileMode": "true",
    "core.symlinks": "true",
    "core.ignoreCase": "false",
    # Windows and macOS name checks would refuse odd but legal Linux names.
    "core.protectNTFS": "false",
    "core.protectHFS": "false",
    "core.commitGraph": "false",
    "core.multiPackIndex": "false",
    "gc.auto": "0",
    "advice.detachedHead": "false",
    "diff.noprefix": "false",
    "diff.mnemonicPrefix": "false",
    "diff.suppressBlankEmpty": "false",
    "init.defaultBranch": "main",
}

PLAIN_ENV: Mapping[str, str] = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
"""For the driver's scripts that call no git: every byte of a request costs a sandbox's shell a system call."""

DRIVER_ENV: Mapping[str, str] = {
    **PLAIN_ENV,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_CONFIG_COUNT": str(len(_CONFIG)),
    **{f"GIT_CONFIG_KEY_{i}": key for i, key in enumerate(_CONFIG)},
    **{f"GIT_CONFIG_VALUE_{i}": value for i, value in enumerate(_CONFIG.values())},
}
"""For the driver's scripts that call git."""

EXPORTS = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in DRIVER_ENV.items())
"""The same as shell text, for scripts that go into the sandbox as files."""

AGENT_ENV: Mapping[str, str] = {
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
}
"""For the agent's commands and the tests: files may belong to another user id than the sandbox's."""

RAW_ATTRIBUTES = "* -text !eol -ident -filter !working-tree-encoding !diff !merge !whitespace\n"
"""In $GIT_DIR/info/attributes these win over every .gitattributes: contents are taken byte for byte."""


async def run_script(
    sandbox: Sandbox, script: str, *, timeout_s: float, env: Mapping[str, str] = DRIVER_ENV, last: bool = False
) -> ExecResult:
    """A driver's script with the driver's environment. Exit codes are the caller's to judge."""
    return await sandbox.exec(script, timeout_s=timeout_s, cwd="/", env=env, last=last)


async def read_output(
    sandbox: Sandbox,
    script: str,
    *,
    timeout_s: float,
    max_bytes: int,
    env: Mapping[str, str] = DRIVER_ENV,
    last: bool = False,
) -> tuple[bytes, int]:
    """All bytes that `script` prints (it must keep stderr apart) and its exit code.

    Raises ValueError above max_bytes, EnvironmentFault on a time-out."""
    result = await run_script(sandbox, script, timeout_s=timeout_s, env=env, last=last)
    if result.truncated and not result.timed_out:
        path = f"/tmp/.driver-{secrets.token_hex(8)}"
        # One byte more than allowed tells "exactly at the limit" from "above".
        capped = f"{{ {script}\n}} | head -c {max_bytes + 1} > {path}"
        again = await run_script(sandbox, capped, timeout_s=timeout_s, env=env)
        if not again.timed_out:
            data = await sandbox.get(path, max_bytes=max_bytes + 1)
            await run_script(sandbox, f"rm -f {path}", timeout_s=timeout_s, env=PLAIN_ENV)
            if len(data) > max_bytes:
                raise ValueError(f"more than {max_bytes} bytes")
            return data, result.exit_code
        result = again
    if result.timed_out:
        raise EnvironmentFault(f"a driver's command did not end within {timeout_s:g} s: {script.strip()[:200]}")
    if len(result.output) > max_bytes:
        raise ValueError(f"more than {max_bytes} bytes")
    return result.output, result.exit_code


def quote(path: str) -> str:
    return shlex.quote(path)
