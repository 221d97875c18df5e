"""The demo policy: its tokenizer and template, its structured start, and the folder that is shipped."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import agent
from agent.demo_model import start_model
from agent.demo_tokenizer import FRAME_TOKENS, TAG_TOKENS, VocabularyError, build_tokenizer
from agent.presets import load_preset
from agent.renderers.qwen import QwenRenderer
from agent.tokenizer import Tokenizer, load_tokenizer
from data.micro_swe import bug_site, load
from envs.tools import ToolSet
from envs.tools.text import view_text

SHIPPED = Path(agent.__file__).parent / "assets" / "demo"


@pytest.fixture(scope="module")
def texts() -> list[str]:
    tasks = load("train", limit=256)
    return [text for one in tasks for text in (one.row["problem_statement"], *json.loads(one.row["files"]).values())]


@pytest.fixture(scope="module")
def tokenizer(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    build_tokenizer(texts).save_pretrained(folder)
    return load_tokenizer(folder)


@pytest.fixture(scope="module")
def start(tokenizer: Tokenizer) -> Any:
    return start_model(tokenizer.hf, seed=0)


# --- tokenizer and template -------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_any_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    text = text.encode("utf-8", "ignore").decode()
    assert tokenizer.decode(tokenizer.encode_text(text)) == text


def test_vocabulary_does_not_depend_on_the_order_of_the_texts(texts: list[str], tokenizer: Tokenizer) -> None:
    shuffled = random.Random(1).sample(texts, len(texts))
    assert build_tokenizer(shuffled).get_vocab() == tokenizer.hf.get_vocab()


def test_words_frames_and_line_breaks_are_single_tokens(tokenizer: Tokenizer) -> None:
    for piece in ("price", " price", "def", " return", ".py", "\n    ", "\n\n\n"):
        assert len(tokenizer.encode_text(piece)) == 1, piece
    for frame in (*FRAME_TOKENS, *TAG_TOKENS):
        assert len(tokenizer.encode_marked(frame)) == 1
        assert len(tokenizer.encode_text(frame)) > 1  # a file that spells a frame is still text


def test_too_many_words_are_refused(texts: list[str]) -> None:
    with pytest.raises(VocabularyError, match="raise vocab_size"):
        build_tokenizer(texts, vocab_size=300)


def test_tool_list_comes_from_the_schemas(tokenizer: Tokenizer) -> None:
    renderer = QwenRenderer(tokenizer)
    for names, line in (
        (("view", "str_replace", "submit"), "view(path) str_replace(path, old_str, new_str) submit()"),
        (("bash", "create"), "bash(command) create(path, content)"),
    ):
        ids = renderer.prompt_ids([{"role": "system", "content": "Fix."}], ToolSet(names).schemas)
        assert tokenizer.decode(ids) == f"<|im_start|>system\nFix.\n{line}<|im_end|>\n<|im_start|>assistant\n"


def test_incremental_ids_equal_the_template_over_the_whole_conversation(tokenizer: Tokenizer) -> None:
    renderer, preset = QwenRenderer(tokenizer), load_preset("demo")
    schemas = ToolSet(preset.tools).schemas
    calls = [{"name": "view", "arguments": {"path": "shop/cart.py"}}, {"name": "submit", "arguments": {}}]
    spoken = "\n".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls)
    ids = renderer.prompt_ids(preset.messages("wrong result"), schemas)
    ids += renderer.action_ids(f"def total\n{spoken}")
    ids += renderer.observation_ids(["x = 1", "Submitted."], renderer.stop_ids[0])
    messages: list[dict[str, Any]] = [
        *preset.messages("wrong result"),
        {"role": "assistant", "content": "def total", "tool_calls": [{"function": call} for call in calls]},
        {"role": "tool", "content": "x = 1"},
        {"role": "tool", "content": "Submitted."},
    ]
    whole = tokenizer.hf.apply_chat_template(
        messages,
        tools=[dict(schema) for schema in schemas],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=False,
    )
    assert ids == whole


# --- the structured start ---------------------------------------------------------------------------------------------


def test_start_is_the_same_for_the_same_seed_and_leaves_the_generator_alone(tokenizer: Tokenizer, start: Any) -> None:
    before = torch.get_rng_state()
    again = start_model(tokenizer.hf, seed=0)
    assert torch.equal(before, torch.get_rng_state())
    other = start_model(tokenizer.hf, seed=4)
    ours, same, different = (model.state_dict() for model in (start, again, other))
    assert all(torch.equal(ours[name], same[name]) for name in ours)
    assert not torch.equal(ours["lm_head.weight"], different["lm_head.weight"])
    assert sum(parameter.numel() for parameter in start.parameters()) < 1_100_000


def test_heads_look_back_and_know_their_function(tokenizer: Tokenizer) -> None:
    """Over five seeds: the matrices are random, only their relations are made."""
    functions = (
        'def quote(price, tax):\n    """The value is price plus tax."""\n    result = price + tax\n    return result\n',
        'def settle(rate, debt):\n    """The value is rate per debt."""\n    draft = rate // debt\n    return draft\n',
    )
    ids = tokenizer.encode_text("wrong result\n" + "\n\n".join(functions))
    first, second = (ids.index(tokenizer.encode_text(name)[0]) for name in (" quote", " settle"))
    known = []
    for seed in range(5):
        model = start_model(tokenizer.hf, seed=seed)
        model.set_attn_implementation("eager")
        seen = model(input_ids=torch.tensor([ids]), output_attentions=True).attentions
        assert seen[0][0, 0].diagonal(-1).mean() > 0.9  # the token before
        assert seen[0][0, 1].diagonal(-2).mean() > 0.9  # the one before that
        owner = seen[1][0, 2]
        known += [
            float(owner[first + 3 : second - 2, first].mean().detach()),
            float(owner[second + 3 :, second].mean().detach()),
        ]
    assert sum(known) / len(known) > 0.6


def test_start_copies_from_the_function_it_names(tokenizer: Tokenizer) -> None:
    """Untrained, and yet: after "def NAME ... return" the next word is more often that function's first than chance."""
    names = ["price", "tax", "rate", "debt", "cost", "limit", "count", "size"]
    rng, hits = random.Random(0), 0
    for seed in range(5):
        model = start_model(tokenizer.hf, seed=seed)
        for _ in range(40):
            a, b, c, d = rng.sample(names, 4)
            asked, wanted = rng.choice([("quote", a), ("settle", c)])
            ids = tokenizer.encode_text(
                f"def quote({a}, {b}):\n    return {a} + {b}\n\n\ndef settle({c}, {d}):\n    return {c} - {d}\n\n\n"
                f"def {asked}\n    return"
            )
            logits = model(input_ids=torch.tensor([ids])).logits[0, -1]
            options = [tokenizer.encode_text(" " + name)[0] for name in (a, b, c, d)]
            hits += options[int(logits[options].argmax())] == tokenizer.encode_text(" " + wanted)[0]
    assert hits >= 80  # of 200; chance is 50 with a standard deviation of 6


