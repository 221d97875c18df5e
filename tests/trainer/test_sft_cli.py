"""The options of `sao sft`: defaults by what is trained on, and refusals that name the option."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.sft_cli import CHAT_RATE, parse
from trainer.sft_config import SftConfig

PLACES = ["--model", "m", "--out", "o"]


def test_plain_options_are_the_defaults() -> None:
    """The shipped demo policy was made by commands that name few options: defaults must not move."""
    assert parse(PLACES) == SftConfig(model=Path("m"), out=Path("o"))


def test_chats_have_their_own_rate_and_steps() -> None:
    chosen = parse([*PLACES, "--chats", "smoltalk", "mine.jsonl"])
    assert chosen.chats == ("smoltalk", "mine.jsonl")
    assert chosen.optimizer.learning_rate == CHAT_RATE
    assert chosen.steps == 500
    assert parse([*PLACES, "--chats", "a", "--learning-rate", "1e-4", "--steps", "7"]).optimizer.learning_rate == 1e-4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--chats", "a", "--tasks", "micro-swe"], "--tasks is for demonstrations"),
        (["--chats", "a", "--preset", "demo"], "--preset is for demonstrations"),
        (["--chats", "a", "a"], "a set is named twice"),
        (["--batch", "0"], "batch: Input should be greater than or equal to 1"),
        (["--learning-rate", "-1"], "learning_rate: "),
        (["--out", "m"], "base model's folder"),
        (["--chats"], "expected at least one argument"),
    ],
)
def test_refusals(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse([*PLACES, *arguments])
    assert caught.value.code == 2
    assert words in capsys.readouterr().err


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(["--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert "usage: sao sft" in shown
    assert "--chats smoltalk" in shown
