"""One evaluation run in a fresh sandbox: the patch goes on as the official harness puts it on, the eval script runs,
the log comes back.

Promises: the ladder of ways to apply a patch is the official one, and which rung held is told; the tests see the
image's own environment, not the sandbox's additions; the log is text that the package can read, whatever bytes were
printed; a time-out leaves no process behind. The witness (envs.swe.guard.watch) tells beside the log what the test
runner itself counted; it changes nothing that the runner does, and its words are out of the log that is judged.

This is not `envs.swe.grading.run_tests`: that one puts bytes on a pristine tree and is stricter; published numbers are
made with the harness's own ladder on the image's tree as it stands.
"""

from __future__ import annotations

import dataclasses
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path

from envs.aside import aside
from envs.environment import EnvironmentFault
from envs.sandbox.channelled import BASE_ENV
from envs.sandbox.contract import BY_COMMANDS, ExecResult, Network, Sandbox, SandboxLimits, SandboxSpec
from envs.swe.diff import pack_files
from envs.swe.git import quote, run_script
from envs.swe.grading import whole
from envs.swe.guard import Judged, Noted, Watch, can_watch_script, look, starts_others
from envs.swe.guard.expected import SCRIPT, as_the_patch_makes_them, taken_out
from envs.swe.repository import provide, require_writable
from eval.swebench.rows import HarnessRow

LADDER = (
    "git apply --verbose",
    "git apply --verbose --3way",
    "git apply --verbose --reject",
    "patch --batch --forward --fuzz=5 -p1 -i",
)
"""swebench 5's GIT_APPLY_CMDS; a test compares them."""
_ALREADY_ON, _DOES_NOT_APPLY, _NO_REPOSITORY = 10, 21, 22
_APPLY_TIMEOUT_S = 300.0

_APPLY = (
    f'cd "$D" || exit {_NO_REPOSITORY}\nL="$W/apply.log"; : >"$L"\n'
    + "\n".join(
        ('{ git checkout -- . ; git clean -fd; } >>"$L" 2>&1\n' if rung else "")
        + f'echo "$ {way}" >>"$L"; {way} "$W/patch.diff" >>"$L" 2>&1 && exit {rung}'
        for rung, way in enumerate(LADDER)
    )
    + f"""
git apply --check --reverse "$W/patch.diff" >>"$L" 2>&1 && exit {_ALREADY_ON}
tail -c 3000 "$L"; exit {_DOES_NOT_APPLY}
"""
)


@dataclass(frozen=True)
class EvalLimits:
    timeout_s: float = 1800.0
    """For the eval script, as in the official harness; a row's own eval_timeout_s wins."""
    memory_bytes: int = 8 << 30
    cpus: float = 2.0
    pids: int = 4096
    nofile: int = 4096
    disk_bytes: int = 32 << 30
    log_bytes: int = 64 << 20
    """Head and tail of a longer log are kept; that is a finding."""


@dataclass(frozen=True)
class EvalRun:
    """`log` is what goes to the package. `applied` names the rung of the ladder, empty when the patch is not on."""

    log: str
    applied: str = ""
    why_not: str = ""
    """The end of what git and patch said, when the patch is not on."""
    exit_code: int = 0
    seconds: float = 0.0
    timed_out: bool = False
    ended: str = ""
    """How what ran ended the sandbox, so that there is no log."""
    lost_bytes: int = 0
    """Bytes missing from the log's middle."""
    strange_bytes: int = 0
    """Bytes that are no UTF-8, replaced in `log`."""
    watched: bool = False
    noted: Noted = field(default_factory=Noted, repr=False)
    """What the witness told; see envs.swe.guard.watch."""

    def save_log(self, path: Path) -> None:
        """As the package reads it."""
        # newline="": a carriage return in the output must not become another one.
        with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            file.write(self.log)


