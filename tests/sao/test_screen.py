"""Nothing that is printed acts on the operator's terminal."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from data.visible import visible
from sao import cli, cli_common
from sao.screen import Screen
from sao.view import RolloutView, Tally

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


@pytest.mark.parametrize(("encoding", "dash"), [("ascii", "-"), ("cp1252", "\u00b7")])
def test_a_terminal_of_another_encoding_gets_what_it_has(encoding: str, dash: str) -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding=encoding)
    screen = Screen(file=out, force_terminal=True, width=120)
    table = Table(title="pass 0.5 \u00b7 [0.1, 0.9]")
    table.add_row("\u2581\u2588 \u2192 \u2014 \u4e2d")
    screen.print(table)
    screen.print("a \u00b7 b")
    out.flush()
    said = raw.getvalue().decode(encoding)
    assert "\\u4e2d" in said
    assert "->" in said
    assert f"a {dash} b" in said


@pytest.mark.parametrize("make", [cli._console, cli_common.console])
def test_no_color_is_kept(make: Callable[[], Console], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    for value, coloured in (("1", False), (None, True)):
        if value is None:
            monkeypatch.delenv("NO_COLOR", raising=False)
        else:
            monkeypatch.setenv("NO_COLOR", value)
        screen = make()
        with screen.capture() as said:
            screen.print("[red]x[/red] 12")
        assert ("\x1b[3" in said.get()) is coloured


def test_names_that_look_like_markup_are_shown_as_they_are() -> None:
    name = "[bold]x[/red] \x1b]0;t\x07"
    out = io.StringIO()
    screen = Screen(file=out, force_terminal=True, color_system=None, width=200)
    view = RolloutView(screen, 2, Tally(), name)
    view.started(name, name)
    view.note(name)  # printed: nothing is redrawn yet
    screen.print(view.render())
    assert out.getvalue().count("[bold]x[/red] \\x1b]0;t\\x07") == 5
