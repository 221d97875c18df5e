"""Nothing that is printed acts on the operator's terminal."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from data.visible import visible
from sao import cli, cli_common
from sao.screen import Screen

HOSTILE = "a\x1b]0;title\x07\x1b[2J\x1b]52;c;eA==\x07\rb\x08\x9b31m\u202ec\u2066\u200bd\ud800"
ACTS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def test_by_hand() -> None:
    assert visible("\x1b[31mred\r\n\tx\u202e\ud800") == "\\x1b[31mred\\r\n\tx\\u202e\\ud800"
    assert visible("é 🐍 👩\u200d💻 العربية \\") == "é 🐍 👩\u200d💻 العربية \\"


@given(st.text(alphabet=st.characters()))
def test_any_text(text: str) -> None:
    assert not ACTS.search(visible(text))
    assert visible(visible(text)) == visible(text)


@pytest.mark.parametrize("terminal", [True, False])
def test_whatever_way_it_is_printed(terminal: bool) -> None:
    out = io.StringIO()
    screen = Screen(file=out, force_terminal=terminal, color_system=None, width=200)
    table = Table(title=HOSTILE)
    table.add_row(HOSTILE, Text(HOSTILE.replace("\ud800", "")))
    for shown in (HOSTILE, table, Panel(HOSTILE)):
        screen.print(shown, markup=False)
    assert "\\x1b]0;title" in out.getvalue()
    assert not ACTS.search(out.getvalue())


def test_colours_stay() -> None:
    out = io.StringIO()
    Screen(file=out, force_terminal=True, color_system="standard").print("[red]x[/red]")
    assert "\x1b[31mx" in out.getvalue()


def test_every_command_prints_to_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(cli._console(), Screen)
    assert isinstance(cli_common.console(), Screen)
    name = str(tmp_path / "no\x1b]0;x\x07[red]\u202e.toml")
    monkeypatch.setattr(sys, "argv", ["sao", "rollout", "--config", name])
    with pytest.raises(SystemExit):
        cli.main()
    said = "".join(capsys.readouterr())
    assert "\\x1b]0;x" in said.replace("\n", "")
    assert not ACTS.search(said)
