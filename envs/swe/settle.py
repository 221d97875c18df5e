"""What an image's repository needs before it is the task's own: its commit named, the bug put in, hidden tests away.

Training sets whose rows name no commit mean the one that is checked out in the image (base_commit HEAD). Some make the
bug by a patch on it: then the task's repository is one new commit of the result, with no past that shows the fix. The
tests that judge may stand in the image too; they wait in a folder of the driver's, which an agent's sandbox loses
before the agent acts, and go back, over whatever a patch wrote there, before the tests run.

Promises: the same image gives the same commit id every time; copies of the unbroken files and of the hidden tests among
the untracked ones are removed, and so is what runs of the tests left (compiled code of other states, pytest's lists);
whatever cannot be done is an EnvironmentFault with the reason, never a verdict.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from data.tarball import Member, pack
from envs.environment import EnvironmentFault
from envs.sandbox.contract import Sandbox
from envs.swe.git import EXPORTS, PLAIN_ENV, quote, read_output, run_script
from envs.swe.row import SweRow

_TIMEOUT_S = 300.0
_MAX_OUTPUT = 1 << 20
_CONDA = "/opt/miniconda3/envs/testbed"


@cache
def _script() -> bytes:
    return Path(__file__).with_name("settle.sh").read_bytes()


@dataclass(frozen=True)
class Settled:
    base_commit: str
    stash: str = ""
    installed: tuple[str, ...] = ()

    def of(self, row: SweRow) -> SweRow:
        return dataclasses.replace(row, base_commit=self.base_commit, stash=self.stash, installed=self.installed)


async def settle(sandbox: Sandbox, row: SweRow) -> Settled:
    """The row's commit and where its hidden tests wait. `sandbox` is a fresh one of the row's image.

    Raises EnvironmentFault, SandboxError."""
    if row.settled:
        return Settled(row.base_commit)
    work = f"/tmp/.driver-{secrets.token_hex(8)}"
    stash = f"/tmp/.hidden-{secrets.token_hex(8)}" if row.hidden else ""
    variables = f"D={quote(row.repo_dir)} B={row.base_commit} W={work} S={stash}\n"
    files = {
        "bug.patch": row.bug_patch,
        "hidden": _lines(row.hidden),
        "removed": _lines(row.removed),
        "settle.sh": (EXPORTS + variables).encode() + _script(),
    }
    await sandbox.put_tar(work, pack(Member(name.encode(), data) for name, data in files.items()))
    output, code = await read_output(
        sandbox, f". {work}/settle.sh", timeout_s=_TIMEOUT_S, max_bytes=_MAX_OUTPUT, env=PLAIN_ENV
    )
    if code != 0:
        said = output.decode("utf-8", "replace").strip()[-2500:]
        raise EnvironmentFault(f"task {row.task_id}: {said or f'settling: exit code {code}'}")
    commit, *installed = output.decode("utf-8", "surrogateescape").splitlines()
    return Settled(commit, stash, tuple(installed))


async def forget_hidden(sandbox: Sandbox, row: SweRow) -> None:
    """Take the hidden tests out of a sandbox in which an agent will act. Raises EnvironmentFault, SandboxError."""
    if not row.stash:
        return
    done = await run_script(sandbox, f"rm -rf {row.stash} && [ ! -e {row.stash} ]", timeout_s=_TIMEOUT_S, env=PLAIN_ENV)
    if done.exit_code != 0:
        raise EnvironmentFault(f"task {row.task_id}: the hidden tests cannot be taken away: {done.text.strip()[-500:]}")


async def put_hidden_back(sandbox: Sandbox, row: SweRow) -> None:
    """Put the hidden tests into a work tree that holds a patch, and over what that wrote in their places. Links and
    files where their folders belong go. Raises EnvironmentFault, SandboxError."""
    if not row.stash:
        return
    steps = [f"cd {quote(row.repo_dir)} || exit 9", 'plain() { [ -d "$1" ] && [ ! -L "$1" ] || rm -rf "$1"; }']
    for path in row.hidden_targets:
        parts = path.split("/")
        steps += [f"plain {quote('/'.join(parts[:i]))}" for i in range(1, len(parts))]
        if len(parts) > 1:
            steps.append(f"mkdir -p {quote('/'.join(parts[:-1]))} || exit 9")
        steps.append(f"rm -rf {quote(path)} && cp -a {quote(f'{row.stash}/{path}')} {quote(path)} || exit 9")
    done = await run_script(sandbox, "\n".join(steps), timeout_s=_TIMEOUT_S, env=PLAIN_ENV)
    if done.exit_code != 0:
        raise EnvironmentFault(f"task {row.task_id}: the hidden tests cannot be put back: {done.text.strip()[-500:]}")


async def installed_env(sandbox: Sandbox, row: SweRow) -> Mapping[str, str] | None:
    """What an agent's commands need to run in the project's own environment: images of SWE-bench's kind have it under
    conda, which only an interactive shell would activate. None where there is none such. Raises SandboxError."""
    if row.files is not None or row.bundle is not None:
        return None
    look = await sandbox.exec(f'[ -x {_CONDA}/bin/python ] && printf %s "$PATH"', timeout_s=_TIMEOUT_S, cwd="/")
    if look.exit_code != 0 or look.timed_out:
        return None
    return {"PATH": f"{_CONDA}/bin:{look.text}", "CONDA_DEFAULT_ENV": "testbed", "CONDA_PREFIX": _CONDA}


def _lines(paths: tuple[str, ...]) -> bytes:
    return "".join(path + "\n" for path in paths).encode()
