"""docs/data.md shows how to read a log's tokens with other people's tools: what it shows runs."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path

import pytest

from agent.tokenizer import load_tokenizer
from data.log import TrajectoryLog
from data.trajectory import ExitReason, Outcome, Status, TrajectoryBuilder
from sao.paths import model_folder
from tests.data.trajectories import identity

DOCUMENT = Path(__file__).parents[2] / "docs" / "data.md"


@pytest.mark.parametrize("tool", ["pandas", "duckdb"])
def test_the_document_decodes(
    tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if importlib.util.find_spec(tool) is None:
        pytest.skip(f"NOT RUN: {tool} is not installed")
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    [block] = [each for each in blocks if f"import {tool}" in each]
    run, model = tmp_path / "runs" / "demo-001", model_folder("demo")
    run.mkdir(parents=True)
    (run / "tokenizer").mkdir()
    for file in model.glob("*token*"):
        shutil.copy(file, run / "tokenizer")
    tokenizer = load_tokenizer(model)
    prompt, action, observation = (tokenizer.encode_text(word) for word in ("total", "return", "cart"))
    builder = TrajectoryBuilder(prompt)
    builder.append_action(action, [-0.5] * len(action), [0] * len(action))
    builder.append_observation(observation)
    log = TrajectoryLog(run / "log")
    log.append(builder.finish(Outcome(Status.GRADED, ExitReason.SUBMITTED, 1.0, {}), identity(), {}, b""))
    log.seal()
    log.close()
    monkeypatch.chdir(tmp_path)
    exec(compile(block, str(DOCUMENT), "exec"), {})
    shown = capsys.readouterr().out
    for kind, word in (("prompt", "total"), ("action", "return"), ("observation", "cart")):
        assert re.search(rf"{kind}\W.*{word}", shown), shown
