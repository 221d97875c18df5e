"""`sao export`: any version of a run that is still there as a model folder of its own, with the run's tokenizer.

Promises: weights are copied from a version whose hashes were checked, its shapes and names as a checkpoint has them;
the folder is there whole or not at all; nothing that is there is replaced.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from sao.assemble import KEPT_FILES, TOKENIZER_FILES
from sao.paths import UserError, model_folder
from sao.rundir import read_config, shown_name
from trainer.export import export_model
from trainer.folders import FolderError
from trainer.paths import TrainerPaths
from trainer.publish import Version, WeightFolder

FINAL = "final"
"""The trained model with its tokenizer, in the run folder."""


def export_version(run: Path, target: Path, beside: Path, version: Version | None = None) -> Version:
    """Write `version` (None: the newest) to `target`, replacing it; `beside`: the folder with tokenizer and generation
    settings. Raises FolderError."""
    weights = WeightFolder(TrainerPaths(run).weights)
    chosen = version or weights.newest()
    if chosen is None:
        raise FolderError(f"{weights.directory} holds no version: the trainer never started")
    with weights.fetch(chosen) as folder:
        export_model(folder, target, [beside / name for name in KEPT_FILES])
    return chosen


def export_final(run: Path, model: Path) -> Path:
    """The newest weights beside the files of `model`: a folder that any engine loads. Made again each time."""
    export_version(run, run / FINAL, model)
    return run / FINAL


def export(run: Path, out: Path, console: Console, number: int | None = None) -> None:
    """Raises UserError, FolderError."""
    weights = WeightFolder(TrainerPaths(run).weights)
    numbers = weights.numbers()
    kept = ", ".join(map(str, numbers)) or "none"
    if not numbers:
        raise UserError(f"{run} has no versions of weights: only runs of `sao train` have them.")
    if number is not None and number not in numbers:
        raise UserError(
            f"{run} has no version {number} any more; it has: {kept} (train.keep_weights newest ones are kept)."
        )
    if out.exists():
        raise UserError(f"{out} exists: an export replaces nothing. Choose another folder, or remove it.")
    chosen = export_version(run, out, _beside(run), weights.version(number) if number is not None else None)
    console.print(f"{out}: version {chosen.number} of {shown_name(run)} with its tokenizer", highlight=False)
    console.print(f"score it: sao eval micro-swe --model {out}", highlight=False)


def _beside(run: Path) -> Path:
    """The run's own tokenizer; where it kept none, that of the model it began with."""
    kept = run / "tokenizer"
    if (kept / TOKENIZER_FILES[0]).is_file():
        return kept
    return model_folder(read_config(run).model.path)
