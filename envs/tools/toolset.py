"""Runs tool calls in a sandbox.

Promises: a model's mistake becomes an `Observation` with a named error, never an exception; sandbox faults raise;
files are edited byte-exactly and keep their mode; observation texts come from `envs.tools.text` and are capped.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envs.aside import TooHard, aside
from envs.environment import Observation, ToolCall
from envs.sandbox.contract import PathRefused, Sandbox
from envs.tools import text
from envs.tools.schema import SCHEMAS, CallError, check_call, with_timeout

ALL_TOOLS = tuple(SCHEMAS)
DEMO_TOOLS = ("view", "str_replace", "submit")
_HELPER_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class ToolLimits:
    observation_chars: int = 16_000
    """Cap of one observation; head and tail are kept."""
    command_timeout_s: float = 60.0
    """When bash is called without a timeout."""
    max_command_timeout_s: float = 600.0
    """A larger timeout that the model asks for is lowered to this."""
    raw_output: bool = False
    """Show commands' output as it was written, control sequences too, not as a terminal would show it."""
    file_bytes: int = 8 << 20
    """Largest file that view and str_replace open."""


class ToolSet:
    """The tools of one preset. `names` restricts and orders them; `schemas` is what the model is offered."""

    def __init__(self, names: Sequence[str] = ALL_TOOLS, limits: ToolLimits | None = None) -> None:
        unknown = [name for name in names if name not in SCHEMAS]
        if unknown or not names or len(set(names)) != len(names):
            raise ValueError(f"tools {list(names)}: each must be one of {', '.join(SCHEMAS)}, once")
        self.names = tuple(names)
        self.limits = limits or ToolLimits()

    @property
    def schemas(self) -> tuple[Mapping[str, Any], ...]:
        times = (self.limits.command_timeout_s, self.limits.max_command_timeout_s)
        return tuple(with_timeout(SCHEMAS[name], *times) if name == "bash" else SCHEMAS[name] for name in self.names)

    async def run(
        self, call: ToolCall, sandbox: Sandbox, repo_dir: str, env: Mapping[str, str] | None = None
    ) -> Observation:
        """`env`: for the agent's own commands, beside the sandbox's. Raises SandboxError only."""
        try:
            arguments = check_call(call, self.names)
            if call.name == "bash":
                arguments["env"] = env
            observation = await getattr(self, f"_{call.name}")(sandbox, repo_dir, **arguments)
        except (CallError, text.EditRefused) as error:
            observation = Observation(text.error_text(error.name, str(error)), error=error.name)
        except TooHard as error:
            observation = Observation(text.error_text("too_hard", f"{call.name}: {error}."), error="too_hard")
        shown = text.cap(observation.text, self.limits.observation_chars)
        return Observation(shown, observation.done, observation.error)

    async def _submit(self, sandbox: Sandbox, repo_dir: str) -> Observation:
        return Observation(text.SUBMITTED, done=True)

    async def _think(self, sandbox: Sandbox, repo_dir: str, thought: str) -> Observation:
        return Observation(text.NOTED)

    async def _bash(
        self,
        sandbox: Sandbox,
        repo_dir: str,
        command: str,
        timeout: float | None = None,  # noqa: ASYNC109 - a tool argument
        env: Mapping[str, str] | None = None,
    ) -> Observation:
        seconds = min(timeout or self.limits.command_timeout_s, self.limits.max_command_timeout_s)
        try:
            command.encode()
        except UnicodeEncodeError as error:
            raise CallError("bad_text", "command is not valid Unicode.") from error
        result = await sandbox.exec(command, timeout_s=seconds, cwd=repo_dir, env=env)
        shown = await aside(
            text.reading_cost(result.output, raw=self.limits.raw_output),
            text.bash_text,
            result.output,
            result.exit_code,
            timed_out_after_s=seconds if result.timed_out else None,
            most_s=self.limits.max_command_timeout_s,
            truncated=result.truncated,
            raw=self.limits.raw_output,
        )
        return Observation(shown, error="timeout" if result.timed_out else None)

    async def _view(
        self, sandbox: Sandbox, repo_dir: str, path: str, start: int | None = None, end: int | None = None
    ) -> Observation:
        if start is not None and end is not None and end < start:
            raise CallError("bad_value", f"view: end ({end}) is before start ({start}).")
        try:
            data = await self._read(sandbox, repo_dir, path)
        except IsADirectoryError:
            return Observation(text.listing_text(await self._list(sandbox, absolute(repo_dir, path))))
        lines = text.count_lines(data)
        if start is not None and start > max(lines, 1):
            raise CallError("bad_value", f"view: {path} has {lines} lines, start is {start}.")
        return Observation(await aside(len(data), text.view_text, data, start, end))

    async def _str_replace(self, sandbox: Sandbox, repo_dir: str, path: str, old_str: str, new_str: str) -> Observation:
        try:
            data = await self._read(sandbox, repo_dir, path)
        except IsADirectoryError:
            raise CallError("is_a_directory", f"{path} is a directory: str_replace edits files.") from None
        size = len(data) + len(old_str) + len(new_str)
        made = await aside(size, text.replace_once, path, data, old_str, new_str)
        await self._write(sandbox, repo_dir, path, made, new=False)
        return Observation(text.edited_text(path))

    async def _create(self, sandbox: Sandbox, repo_dir: str, path: str, content: str) -> Observation:
        await self._write(sandbox, repo_dir, path, text.encode_text(content), new=True)
        return Observation(text.created_text(path))

    async def _read(self, sandbox: Sandbox, repo_dir: str, path: str) -> bytes:
        target = absolute(repo_dir, path)
        try:
            return await sandbox.get(target, max_bytes=self.limits.file_bytes)
        except (FileNotFoundError, NotADirectoryError):
            known = await self._files(sandbox, repo_dir)
            size = len(path) + sum(map(len, known))
            raise CallError("no_such_file", await aside(size, text.not_found_text, path, known)) from None
        except PermissionError:
            raise CallError("permission_denied", f"{path} may not be read.") from None
        except PathRefused:
            raise CallError("path_refused", f"{path} is outside of what may be opened.") from None
        except IsADirectoryError:
            raise
        except (ValueError, OSError) as error:
            raise CallError(
                "cannot_open", f"{path} cannot be opened: over {self.limits.file_bytes} bytes, or no plain file."
            ) from error

    async def _write(self, sandbox: Sandbox, repo_dir: str, path: str, data: bytes, *, new: bool) -> None:
        """Keeps the mode, links and owner of a file that is there."""
        target = absolute(repo_dir, path)
        try:
            if new and await self._is_there(sandbox, target):
                raise CallError("file_exists", f"{path} exists already. Use str_replace to edit it.")
            await sandbox.put(target, data, mode=None)
        except PathRefused:
            raise CallError("path_refused", f"{path} is outside of what may be opened.") from None
        except OSError as error:
            raise CallError("cannot_write", f"{path} cannot be written: {error.strerror or error}") from error

    async def _is_there(self, sandbox: Sandbox, target: str) -> bool:
        quoted = shlex.quote(target)
        result = await sandbox.exec(f"[ -e {quoted} ] || [ -L {quoted} ]", timeout_s=_HELPER_TIMEOUT_S, cwd="/")
        return result.exit_code == 0

    async def _list(self, sandbox: Sandbox, target: str) -> list[str]:
        result = await sandbox.exec(f"LC_ALL=C ls -1Ap -- {shlex.quote(target)}", timeout_s=_HELPER_TIMEOUT_S, cwd="/")
        if result.exit_code != 0:
            raise CallError("cannot_open", f"the directory cannot be listed: {text.show_bytes(result.output).strip()}")
        names = text.show_bytes(result.output).splitlines()
        return [name for name in names if name not in (".git/", ".git")]

    async def _files(self, sandbox: Sandbox, repo_dir: str) -> list[str]:
        """Paths under the repository, for suggestions; at most some thousands."""
        script = "find . -name .git -prune -o -type f -print 2>/dev/null | head -n 5000"
        result = await sandbox.exec(f"cd {shlex.quote(repo_dir)} && {script}", timeout_s=_HELPER_TIMEOUT_S, cwd="/")
        return [name.removeprefix("./") for name in text.show_bytes(result.output).splitlines()]


def absolute(repo_dir: str, path: str) -> str:
    """Relative paths are under the repository; absolute ones are the sandbox's."""
    return posixpath.normpath(posixpath.join(repo_dir, path))
