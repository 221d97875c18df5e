"""Conversations become training examples: the ids of an episode, the assistant's tokens alone, nothing lost unsaid."""

from __future__ import annotations

import asyncio
import functools
import json
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.demo_model import write_start
from agent.engines.scripted import ScriptedPolicy
from agent.presets import load_preset
from agent.renderers.template import PROBE_TOOL, RendererRefused
from agent.token_dialogue import TokenDialogue
from data.contamination import EvaluationTask
from data.task import TaskError
from data.trajectory import ExitReason, Identity, Outcome, Status
from envs.environment import ToolCall
from tests.agent.families import any_renderer as made
from tests.agent.families import every
from trainer.chats import Counts, prepare_chats, read_chats, write_chat
from trainer.config import OptimizerConfig
from trainer.demonstrations import Demonstration
from trainer.folders import FolderError, verify
from trainer.optim import TrainingSetupError, clipped_step
from trainer.sft import FORMAT, run_sft
from trainer.sft_config import SftConfig

any_renderer = functools.cache(made)
QUIET = settings(deadline=None, max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
# Every family but the one whose template does not follow user messages by appending.
FOLLOWED = [one for one in every() if one.id != "qwen3.5"]
PIECES = ["<|im_end|>", "<|eot_id|>", "<|return|>", "<｜Assistant｜>", "\n", "é", "<tool_call>", "{"]
TEXT = st.lists(st.sampled_from(PIECES) | st.text(min_size=1, max_size=6), min_size=1, max_size=4).map("".join)
TURNS = st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=3)


def talk(*pairs: tuple[str, str], system: str = "") -> list[dict[str, str]]:
    messages = [{"role": "system", "content": system}] if system else []
    for asked, answered in pairs:
        messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
    return messages


@pytest.mark.parametrize("name", FOLLOWED)
def test_a_chat_has_the_ids_of_a_dialogue_with_its_turns(name: str) -> None:
    """The same prompt, turns and user messages, appended by what the episode loop speaks through."""
    renderer = any_renderer(name)
    preset = load_preset("mini")  # its results come as plain messages of the user

    @given(TURNS, st.sampled_from(["", "Be brief."]))
    @QUIET
    def check(pairs: list[tuple[str, str]], system: str) -> None:
        messages = talk(*pairs, system=system)
        written = write_chat(renderer, messages)
        edges = np.flatnonzero(np.diff(np.concatenate([[0], written.action.astype(int), [0]])))
        turns = [written.tokens[a:b].tolist() for a, b in zip(edges[::2], edges[1::2], strict=True)]
        assert len(turns) == len(pairs)

        async def play() -> list[int]:
            dialogue = TokenDialogue(ScriptedPolicy(turns), renderer, preset, "e0")
            dialogue.begin(messages[: 2 if system else 1], [], listed=False)
            for number in range(len(pairs)):
                await dialogue.generate(10**6, 0)
                if number + 1 < len(pairs):
                    dialogue.observe([pairs[number + 1][0]], [None], 10**6)
            who = Identity("e0", "t", 0, 0, renderer.tokenizer_fingerprint)
            trajectory = dialogue.finish(Outcome(Status.GRADED, ExitReason.SUBMITTED, 0.0), who, {}, b"")
            assert trajectory is not None
            assert trajectory.action_mask.tolist() == written.action.tolist()
            return trajectory.tokens.tolist()

        assert asyncio.run(play()) == written.tokens.tolist()
        # A turn ends once, and says what the assistant said.
        for turn, (_, answered) in zip(turns, pairs, strict=True):
            assert turn[-1] in renderer.stop_ids
            assert not set(turn[:-1]) & set(renderer.stop_ids)
            assert answered in renderer.tokenizer.decode(turn)

    check()


@pytest.mark.parametrize("name", ["qwen3-coder", "llama3.1", "llama3", "deepseek-v3", "smollm2"])
def test_a_chat_has_the_ids_of_the_official_template(name: str) -> None:
    """Of the whole conversation. Not Qwen3's: it puts an empty thought into the last turn only."""
    renderer = any_renderer(name)
    messages = talk(("What is 6 x 7?", "It is 42."), ("And 7 x 7?", "49, é 🐍."), system="You count.")
    whole = renderer.tokenizer.encode_marked(renderer.template_text(messages, generation=False))
    written = write_chat(renderer, messages)
    assert whole[: len(written)] == written.tokens.tolist()
    assert renderer.tokenizer.decode(whole[len(written) :]).strip() == ""


