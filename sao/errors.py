"""Which exceptions are the user's to mend: shown as one paragraph with the way out, never as a traceback."""

from __future__ import annotations

import errno
import sys

USER, INFRASTRUCTURE = 2, 3
_HEAVY = {
    "agent.engines.vllm.devices": ("DevicesRefused",),
    "agent.engines.model_files": ("ModelRefused",),
    "trainer.controls": ("ControlError",),
    "trainer.critic": ("CriticError",),
    "trainer.folders": ("FolderError",),
    "trainer.logprobs": ("HeadError",),
    "trainer.metrics": ("MetricsError",),
    "trainer.optim": ("NonFiniteGradientError", "TrainingSetupError"),
    "trainer.replay": ("ReplayError",),
    "trainer.unfit": ("BatchFault", "TooManyUnfit"),
}


_PLACE = {
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENAMETOOLONG, errno.ELOOP),
    *(errno.ENOTDIR, errno.EISDIR, errno.EMFILE, errno.ENFILE),
}
"""What a file system says of a place that the user chose: not ours to mend."""


LONGEST = 4000
"""Characters of a paragraph. An error may quote what it was given, and that may be of any length."""


def exit_code_and_text(error: BaseException) -> tuple[int, str] | None:
    """(exit code, paragraph) of a known error, None for a bug (whose traceback should be seen)."""
    known = _known(error)
    if known is None or len(known[1]) <= LONGEST:
        return known
    code, text = known
    left_out = len(text) - LONGEST
    return code, f"{text[: LONGEST // 2]} … ({left_out:,} characters left out) … {text[-LONGEST // 2 :]}"


def _known(error: BaseException) -> tuple[int, str] | None:
    from agent.fleet import FaultStorm
    from agent.policy import EngineError
    from agent.tokenizer import TokenizerError
    from data.log import LogError
    from data.reading import InputError
    from envs.environment import EnvironmentFault
    from envs.sandbox.contract import SandboxError
    from eval.errors import EvalError
    from sao.paths import UserError

    user: list[type[BaseException]] = [UserError, InputError, LogError, TokenizerError, EvalError]
    for module, names in _HEAVY.items():  # torch is not imported just to show an error
        if loaded := sys.modules.get(module):
            user += [getattr(loaded, name) for name in names]
    if isinstance(error, tuple(user)):
        return USER, str(error)
    if isinstance(error, OSError) and error.errno in _PLACE and error.filename is not None:
        return USER, f"{error.filename}: {error.strerror}. Choose another place (SAO_RUNS is where runs go), or mend it"
    if isinstance(error, SandboxError | EnvironmentFault | EngineError | FaultStorm):
        return INFRASTRUCTURE, str(error)
    return None
