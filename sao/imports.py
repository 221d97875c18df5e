"""`sao import`: trajectory files of other agents (data/foreign) become a run folder that `sao replay` shows.

Promises: every span decodes to the file's own text, byte for byte; turns of the model are `quoted`, not sampled, and
the trajectory says what its file lacks, so no training takes it; importing again adds only what is new, and a file
that cannot be read is named and skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from agent.renderers.plain import PlainRenderer
from agent.tokenizer import load_tokenizer
from data.foreign import ForeignError, ForeignRun, read_runs
from data.log import TrajectoryLog
from data.trajectory import ExitReason, Identity, Outcome, Sampling, Status, Trajectory, TrajectoryBuilder
from sao.assemble import copy_tokenizer
from sao.config import Config, TasksConfig
from sao.paths import UserError, model_folder
from sao.rundir import RunDir, open_run

if TYPE_CHECKING:
    from agent.tokenizer import Tokenizer

SUFFIXES = (".traj", ".traj.json", "output.jsonl", "trajectory.json")
"""Of the files that are taken from a folder; also gzipped."""
_UNKNOWN = -1.0


def import_files(paths: Sequence[Path], console: Console, *, run: str | None = None, model: str = "demo") -> int:
    """Exit code 0; 1 when a file could not be read (the others are imported)."""
    files = found_files(paths)
    _require_one(files)
    tokenizer_folder = model_folder(model)
    tokenizer = load_tokenizer(tokenizer_folder)
    folder = open_run(
        Config(name="imported", tasks=TasksConfig(name="imported")),
        run,
        origin={"tokenizer": tokenizer.fingerprint},
    )
    try:
        copy_tokenizer(tokenizer_folder, folder.tokenizer)
        return _import(files, folder, tokenizer, console)
    finally:
        folder.close()


def _require_one(files: Sequence[Path]) -> None:
    """Raises UserError where no file holds anything, so that no empty run is made."""
    failed = []
    for path in files:
        for foreign in runs_of(path):
            if not isinstance(foreign, ForeignError):
                return
            failed.append(str(foreign))
    more = f" … and {len(failed) - 5} more" if len(failed) > 5 else ""
    raise UserError(f"Nothing to import: {'; '.join(failed[:5]) or 'no run in any file'}{more}. Nothing was written.")


def _import(files: Sequence[Path], folder: RunDir, tokenizer: Tokenizer, console: Console) -> int:
    made: list[Trajectory] = []
    known, failed = 0, []
    with TrajectoryLog(folder.log).open() as log:
        ids = set(log.episode_ids())
        for path in track(files, "import", console=console, transient=True, disable=not console.is_terminal):
            for foreign in runs_of(path):
                if isinstance(foreign, ForeignError):
                    failed.append(str(foreign))
                elif episode_id(foreign) in ids:
                    known += 1
                else:
                    trajectory = imported(foreign, path.name, tokenizer, draw=len(ids))
                    log.append(trajectory)
                    ids.add(trajectory.identity.episode_id)
                    made.append(trajectory)
        if made:
            log.seal()
    folder.write_summary({"imported": len(ids), "trainable": 0})
    _report(made, folder, known, failed, console)
    return 1 if failed else 0


def runs_of(path: Path) -> Iterator[ForeignRun | ForeignError]:
    """The runs of a file; what cannot be read comes as its error."""
    try:
        yield from read_runs(path)
    except ForeignError as error:
        yield error


def found_files(paths: Iterable[Path]) -> list[Path]:
    """Files as given, and the trajectory files of folders. Raises UserError when there are none."""
    files: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            inside = sorted(one for one in path.rglob("*") if one.name.removesuffix(".gz").endswith(SUFFIXES))
            if not inside:
                raise UserError(f"{path} holds no trajectory file (*{', *'.join(SUFFIXES)}).")
            files.update(dict.fromkeys(inside))
        elif path.is_file():
            files[path] = None
        else:
            raise UserError(f"There is no file or folder {path}.")
    return list(files)


def episode_id(foreign: ForeignRun) -> str:
    """The same for the same file, wherever it lies."""
    return f"imported-{foreign.sha256[:16]}-0"


def imported(foreign: ForeignRun, name: str, tokenizer: Tokenizer, draw: int) -> Trajectory:
    """Text as ids, for looking only: no one sampled these ids."""
    first = next(number for number, message in enumerate(foreign.messages) if message.role == "assistant")
    plain = PlainRenderer(tokenizer)
    prompt = [{"role": message.role, "content": message.text} for message in foreign.messages[:first]]
    builder = TrajectoryBuilder(plain.prompt_ids(prompt, ()))
    for message in foreign.messages[first:]:
        ids = plain.text_ids(message.text)
        if message.role == "assistant":
            builder.append_quoted(ids)
        else:
            builder.append_observation(ids)
    detail = {
        "harness": foreign.harness,
        "exit_status": foreign.exit_status or "unknown",
        "model": foreign.model or "unknown",
        "file": name,
        "sha256": foreign.sha256,
        "benchmark": foreign.is_benchmark,
        "lacks": list(foreign.lacks),
        **({"stats": dict(foreign.stats)} if foreign.stats else {}),
    }
    return builder.finish(
        Outcome(Status.IMPORTED, ExitReason.IMPORTED, grade=detail),
        Identity(
            episode_id=episode_id(foreign),
            task_id=foreign.instance,
            draw=draw,
            seed=0,
            tokenizer=tokenizer.fingerprint,
            sampling=Sampling(_UNKNOWN if foreign.temperature is None else foreign.temperature, _UNKNOWN),
            lineage=f"imported:{foreign.model or 'unknown'}",
            agent=foreign.harness,
        ),
        patch=foreign.submission.encode("utf-8", "backslashreplace"),
    )


def _report(made: Sequence[Trajectory], folder: RunDir, known: int, failed: Sequence[str], console: Console) -> None:
    table = Table("task", "harness", "turns", "tokens", "exit", "benchmark", box=None)
    for one in made:
        grade = one.outcome.grade
        table.add_row(
            escape(one.identity.task_id),
            escape(str(grade["harness"])),
            str(one.turns),
            str(len(one)),
            escape(str(grade["exit_status"])),
            "yes" if grade["benchmark"] else "no",
        )
    table.columns[0].overflow = "fold"
    if made:
        console.print(table)
    for text in failed:
        console.print(f"[red]not imported:[/red] {escape(text)}")
    already = f", {known} were there already" if known else ""
    console.print(
        f"{len(made)} imported{already}, {len(failed)} not readable: {folder.path}. They can be looked at, not trained "
        "on: their files have no log-probabilities and no ids as sampled."
    )
    if made and console.is_terminal:
        console.print(f"[dim]Next: sao replay {escape(folder.path.name)} --list · --episode 0[/dim]")