def test_learned_are_the_answers_and_their_ends() -> None:
    renderer = any_renderer("smollm2")
    one = write_chat(renderer, talk(("a?", "b."), ("c?", "d."), system="s"))
    assert renderer.tokenizer.decode(one.tokens[one.action].tolist()) == "b.<|im_end|>d.<|im_end|>"
    assert renderer.tokenizer.decode(one.tokens[~one.action].tolist()).startswith("<|im_start|>system\ns<|im_end|>")
    assert not one.free.any()


def test_messages_as_the_field_writes_them(tmp_path: Path) -> None:
    """JSON text, the developer's role, parts, and turns that are seen but not learned."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "?"}]
    chats = [
        json.dumps([{"role": "developer", "content": "s"}, {"role": "user", "content": parts}, said("b.", weight=0)]),
        [*talk(("a?", "b."))[:1], said("b.", train=False), {"role": "user", "content": "c?"}, said("d.", loss=True)],
        [*talk(("a?", "b."))[:1], said("b.", weight=1, train=None)],
    ]
    file = tmp_path / "chats.jsonl"
    file.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    renderer = any_renderer("smollm2")
    read = read_chats([str(file)], "train", None)
    assert [(message["role"], message["content"]) for message in read[0]] == [
        ("system", "s"),
        ("user", "a?"),
        ("assistant", "b."),
    ]
    written = [write_chat(renderer, chat) for chat in read]
    learned = [renderer.tokenizer.decode(one.tokens[one.action].tolist()) for one in written]
    assert learned == ["", "d.<|im_end|>", "b.<|im_end|>"]
    plain = write_chat(renderer, talk(("a?", "b."), ("c?", "d.")))
    assert written[1].tokens.tolist() == plain.tokens.tolist()


def said(content: object, **more: object) -> dict[str, object]:
    return {"role": "assistant", "content": content, **more}


def called(name: str, arguments: object = "{}", words: object = None, id: str = "") -> dict[str, object]:
    return said(words, tool_calls=[{"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}])


def result(content: str, **more: object) -> dict[str, object]:
    return {"role": "tool", "content": content, **more}


TOOLS = [PROBE_TOOL, {"name": "submit", "description": "End it.", "parameters": {"type": "object", "properties": {}}}]
VIEW = {"id": "b", "type": "function", "function": {"name": "view", "arguments": {"path": "b.py"}}}
TRACE = [
    {"role": "developer", "content": "You fix bugs."},
    {"role": "user", "content": "It is broken."},
    said(None, tool_calls=[{"id": "a", "function": {"name": "view", "arguments": '{"path": "a.py"}'}}, VIEW]),
    result("text of b", tool_call_id="b"),
    result("text of a", tool_call_id="a"),
    called("view", {"path": "c.py"}, "I look again.", id="c") | {"weight": 0},
    result("text of c", tool_call_id="c"),
    said("It was c.py."),
    {"role": "user", "content": "Thanks. And d?"},
    called("submit", "", id="d") | {"reasoning_content": "All is done."},
    result("ended", tool_call_id="d"),
]


@pytest.mark.parametrize("name", FOLLOWED)
def test_a_trace_with_calls_has_the_ids_of_an_episode(name: str, tmp_path: Path) -> None:
    """Null contents, arguments as text and as an object, results in another order, tools in the prompt."""
    renderer = any_renderer(name)
    if renderer.calls_a_turn == 1:
        trace = [*TRACE[:2], TRACE[2] | {"tool_calls": [VIEW]}, TRACE[3], *TRACE[5:]]
    else:
        trace = TRACE
    file = tmp_path / "traces.jsonl"
    switched_on = [{key: value for key, value in one.items() if key != "weight"} for one in trace]
    rows = [{"messages": json.dumps(trace), "tools": json.dumps(TOOLS)}, {"messages": switched_on, "tools": TOOLS}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    part, chat = read_chats([str(file)], "train", None)
    assert chat[-1]["role"] == "assistant"  # what follows the last call teaches nothing
    written = write_chat(renderer, chat)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], written.action.astype(int), [0]])))
    turns = [written.tokens[a:b].tolist() for a, b in zip(edges[::2], edges[1::2], strict=True)]
    spoken = [number for number, one in enumerate(chat) if one["role"] == "assistant"]
    assert len(turns) == len(spoken) == 4

    async def play() -> list[int]:
        dialogue = TokenDialogue(ScriptedPolicy(turns), renderer, load_preset("default"), "e0")
        dialogue.begin(chat[:2], chat.tools, listed=True)
        for at, end in zip(spoken, [*spoken[1:], None], strict=True):
            await dialogue.generate(10**6, 0)
            wanted = tuple(ToolCall(one["name"], one["arguments"]) for one in chat[at].get("calls", ()))
            assert dialogue.parse(cut=False) == wanted or not wanted
            heard = chat[at + 1 : end] if end else []
            if heard and heard[-1]["role"] == "user":  # no episode has this: as a chat of text does
                dialogue.builder.append_observation(
                    renderer.message_ids(heard[0]["content"], turns[spoken.index(at)][-1])
                )
            elif heard:
                dialogue.observe([one["content"] for one in heard], [one.get("name") for one in heard], 10**6)
        return dialogue.builder.tokens

    assert list(asyncio.run(play())) == written.tokens.tolist()
    decoded = renderer.tokenizer.decode(written.tokens.tolist())
    if renderer.calls_a_turn != 1:
        assert decoded.index("text of a") < decoded.index("text of b")
    assert "All is done." in renderer.tokenizer.decode(turns[-1])
    switched = write_chat(renderer, part)
    assert switched.tokens.tolist() == written.tokens.tolist()
    learned = renderer.tokenizer.decode(switched.tokens[switched.action].tolist())
    assert "I look again." not in learned
    assert "It was c.py." in learned


def test_calls_that_a_format_cannot_carry_are_refused_by_the_conversation(tmp_path: Path) -> None:
    renderer = any_renderer("qwen3")
    fine, forged = (
        talk(("a?", "b.")),
        [*talk(("a?", "b."))[:1], called("view", {"path": "<|im_end|>"}), result("c"), said("d")],
    )
    with pytest.raises(TaskError, match=r"conversation 2: '<\|im_end\|>' in a written call"):
        prepare_chats(renderer, [fine, one_chat(tmp_path, forged)], max_length=400, measure=1, seed=0)
    tools = [{"name": "view", "description": "<|im_end|>"}]
    with pytest.raises(TaskError, match=r"in the definition of a tool"):
        prepare_chats(renderer, [one_chat(tmp_path, fine, tools)], max_length=400, measure=1, seed=0)


def one_chat(folder: Path, messages: object, tools: object = None) -> list:
    file = folder / "one.jsonl"
    file.write_text(json.dumps({"messages": messages, "tools": tools}) + "\n")
    return read_chats([str(file)], "train", None)[0]


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ("[{", "no JSON"),
        ([{"role": "user", "content": "a"}, said("b", weight=0.5)], "row 1: message 1 has weight 0.5"),
        ([{"role": "user", "content": "a"}, said("b", weight=0, train=True)], "on and off at once"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}, said("b")], "kind 'image_url'"),
        ([{"role": "user", "content": "a"}, said(None, tool_calls=[{"id": "1"}])], "message 1, call 1 has no function"),
        (
            [{"role": "user", "content": "a"}, called("view", "[1]")],
            r"\(view\): its arguments are no JSON object",
        ),
        (
            [{"role": "user", "content": "a"}, called("view", "{"), said("b")],
            r"\(view\): its arguments are no JSON",
        ),
        ([{"role": "user", "content": "a"}, called("view"), said("b")], "makes 1 calls, and 0"),
        ([{"role": "user", "content": "a"}, said("b"), result("c")], "message 1 is followed by a tool's result"),
        (
            [{"role": "user", "content": "a"}, called("view"), result("c"), result("d"), said("e")],
            "makes 1 calls, and 2",
        ),
        (
            [{"role": "user", "content": "a"}, called("view", id="x"), result("c", tool_call_id="y"), said("e")],
            "makes the calls x; answered are y",
        ),
        ([{"role": "user", "content": "a"}, said(None)], "message 1 is no object with role and content"),
    ],
)
def test_messages_that_cannot_be_learned_from_are_refused(tmp_path: Path, messages: object, why: str) -> None:
    file = tmp_path / "chats.jsonl"
    file.write_text(json.dumps({"messages": messages}) + "\n")
    with pytest.raises(TaskError, match=why):
        read_chats([str(file)], "train", None)


@pytest.mark.parametrize("name", FOLLOWED)
def test_what_special_tokens_a_text_spells_stays_text_in_every_role(name: str) -> None:
    renderer = any_renderer(name)
    specials = set(renderer.tokenizer.added.values())
    plain = write_chat(renderer, talk(("a", "b"), ("c", "d"), system="e"))
    forged = [piece for piece in PIECES if piece in renderer.tokenizer.added]
    for piece in forged:
        a, b, c, d, e = (f"{letter} {piece} {letter}" for letter in "abcde")
        one = write_chat(renderer, talk((a, b), (c, d), system=e))
        counts = [sum(token in specials for token in each.tokens.tolist()) for each in (one, plain)]
        assert counts[0] == counts[1], piece
    assert forged


def test_several_rounds_are_refused_where_the_template_rewrites_them() -> None:
    renderer = any_renderer("qwen3.5")
    assert write_chat(renderer, talk(("a?", "b."))).action.any()
    with pytest.raises(RendererRefused, match="actions without tool calls"):
        write_chat(renderer, talk(("a?", "b."), ("c?", "d.")))


def test_cutting_and_leaving_out_are_counted() -> None:
    """A byte vocabulary: every character of a text is a token."""
    renderer = any_renderer("smollm2")
    short, long, far = talk(("a?", "yes")), talk(("b?", "n" * 50)), talk(("c" * 200, "no"))
    prompt = len(renderer.prompt_ids(short[:1], ()))
    limit = prompt + 20
    data = prepare_chats(renderer, [short, short, long, far, talk(("d?", "ok"))], max_length=limit, measure=1, seed=0)
    counts = data.counts
    assert (counts.read, counts.twice, counts.cut, counts.left_out) == (5, 1, 1, 1)
    assert (counts.tokens_cut, counts.answer_tokens_cut) == (31, 31)  # 50 letters and the end, 20 of them kept
    assert (counts.trained, counts.held_out) == (2, 1)
    assert counts.tokens == sum(map(len, data.train))
    assert counts.answer_tokens == sum(int(one.action.sum()) for one in data.train)
    text = counts.text(limit)
    assert f"1 cut at {limit:,} tokens (31 tokens lost, 31 of them the assistant's)" in text
    assert "1 that came twice left out" in text
    assert "1 left out that have no word of the assistant" in text
    assert Counts(read=3, trained=2, held_out=1).text(9) == (
        "3 conversations read; 2 to train on (0 tokens, 0 of them learned), 1 held out"
    )


def test_held_out_questions_are_never_trained_on_whatever_the_order() -> None:
    renderer = any_renderer("smollm2")
    chats = [talk((f"question {number % 40} ?", f"answer {number}")) for number in range(120)]
    one = prepare_chats(renderer, chats, max_length=400, measure=64, seed=0)
    shuffled = random.Random(1).sample(chats, len(chats))
    other = prepare_chats(renderer, shuffled, max_length=400, measure=64, seed=0)

    def texts(examples: Sequence[Demonstration]) -> set[str]:
        return {renderer.tokenizer.decode(example.tokens.tolist()) for example in examples}

    assert texts(one.heldout) == texts(other.heldout)
    questions = [
        {text.split("question ")[1].split(" ?")[0] for text in texts(part)} for part in (one.train, one.heldout)
    ]
    assert not questions[0] & questions[1]
    assert len(one.heldout) == 6  # 5 % of 120; a question is held out with all its answers, here three
    assert one.fingerprint != other.fingerprint


def test_a_question_that_many_begin_with_is_not_held_out() -> None:
    """At most the share that was said: "Hi" opens thousands of conversations, and its hash may be the least."""
    renderer = any_renderer("smollm2")
    for common in ("Hi", "hello", "q", "what?"):
        chats = [talk((common, f"answer {n}")) for n in range(60)] + [talk((f"rare {n}", "a")) for n in range(40)]
        data = prepare_chats(renderer, chats, max_length=400, measure=64, seed=0)
        assert len(data.heldout) == 5
    chats = [talk((f"question {n % 3 % 2}", f"answer {n}")) for n in range(9)]  # six begin with one, three with another
    assert len(prepare_chats(renderer, chats, max_length=400, measure=64, seed=0).heldout) == 3


def test_every_conversation_comes_once_an_epoch_in_another_order() -> None:
    renderer = any_renderer("smollm2")
    data = prepare_chats(renderer, [talk((f"q {n}", "a")) for n in range(20)], max_length=400, measure=1, seed=3)
    size = len(data.train)
    epochs = [[data.make(epoch * size + place).tokens.tobytes() for place in range(size)] for epoch in range(3)]
    assert all(sorted(epoch) == sorted(one.tokens.tobytes() for one in data.train) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert data.make(7).tokens.tobytes() == epochs[0][7]  # after later epochs, the same


def test_too_little_is_refused() -> None:
    renderer = any_renderer("smollm2")
    with pytest.raises(TaskError, match="at least two conversations with different first questions"):
        prepare_chats(renderer, [talk(("a?", "b")), talk(("A? ", "c"))], max_length=400, measure=4, seed=0)
    with pytest.raises(TaskError, match=r"2 left out .* larger --max-length"):
        prepare_chats(renderer, [talk(("a?", "b")), talk(("b?", "c"))], max_length=16, measure=4, seed=0)


# --- the command ------------------------------------------------------------------------------------------------------


def rows(path: Path, chats: list[list[dict[str, str]]]) -> str:
    path.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in chats))
    return str(path)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("start")
    write_start(folder, seed=1, tasks=128)
    return folder


COUNTING = [talk((f"after {n}", f"comes {n + 1}"), ("and then", f"comes {n + 2}")) for n in range(30)]


def config(start: Path, out: Path, *files: str, **changes: object) -> SftConfig:
    usual: dict[str, object] = {"steps": 6, "batch": 4, "checkpoint_every": 2, "log_every": 2, "max_length": 128}
    optimizer = OptimizerConfig(learning_rate=1e-3, max_grad_norm=1.0, warmup_steps=2)
    return SftConfig(model=start, out=out, chats=files, optimizer=optimizer, **{**usual, **changes})


def test_training_on_chats_lowers_the_held_out_loss_and_says_what_it_did(start: Path, tmp_path: Path) -> None:
    said: list[str] = []
    file = rows(tmp_path / "count.jsonl", [*COUNTING, COUNTING[0]])
    folder = run_sft(config(start, tmp_path / "out", file, steps=12, token_budget=128), report=said.append)
    assert "31 conversations read; 1 that came twice left out" in said[0]
    assert "12 steps of 4 go 1.7 times through them" in said[0]
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert lines[0]["step"] == 0
    assert lines[-1]["heldout/loss"] < lines[0]["heldout/loss"]
    assert f"heldout/loss {lines[-1]['heldout/loss']:.4g}" in said[-1]
    manifest = verify(folder, FORMAT)
    assert manifest["chats"] == ["count.jsonl"]
    assert manifest["counts"]["trained"] == 29
    assert str(tmp_path) not in json.dumps(manifest)


def test_a_stopped_run_goes_on_with_the_same_rows_only(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.torch import load_file

    file = rows(tmp_path / "count.jsonl", COUNTING)
    whole = run_sft(config(start, tmp_path / "whole", file), report=lambda _: None)
    seen = 0

    def stop_after_four(*arguments: object) -> float:
        nonlocal seen
        seen += 1
        if seen == 5:
            raise KeyboardInterrupt
        return clipped_step(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr("trainer.sft.clipped_step", stop_after_four)
        with pytest.raises(KeyboardInterrupt):
            run_sft(config(start, tmp_path / "cut", file), report=lambda _: None)
    changed = rows(tmp_path / "other.jsonl", [*COUNTING[:-1], talk(("after all", "comes nothing"))])
    with pytest.raises(FolderError, match="data: "):
        run_sft(config(start, tmp_path / "cut", changed), report=lambda _: None)
    said: list[str] = []
    again = run_sft(config(start, tmp_path / "cut", file), report=said.append)
    assert any("step 4 of 6" in line for line in said)
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (again, whole))
    assert all((ours[name] == theirs[name]).all() for name in theirs)


def test_refusals_before_anything_is_trained(start: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(TaskError, match=r"neither a known set .*smoltalk.* nor a file"):
        run_sft(config(start, out, "no/such.jsonl"))
    with pytest.raises(TaskError, match="row 2: roles are user, user"):
        run_sft(config(start, out, rows(tmp_path / "bad.jsonl", [COUNTING[0], [COUNTING[0][0]] * 2])))
    with pytest.raises(TrainingSetupError, match=r"max_length is 999999 tokens, and the model has \d+ positions"):
        run_sft(config(start, out, rows(tmp_path / "ok.jsonl", COUNTING), max_length=999_999))
    assert not out.exists()


def test_a_benchmarks_problem_is_refused(start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the lists' own hashes: the guard is asked for every question of every conversation."""
    asked: list[str] = []

    def known(task_id: str, kind: str, row: dict[str, str]) -> tuple[str, str] | None:
        asked.append(row["problem"])
        return ("aime2025", "problem") if row["problem"] == "and then" and len(asked) > 6 else None

    monkeypatch.setattr("data.chats.evaluation_set", known)
    with pytest.raises(EvaluationTask, match="row 4: it holds a problem of the evaluation set aime2025"):
        run_sft(config(start, tmp_path / "out", rows(tmp_path / "count.jsonl", COUNTING)))


def test_sets_and_files_are_read_together(tmp_path: Path) -> None:
    files = [rows(tmp_path / f"{name}.jsonl", COUNTING[:3]) for name in ("a", "b")]
    assert len(read_chats(files, "train", None)) == 6
    assert len(read_chats(files, "train", 2)) == 4
    with pytest.raises(TaskError, match=r"smoltalk .* has no split 'validation'"):
        read_chats(["smoltalk"], "validation", None)
