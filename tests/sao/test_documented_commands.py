"""Every example of every `--help` and every command in README and documents: read by the parser that takes it, and run
here, small, in one prepared folder, or named with the reason why not."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from agent.engines.weights import load_model
from sao.assemble import copy_tokenizer
from sao.paths import DEMO_POLICY
from tests.sao.command import tried
from tests.sao.documented import ROOT, Shown, fault_of_sao, shown
from trainer.paths import TrainerPaths
from trainer.publish import Version, WeightFolder

SHOWN = shown()
OURS = [each for each in SHOWN if each.words[0] == "sao"]

SMALLER = {
    r"(rollout|train|serve)\b": "--dry-run",
    r"(sandbox gc|images prune)\b": "--dry-run",
    r"eval micro-swe\b": "--tasks 1 --split heldout --sandbox embedded",
    r"tasks validate\b": "--sandbox embedded --count 1",
    r"tasks pack\b": "--sandbox embedded",
}
"""What is put behind a command, so that it takes no minutes."""

ELSEWHERE = {
    r"(doctor|images|sandbox)\b": "looks at the whole machine: test_doctor.py, test_images.py, test_sandbox_command.py",
    r"setup\b": "starts and stops the machine's engine, makes its image: what CI begins and ends with",
    r"serve --connect\b": "needs a running server: tests/agent/test_vllm_real.py",
    r"import\b": "needs trajectory files of others: test_import.py",
    r"replay theirs\b": "follows an import: test_import.py",
    r"replay .*--(execute|train)\b": "runs every turn or step again: test_cli.py, test_train_sides.py",
    r"pretrain-value\b": "minutes of training: tests/trainer/test_value_pretrain.py",
    r"train --model runs/warm": "follows a fine-tuning: tests/trainer/test_sft_cli.py",
    r"sft\b": "minutes of training: tests/trainer/test_sft.py",
    r"eval (aime2025|beyondaime|imo-answerbench)\b": "needs a model that solves problems, and the hub's: "
    "test_eval_maths.py runs it on problems of its own",
    r"eval swebench\b": "needs images and rows of SWE-bench: test_eval_swebench.py runs it on a row of its own",
    r"eval tasks\b": "needs an endpoint or a model that is downloaded: test_eval_endpoint.py",
    r"(rollout|train) .*--config smollm2|train --config smollm2": "needs SmolLM2's weights",
    r".*\b(r2e-gym|dapo-math-17k|swe-smith|reasoning-gym)\b": "needs a set of the hub, or an extra",
    r".*engine\.kind=vllm": "needs vLLM's own environment: tests/agent/test_vllm_real.py",
    r".*--tasks (build|smith)/": "needs downloads: test_real_task.py",
    r"rollout .*--sandbox docker": "needs an engine",
    r"train .*maths\b": "needs a model that solves problems",
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which what the examples name is there: a run, a training run, a model, a repository, results."""
    place = tmp_path_factory.mktemp("examples")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.delenv("SAO_RUNS", raising=False)
        patch.setenv("HOME", str(place))
        code, said = tried("rollout", "--episodes", 4, "--sandbox", "embedded", "--plain")
        assert code == 0, said
        _training_run(place / "runs" / "demo-train-001")
        shutil.copytree(DEMO_POLICY, place / "my" / "model")
        for name in ("shop", "thing"):
            _repository(place / "src" / name)
        for name in ("problem.md", "issue.md"):
            (place / name).write_text("total() subtracts.\n")
        scores = json.dumps({"name": "a", "suite": "own", "scores": {"one": 1.0, "two": 0.0}})
        for name in ("runs/a/scores.json", "runs/b/scores.json", "a.run.json", "b.run.json"):
            (place / name).parent.mkdir(exist_ok=True)
            (place / name).write_text(scores)
        (place / "mine.jsonl").write_text('{"problem": "1 + 1", "answer": "2"}\n')
        yield place


def _training_run(run: Path) -> None:
    """As the end of `sao train` leaves it, with the shipped policy's weights as every version."""
    shutil.copytree(run.parent / "demo-001", run)
    model = load_model(DEMO_POLICY, torch.device("cpu"), torch.float32)
    model.config.max_position_embeddings = 8192  # an example exports it and shows it a real preset's prompt
    weights = WeightFolder(TrainerPaths(run).weights)
    weights.open_for_writing()
    for number in (118, 120):
        weights.publish(model, Version(number, "lineage"), {})
    copy_tokenizer(DEMO_POLICY, run / "tokenizer")
    shutil.copytree(DEMO_POLICY, run / "final")
    shutil.copytree(DEMO_POLICY, run.parent / "critic")


