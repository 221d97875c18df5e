"""`sao import`: text comes back byte for byte, nothing is trainable, what is there is not imported twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent.tokenizer import load_tokenizer
from data.foreign import read_foreign
from data.log import TrajectoryLog
from data.quoted import quoted_refusal
from data.trajectory import SpanKind, Status, TrajectoryError
from sao.config import load_config
from sao.paths import UserError
from sao.rundir import open_run
from tests.data.test_foreign import MESSAGES, MINI, SWE
from tests.sao.command import sao as command
from tests.shared_data import need_shared


def sao(*words: object, code: int = 0) -> str:
    return command(*words, "--plain", code=code)


def files(folder: Path) -> Path:
    folder.mkdir()
    (folder / "one.traj.json").write_text(json.dumps(MINI))
    (folder / "two.traj").write_text(json.dumps(SWE))
    (folder / "three.traj.json").write_text(json.dumps([*MESSAGES, {"role": "assistant", "content": ""}]))
    (folder / "notes.txt").write_text("not a trajectory")
    return folder


def test_import_list_show(runs, tmp_path) -> None:
    folder = files(tmp_path / "theirs")
    assert "3 imported, 0 not readable" in sao("import", folder)
    assert "django__django-11138" in sao("replay", "latest", "--list")
    shown = sao("replay", "latest", "--episode", "0")
    assert "turn 0 quoted" in shown
    assert "written by another system's model, no log-probabilities" in shown
    assert "imported · imported · reward none" in shown
    assert "lacks: ['log-probabilities'" in shown
    assert "cannot be played again" in sao("replay", "latest", "--execute", code=2)
    again = sao("import", folder, "--run", "imported-001")
    assert "0 imported, 3 were there already" in again


def test_texts_come_back_and_what_lacks_is_said(runs, tmp_path) -> None:
    sao("import", files(tmp_path / "theirs"))
    made = {t.identity.task_id: t for t in TrajectoryLog(runs / "imported-001" / "log").read()}
    decode = load_tokenizer(runs / "imported-001" / "tokenizer").decode
    one = made["django__django-11138"]
    texts = [(span.kind, decode(one.tokens[span.start : span.end].tolist())) for span in one.spans]
    assert texts == [
        (SpanKind.PROMPT, "[system]\nYou fix bugs.\n\n[user]\ntotal() is wrong."),
        (SpanKind.QUOTED, MESSAGES[2]["content"]),
        (SpanKind.OBSERVATION, MESSAGES[3]["content"]),
    ]
    assert (one.turns, one.oldest_version, one.patch) == (1, None, b"diff --git a b\r\n")
    assert not one.action_mask.any()
    grade = one.outcome.grade
    assert (grade["benchmark"], grade["exit_status"], grade["model"]) == (True, "Submitted", "m")
    assert (one.identity.agent, one.identity.lineage) == ("mini-swe-agent 1.15.0", "imported:m")
    assert made["three"].outcome.grade["benchmark"] is False
    assert made["three"].identity.sampling.temperature == -1
    assert decode(made["three"].tokens[made["three"].spans[-1].start :].tolist()) == "(empty)"


def test_no_training_takes_an_imported_trajectory(runs, tmp_path) -> None:
    from trainer.packing import UntrainableError, action_axis, untrainable_reason
    from trainer.replay import ReplayError, replay_offpolicy
    from trainer.value_pretrain import ValueDataError, usable

    sao("import", files(tmp_path / "theirs"))
    made = list(TrajectoryLog(runs / "imported-001" / "log").read())
    for one in made:
        assert one.outcome.status is Status.IMPORTED
        reason = untrainable_reason(one)
        assert reason is not None
        assert "no log-probabilities" in reason
        assert ("benchmark data, which no training may see" in reason) == one.outcome.grade["benchmark"]
        assert quoted_refusal(one) in reason
        with pytest.raises(UntrainableError, match="imported"):
            action_axis([one])
        with pytest.raises(ValueDataError, match="imported from"):
            usable([one])
        with pytest.raises(ReplayError, match="imported from"):
            replay_offpolicy([one], learner=None, batch=1, limit=1.0)  # type: ignore[arg-type]


def test_no_trajectory_holds_quoted_turns_beside_sampled_ones(runs, tmp_path) -> None:
    from data.trajectory import ExitReason, Outcome, TrajectoryBuilder

    sao("import", files(tmp_path / "theirs"))
    one = next(TrajectoryLog(runs / "imported-001" / "log").read())
    builder = TrajectoryBuilder([1])
    builder.append_action([2], [-0.5], [0])
    with pytest.raises(TrajectoryError, match="imported trajectories have no action"):
        builder.finish(one.outcome, one.identity)
    builder.append_quoted([3])
    with pytest.raises(TrajectoryError, match="an action beside what was written elsewhere"):
        builder.finish(Outcome(Status.CUT, ExitReason.SYSTEM_CUT), one.identity)
    with pytest.raises(TrajectoryError, match="does not go with"):
        Outcome(Status.GRADED, ExitReason.IMPORTED, 1.0)


def test_broken_files_are_named_and_the_others_imported(runs, tmp_path) -> None:
    folder = files(tmp_path / "theirs")
    (folder / "broken.traj").write_text("{")
    told = sao("import", folder, code=1)
    assert "3 imported, 1 not readable" in told
    assert "broken.traj" in told.replace("\n", "")


def test_refusals(runs, tmp_path) -> None:
    assert "no file or folder" in sao("import", tmp_path / "nowhere", code=2)
    (tmp_path / "empty").mkdir()
    assert "holds no trajectory file" in sao("import", tmp_path / "empty", code=2)
    sao("import", files(tmp_path / "theirs"), "--run", "theirs")
    with pytest.raises(UserError, match="another plan"):
        open_run(load_config("demo"), "theirs")


def test_a_real_file_with_its_huge_observation(runs) -> None:
    path = need_shared("trajectories", "psf__requests-1142.traj.json.gz")
    assert "1 imported" in sao("import", path)
    (one,) = TrajectoryLog(runs / "imported-001" / "log").read()
    decode = load_tokenizer(runs / "imported-001" / "tokenizer").decode
    foreign = read_foreign(path)
    texts = [decode(one.tokens[span.start : span.end].tolist()) for span in one.spans[1:]]
    assert texts == [message.text for message in foreign.messages[2:]]