def spec(row: HarnessRow, limits: EvalLimits, network: Network = "none") -> SandboxSpec:
    box = SandboxLimits(
        memory_bytes=limits.memory_bytes,
        cpus=limits.cpus,
        pids=limits.pids,
        nofile=limits.nofile,
        disk_bytes=limits.disk_bytes,
        output_bytes=limits.log_bytes,
    )
    deadline = timeout_of(row, limits) + 3 * _APPLY_TIMEOUT_S
    return SandboxSpec(
        image=row.swe.image,
        workdir=row.swe.repo_dir,
        limits=box,
        deadline_s=deadline,
        network=network,
        labels={"task": row.instance_id},
    )


def timeout_of(row: HarnessRow, limits: EvalLimits) -> float:
    return row.swe.eval_timeout_s or limits.timeout_s


async def evaluate(sandbox: Sandbox, row: HarnessRow, script: str, patch: bytes, limits: EvalLimits) -> EvalRun:
    """`sandbox` is fresh, from `spec`. Raises SandboxError, EnvironmentFault."""
    if row.swe.files is not None or row.swe.bundle is not None:
        await provide(sandbox, row.swe)
    else:
        await require_writable(sandbox, row.swe)
    folder = f"/tmp/.driver-{secrets.token_hex(8)}"
    files = {"patch.diff": whole(patch), "eval.sh": script.encode("utf-8", "surrogateescape")}
    files["test.patch"] = whole(row.swe.test_patch)
    watch = None
    if can_watch_script(script):
        judged = dict.fromkeys(sorted(Judged(row.swe).files), "")
        watch = Watch(folder, row.swe.repo_dir, True, judged, ends=not starts_others(script))
        files |= watch.files
    await sandbox.put_tar(folder, pack_files(files))
    applied, expected = "nothing to apply", dict[str, str]()
    if patch:
        names = f"D={quote(row.swe.repo_dir)} W={folder} B={row.swe.base_commit}\n"
        asks = SCRIPT if watch and as_the_patch_makes_them(script) else ""
        put_on = await run_script(sandbox, names + asks + _APPLY, timeout_s=_APPLY_TIMEOUT_S)
        expected, said = taken_out(put_on.text)
        if put_on.exit_code == _DOES_NOT_APPLY:
            return EvalRun("", why_not=said.strip()[-2000:], exit_code=put_on.exit_code)
        ways = {**dict(enumerate(LADDER)), _ALREADY_ON: "already on"}
        if put_on.timed_out or put_on.exit_code not in ways:
            raise EnvironmentFault(f"{row.instance_id}: the patch could not be put on: {said.strip()[-1500:]}")
        applied = ways[put_on.exit_code]
    clean = " ".join(f"-u {name}" for name in BASE_ENV if name != "HOME")
    start, suffix = (f"{watch.prefix} ", f" {watch.suffix}") if watch else ("", "")
    command = f"env {clean} {start}bash {folder}/eval.sh 2>&1{suffix}"
    limit = timeout_of(row, limits)
    began = time.monotonic()
    try:
        result = await sandbox.exec(command, timeout_s=limit, cwd=row.swe.repo_dir)
    except BY_COMMANDS as error:
        return EvalRun("", applied=applied, exit_code=-1, seconds=time.monotonic() - began, ended=str(error))
    output, noted = await aside(len(result.output), watch.split, result.output) if watch else (result.output, Noted())
    if not result.timed_out:
        noted = dataclasses.replace(noted, expected=expected, altered=await look(sandbox, row.swe.repo_dir, whole=True))
    run = _read(dataclasses.replace(result, output=output), limit)
    return dataclasses.replace(run, applied=applied, watched=watch is not None, noted=noted)


def _read(result: ExecResult, limit: float) -> EvalRun:
    log = result.output.decode("utf-8", "replace")
    strange = log.count("\ufffd") - result.output.count("\ufffd".encode())
    if result.timed_out:
        log += f"\n\nTimeout error: {limit:g} seconds exceeded."
    return EvalRun(
        log,
        exit_code=result.exit_code,
        seconds=result.duration_s,
        timed_out=result.timed_out,
        lost_bytes=result.truncated,
        strange_bytes=max(0, strange),
    )
