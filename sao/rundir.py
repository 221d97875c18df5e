"""The run folder: runs/<name>-001/ with config.toml, log/, journal, tokenizer/, summary.json.

One process writes a run folder at a time (a lock that dies with its holder). A run without summary.json is
unfinished; starting the same plan again continues it, so a killed run loses nothing that was finished.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from data import atomic
from data.locks import hold
from data.reading import InputError, is_file, read_json, read_toml, shown
from sao.config import Config, validate
from sao.paths import UserError, runs_folder
from sao.run_kinds import LOGGED, RunKind


@dataclass
class RunDir:
    path: Path
    resumed: bool
    _lock: IO[str]

    @property
    def log(self) -> Path:
        return self.path / "log"

    @property
    def journal(self) -> Path:
        return self.path / "journal.jsonl"

    @property
    def tokenizer(self) -> Path:
        return self.path / "tokenizer"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        write_atomically(self.summary, json.dumps(summary, indent=2) + "\n")

    def close(self) -> None:
        self._lock.close()


def write_atomically(path: Path, text: str) -> None:
    """Readers see the old file or the new one, also after a power cut."""
    atomic.write_atomically(path, text.encode())


def open_run(
    config: Config, run: str | None = None, *, fresh: bool = False, origin: Mapping[str, str] | None = None
) -> RunDir:
    """Continue the newest unfinished run of the same plan, else make the next numbered folder.

    `run` names a folder under runs/ (or a path) to make or continue; a folder of another plan is refused. `origin`
    (weights, tokenizer) belongs to the plan: a run goes on only with the weights and ids that it began with."""
    if run is not None:
        path = Path(run) if "/" in run else runs_folder() / run
        opened = _try_open(path, config, origin)
        if opened is None:
            raise UserError(f"{path} is in use by another process. Wait for it, or choose another name with --run.")
        return opened
    numbered = _numbered(config.name)
    if numbered and not fresh:
        newest = numbered[-1]
        if not (newest / "summary.json").exists() and _same_plan(newest, config, origin):
            opened = _try_open(newest, config, origin)
            if opened is not None:
                return opened
    number = int(numbered[-1].name.rsplit("-", 1)[1]) + 1 if numbered else 1
    while True:  # another process may take the same number: making the folder decides
        path = runs_folder() / f"{config.name}-{number:03d}"
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            number += 1
            continue
        opened = _try_open(path, config, origin)
        if opened is not None:
            return opened
        number += 1


def unfinished(stem: str, run: str | None, *, fresh: bool) -> Path | None:
    """The folder that `open_run` would go on with, if its plan is the same; None where it would make a new one."""
    numbered = [] if fresh or run is not None else _numbered(stem)
    path = numbered[-1] if numbered else None
    if run is not None:
        path = Path(run) if "/" in run else runs_folder() / run
    if path is None or not is_file(path / "config.toml") or (path / "summary.json").exists():
        return None
    return path


def find_run(name: str, kind: RunKind = LOGGED) -> Path:
    """A run folder by path, by name under runs/, or `latest`: the newest of the kind. Raises UserError."""
    if name == "latest":
        try:
            found = [path for path in runs_folder().glob("*") if is_file(path / "config.toml") and kind.holds(path)]
            if found:
                return max(found, key=lambda path: (path / "config.toml").stat().st_mtime)
        except OSError as error:
            raise UserError(f"{runs_folder()}: {error.strerror}. Name the run by its path.") from error
        raise UserError(f"No {kind.what} under {shown(runs_folder())}: `{kind.made_by}` makes one.")
    for candidate in (runs_folder() / name, Path(name)):
        if is_file(candidate / "config.toml"):
            return candidate
    raise UserError(
        f"No run {shown(name)!r}: neither {shown(runs_folder() / name)} nor {shown(name)} holds a config.toml."
    )


def shown_name(path: Path) -> str:
    """What `find_run` finds this folder by: its name under runs/, else its path."""
    path = path.resolve()
    try:
        return str(path.relative_to(runs_folder().resolve()))
    except ValueError:
        return str(path)


def read_config(path: Path) -> Config:
    """The resolved configuration that a run folder was made with."""
    file = path / "config.toml"
    try:
        values = read_toml(file)
    except InputError as error:
        raise UserError(f"{error}. The log beside it is untouched.") from error
    return validate(Config, values, str(file))


def _numbered(name: str) -> list[Path]:
    pattern = re.compile(re.escape(name) + r"-\d{3,}$")
    found = [path for path in runs_folder().glob(f"{name}-*") if path.is_dir() and pattern.fullmatch(path.name)]
    return sorted(found, key=lambda path: int(path.name.rsplit("-", 1)[1]))


def _same_plan(path: Path, config: Config, origin: Mapping[str, str] | None) -> bool:
    try:
        return read_config(path).plan_hash() == config.plan_hash() and _origin(path) in (None, origin)
    except UserError:
        return False


def _origin(path: Path) -> Mapping[str, str] | None:
    file = path / "origin.json"
    try:
        return read_json(file) if file.exists() else None
    except InputError as error:
        raise UserError(f"{error}. The log beside it is untouched.") from error


def _try_open(path: Path, config: Config, origin: Mapping[str, str] | None) -> RunDir | None:
    """Lock the folder; None when another process holds it. Refuses a folder of another plan."""
    lock = hold(path)
    if lock is None:
        return None
    try:
        resumed = (path / "config.toml").exists()
        if resumed:
            _refuse_other_plan(path, config)
            _refuse_other_origin(path, origin)
        elif (path / "log").exists():
            raise UserError(f"{path} has a log but no config.toml: not a run folder of ours. Choose another --run.")
        write_atomically(path / "config.toml", config.to_toml())
        if origin is not None:
            write_atomically(path / "origin.json", json.dumps(origin, indent=2) + "\n")
    except BaseException:
        lock.close()
        raise
    return RunDir(path, resumed, lock)


def _refuse_other_plan(path: Path, config: Config) -> None:
    old = read_config(path)
    if old.plan_hash() == config.plan_hash():
        return
    before, now = old.model_dump(mode="json"), config.model_dump(mode="json")
    differing = [
        f"{section}.{key} was {before[section][key]!r}, is {value!r}"
        for section, values in now.items()
        if isinstance(values, dict)
        for key, value in values.items()
        if before[section][key] != value
    ]
    raise UserError(
        f"{path} was made with another plan ({'; '.join(differing)}). Use the same settings to continue it, "
        "or another --run name (or --fresh) for a new run. Nothing was changed."
    )


def _refuse_other_origin(path: Path, origin: Mapping[str, str] | None) -> None:
    before = _origin(path)
    if origin is None or before is None or before == origin:
        return
    changed = [key for key in origin if before.get(key) != origin[key]]
    differing = "; ".join(f"{key} was {before.get(key)}, is {origin[key]}" for key in changed)
    raise UserError(
        f"{path} was begun with other weights, another tokenizer or other training settings ({differing}). Put the old "
        "ones back to continue it, or use another --run name (or --fresh). Nothing was changed."
    )