def _repository(folder: Path) -> None:
    """Tag v1.4 (v1.2) has the bug, and 3f2a9c1 the fix with its test."""

    def git(*words: str) -> None:
        me = ("-c", "user.name=me", "-c", "user.email=me@example.org")
        subprocess.run(["git", *me, *words], cwd=folder, check=True, capture_output=True)

    name = "cart" if folder.name == "shop" else "x"
    (folder / "tests").mkdir(parents=True)
    (folder / "tests" / "__init__.py").touch()
    (folder / "sums.py").write_text("def total(a, b):\n    return a - b\n")
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "bug")
    git("tag", "v1.4")
    git("tag", "v1.2")
    (folder / "sums.py").write_text("def total(a, b):\n    return a + b\n")
    (folder / "tests" / f"test_{name}.py").write_text(
        "import unittest\nfrom sums import total\n\n\nclass Test(unittest.TestCase):\n"
        "    def test_total(self):\n        self.assertEqual(total(1, 2), 3)\n"
    )
    git("add", "-A")
    git("commit", "-qm", "fix")
    git("tag", "3f2a9c1")


def _rest(each: Shown) -> str:
    return " ".join(each.words[1:])


def test_all_are_found() -> None:
    assert len(OURS) > 80
    assert {"README.md", "docs/training.md", "sao train --help"} <= {each.where for each in SHOWN}


def test_every_option_and_setting_exists() -> None:
    faults = [f"{each.where}: {each.line}: {fault}" for each in OURS if (fault := fault_of_sao(each.words))]
    assert faults == []
    for wrong in ("rollout --episode 3", "rollout --set rollout.episode=3", "tasks paint", "sft --nowhere"):
        assert fault_of_sao(["sao", *wrong.split()])


def test_every_target_of_make_exists_and_what_it_runs_too() -> None:
    makefile = (ROOT / "Makefile").read_text()
    # Where `make test ARGS=…` runs this, make hands its own arguments down.
    alone = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "ARGS"))}
    for each in SHOWN:
        if each.words[0] != "make":
            continue
        variables = [word.partition("=")[0] for word in each.words if "=" in word]
        assert all(re.search(rf"(?m)^{name} \?=", makefile) for name in variables), each
        command = ["make", "-n", *each.words[1:]]
        done = subprocess.run(command, cwd=ROOT, env=alone, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (each, done.stderr)
        for line in done.stdout.replace("\\\n", " ").splitlines():
            if line.startswith(".venv/bin/sao "):
                assert fault_of_sao(Shown(each.where, line).words) == "", (each, line)


def test_scripts_and_modules_exist() -> None:
    for each in SHOWN:
        head, *rest = each.words
        if head.startswith("scripts/"):
            assert (ROOT / head).is_file(), each
        elif head == "python" and rest[0] == "-m":
            place = ROOT / rest[1].replace(".", "/")
            assert rest[1] == "pytest" or place.is_dir() or place.with_suffix(".py").is_file(), each
        elif head == "python":
            assert (ROOT / rest[0]).is_file(), each


def test_every_other_one_runs(world: Path) -> None:
    done: set[str] = set()
    # A row is packed before it is validated and played, a model exported before it is scored.
    first = (r"tasks pack", r"export", r"tasks validate", "")
    order = sorted(OURS, key=lambda each: next(at for at, start in enumerate(first) if re.match(start, _rest(each))))
    for each in order:
        if _rest(each) in done or any(re.match(pattern, _rest(each)) for pattern in ELSEWHERE):
            continue
        done.add(_rest(each))
        more = next((more for pattern, more in SMALLER.items() if re.match(pattern, _rest(each))), "")
        words = [word.replace("~", str(world)) for word in each.words[1:]]
        if words[0] == "export":  # nothing is replaced
            shutil.rmtree(words[words.index("--out") + 1], ignore_errors=True)
        code, said = tried(*words, *more.split())
        assert code == 0, f"{each.where}: {each.line} {more}\n{said}"
    assert len(done) > 15


def test_every_reason_is_still_needed() -> None:
    assert [pattern for pattern in ELSEWHERE if not any(re.match(pattern, _rest(each)) for each in OURS)] == []
