"""Which exceptions are the user's to mend: shown as one paragraph with the way out, never as a traceback."""

from __future__ import annotations


def exit_code_and_text(error: BaseException) -> tuple[int, str] | None:
    """(exit code, paragraph) of a known error, None for a bug (whose traceback should be seen)."""
    from data.log import LogError
    from data.task import TaskError
    from envs.environment import EnvironmentFault
    from envs.sandbox.contract import SandboxError
    from sao.paths import UserError

    if isinstance(error, UserError | TaskError | LogError):
        return 2, str(error)
    if isinstance(error, SandboxError | EnvironmentFault):
        return 3, str(error)
    return None
