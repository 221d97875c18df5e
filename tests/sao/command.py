"""The `sao` command as tests call it: in this process, with everything it said."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sao.cli import app
from sao.errors import exit_code_and_text


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where runs go in a test; the command works from anywhere."""
    monkeypatch.setenv("SAO_RUNS", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def tried(*words: object) -> tuple[int, str]:
    """Exit code and output; of a refusal its code and its paragraph. A bug's exception is raised."""
    done = CliRunner().invoke(app, list(map(str, words)))
    if done.exception is None or isinstance(done.exception, SystemExit):
        return done.exit_code, done.output
    known = exit_code_and_text(done.exception)
    if known is None:
        raise done.exception
    return known


def sao(*words: object, code: int = 0) -> str:
    """What it said; it must end with `code`."""
    found, said = tried(*words)
    assert found == code, said
    return said


def whole_sao(*words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The entry point itself: exit code and all that was printed, lines joined (terminals break them anywhere)."""
    from sao.cli import main

    before, sys.argv = sys.argv, ["sao", *words]
    try:
        main()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        sys.argv = before
    said = capsys.readouterr()
    return code, " ".join((said.out + said.err).split())
