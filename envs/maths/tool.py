"""The tool `python`: a program of the model's, run in the episode's sandbox.

Promises: every call is a fresh interpreter (what earlier calls defined is gone, their files are there); only what is
printed is seen; a mistake in the call is a named error for the model; sandbox faults raise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envs.aside import aside
from envs.environment import Observation, ToolCall
from envs.sandbox.contract import Sandbox
from envs.tools import text
from envs.tools.schema import CallError, check_call, with_timeout
from envs.tools.toolset import ToolLimits

NAME = "python"
WORKDIR = "/work"
SCHEMA: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "Run a Python 3 program and see what it prints. Every call is a fresh interpreter; no network.",
        "parameters": {
            "type": "object",
            "properties": {
                "code": {"type": "string", "description": "The program. Only what it prints is shown."},
                "timeout": {"type": "number", "exclusiveMinimum": 0, "description": "Seconds before it is ended."},
            },
            "required": ["code"],
            "additionalProperties": False,
        },
    },
}


class PythonTool:
    def __init__(self, limits: ToolLimits | None = None) -> None:
        self.limits = limits or ToolLimits()

    @property
    def schema(self) -> Mapping[str, Any]:
        return with_timeout(SCHEMA, self.limits.command_timeout_s, self.limits.max_command_timeout_s)

    async def run(self, call: ToolCall, sandbox: Sandbox, number: int) -> Observation:
        """`number`: of this call in its episode; its program is kept as call_<number>.py. Raises SandboxError."""
        try:
            arguments = check_call(call, (NAME,), {NAME: SCHEMA})
            code = text.encode_text(arguments["code"])
            if not code.strip():
                raise CallError("bad_value", "python: code is empty.")
        except (CallError, text.EditRefused) as error:
            return Observation(text.error_text(error.name, str(error)), error=error.name)
        seconds = min(
            float(arguments.get("timeout") or self.limits.command_timeout_s), self.limits.max_command_timeout_s
        )
        file = f"call_{number}.py"
        try:
            await sandbox.put(f"{WORKDIR}/{file}", code + b"\n")
        except OSError as error:
            return Observation(text.error_text("cannot_write", str(error)), error="cannot_write")
        made = await sandbox.exec(f"python3 -X utf8 {file}", timeout_s=seconds, cwd=WORKDIR)
        shown = await aside(
            text.reading_cost(made.output, raw=self.limits.raw_output),
            text.bash_text,
            made.output,
            made.exit_code,
            timed_out_after_s=seconds if made.timed_out else None,
            most_s=self.limits.max_command_timeout_s,
            truncated=made.truncated,
            raw=self.limits.raw_output,
        )
        return Observation(text.cap(shown, self.limits.observation_chars), error="timeout" if made.timed_out else None)