# --- what is shipped --------------------------------------------------------------------------------------------------


def test_shipped_folder_is_small_whole_and_described() -> None:
    manifest = json.loads((SHIPPED / "MANIFEST.json").read_text(encoding="utf-8"))
    files = {path.name for path in SHIPPED.iterdir()}
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) <= 5_000_000
    assert files == {*manifest["files"], "MANIFEST.json"}
    for name, facts in manifest["files"].items():
        assert hashlib.sha256((SHIPPED / name).read_bytes()).hexdigest() == facts["sha256"], name
    assert manifest["commands"]
    assert manifest["tokenizer"] == load_tokenizer(SHIPPED).fingerprint


def test_shipped_policy_writes_the_protocol_greedily() -> None:
    """24 held-out tasks, greedy: most episodes end in one edit of the buggy line; the guess may be wrong."""
    from agent.engines.weights import load_model
    from agent.parsers import hermes
    from envs.environment import ToolCall

    tokenizer = load_tokenizer(SHIPPED)
    renderer, preset = QwenRenderer(tokenizer), load_preset("demo")
    model = load_model(SHIPPED, torch.device("cpu"), torch.float32)
    found = 0
    for one in load("heldout", limit=24, offset=100):
        site = bug_site(one)
        shown = view_text(json.loads(one.row["files"])[site.path].encode())
        ids = renderer.prompt_ids(preset.messages(one.row["problem_statement"]), ToolSet(preset.tools).schemas)
        turn = _greedy(model, ids, renderer)
        ids += [*turn, *renderer.observation_ids([shown], renderer.stop_ids[0])]
        calls = [call for call in hermes.parse(renderer.action_text(_greedy(model, ids, renderer)))]
        edit = calls[0]
        viewed = hermes.parse(renderer.action_text(turn))
        found += (
            viewed == (ToolCall("view", {"path": site.path}),)
            and isinstance(edit, ToolCall)
            and edit.arguments.get("old_str") == site.old_line
            and calls[-1] == ToolCall("submit", {})
        )
    assert found >= 14


@torch.no_grad()
def _greedy(model: Any, ids: list[int], renderer: QwenRenderer) -> list[int]:
    made: list[int] = []
    cache = None
    feed = ids
    while len(made) < 80:
        out = model(input_ids=torch.tensor([feed]), past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        made.append(int(out.logits[0, -1].argmax()))
        if made[-1] in renderer.stop_ids:
            break
        feed = made[-1:]
    return made


def test_the_demonstrations_that_made_it_are_still_the_ones_of_this_code() -> None:
    """The manifest's command only makes these weights again while generator, drills and tokenizer are the same."""
    from trainer.demonstrations import Demonstrator, micro_swe_demonstrations
    from trainer.sft_batches import data_hash

    manifest = json.loads((SHIPPED / "MANIFEST.json").read_text(encoding="utf-8"))
    settings = manifest["settings"]
    make = micro_swe_demonstrations(
        Demonstrator(QwenRenderer(load_tokenizer(SHIPPED)), load_preset(settings["preset"])),
        split="train",
        tasks=settings["train_tasks"],
        seed=settings["seed"],
        drill_share=settings["drill_share"],
        drill_lists=settings["drill_lists"],
    )
    assert data_hash(make, manifest["data_hashed"]) == manifest["data_sha256"]
