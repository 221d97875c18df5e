"""The embedded engine against a plain transformers forward: every log-probability, whatever shares the batch."""

from __future__ import annotations

import asyncio
import random

import pytest
import torch

from agent.engines.embedded import EmbeddedPolicy, ModelRefused
from agent.policy import StopReason
from data.trajectory import Sampling
from tests.agent.embedded_support import STOP, TOLERANCE, ask, check_exact, make, prompt_of, sampled

pytestmark = pytest.mark.numeric


def test_ragged_batch_is_exact_and_equals_each_request_alone(make_model) -> None:
    model = make_model()
    requests = [(prompt_of(i, 1 + 7 * i), i, 5 + 3 * i) for i in range(16)]

    async def run() -> None:
        policy = make(make_model(), max_batch=16)
        together = await asyncio.gather(*(ask(policy, p, s, n) for p, s, n in requests))
        assert policy.stats.decode_steps < sum(len(g.tokens) for g in together) / 2, "they were not batched"
        for (prompt, seed, n), made in zip(requests, together, strict=True):
            check_exact({0: model}, prompt, made)
            alone = await ask(policy, prompt, seed, n)
            assert list(alone.tokens) == list(made.tokens)
            assert alone.logprobs == pytest.approx(made.logprobs, abs=TOLERANCE)
        assert {g.stop_reason for g in together} == {StopReason.STOP, StopReason.LENGTH}
        for made in together:
            assert (made.tokens[-1] == STOP) == (made.stop_reason is StopReason.STOP)
            assert STOP not in made.tokens[:-1]
        await policy.close()

    asyncio.run(run())


def test_joins_and_leaves_between_steps_stay_exact(make_model) -> None:
    """Twice as many requests as slots, arriving over time: rows move, left-overs of longer ones stand right of them."""
    model = make_model()

    async def run() -> None:
        policy = make(make_model(), max_batch=5)
        rng = random.Random(3)

        async def one(i: int) -> None:
            await asyncio.sleep(rng.random() * 0.05)
            prompt = prompt_of(i, rng.choice([1, 2, 30, 90, 260]))
            check_exact({0: model}, prompt, await ask(policy, prompt, i, rng.choice([1, 4, 25, 60])))

        await asyncio.gather(*(one(i) for i in range(24)))
        await policy.close()

    asyncio.run(run())


def test_prefix_is_reused_between_turns_and_only_as_far_as_ids_agree(make_model) -> None:
    model = make_model()

    async def run() -> None:
        policy = make(make_model())
        ids = prompt_of(1, 40)
        for turn in range(4):
            made = await ask(policy, ids, turn, 15, "e1", stop=())
            check_exact({0: model}, ids, made)
            ids = [*ids, *made.tokens, *prompt_of(50 + turn, 9)]
        # Turns 1 to 3 reuse all but the last sampled token, which never went through the model.
        assert policy.stats.reused_tokens == sum(40 + 15 * t + 9 * (t - 1) - 1 for t in (1, 2, 3))
        reused = policy.stats.reused_tokens
        changed = [*ids[:20], (ids[20] + 1) % 97, *ids[21:]]
        check_exact({0: model}, changed, await ask(policy, changed, 9, 10, "e1"))
        assert policy.stats.reused_tokens - reused == 20
        shorter = changed[:12]
        check_exact({0: model}, shorter, await ask(policy, shorter, 9, 10, "e1"))
        await policy.forget("e1")
        reused = policy.stats.reused_tokens
        check_exact({0: model}, shorter, await ask(policy, shorter, 9, 10, "e1"))
        assert policy.stats.reused_tokens == reused
        await policy.close()

    asyncio.run(run())


def test_prefix_store_is_bounded(make_model) -> None:
    async def run() -> None:
        one_row = 2 * 2 * 2 * 8 * 4  # keys and values, layers, heads, dimensions, bytes: of one position
        policy = make(make_model(), prefix_cache_bytes=one_row * 100)
        for i in range(8):
            await ask(policy, prompt_of(i, 40), i, 5, f"e{i}", stop=())
        assert list(policy._batch.prefixes.rows) == ["e6", "e7"]
        prefixes = policy._batch.prefixes
        assert prefixes.nbytes == sum(row.nbytes for _, row in prefixes.rows.values())
        await policy.close()

    asyncio.run(run())


def test_weight_update_in_flight_changes_version_and_distribution_at_the_same_token(make_model) -> None:
    old, new = make_model(0), make_model(1)

    async def run() -> None:
        policy = make(make_model(0), max_batch=4)
        prompts = [prompt_of(i, 20 + 13 * i) for i in range(6)]  # two of them still wait
        running = [asyncio.create_task(ask(policy, p, i, 300, f"e{i}", stop=())) for i, p in enumerate(prompts)]
        await sampled(policy, 80)
        await policy.update_weights(new.state_dict(), 5)
        assert policy.version == 5
        crossed = 0
        for prompt, made in zip(prompts, await asyncio.gather(*running), strict=True):
            check_exact({0: old, 5: new}, prompt, made)
            assert list(made.versions) == sorted(made.versions)
            crossed += len(set(made.versions)) == 2
        assert crossed == 4
        assert policy.stats.recomputed_tokens > 0
        await policy.close()

    asyncio.run(run())


def test_weight_update_drops_saved_prefixes(make_model) -> None:
    new = make_model(1)

    async def run() -> None:
        policy = make(make_model(0))
        ids = prompt_of(1, 60)
        made = await ask(policy, ids, 1, 10, "e", stop=())
        await policy.update_weights(new.state_dict(), 1)
        ids = [*ids, *made.tokens, 3, 4]
        check_exact({1: new}, ids, await ask(policy, ids, 2, 10, "e"))
        assert policy.stats.reused_tokens == 0
        await policy.close()

    asyncio.run(run())


def test_weights_from_a_folder_and_a_bad_update_leaves_the_old_ones(make_model, tmp_path) -> None:
    new = make_model(1)
    new.save_pretrained(tmp_path / "v1")

    async def run() -> None:
        make_model(0).save_pretrained(tmp_path / "v0")
        policy = EmbeddedPolicy.load(tmp_path / "v0", device="cpu", threads=1, lineage="demo")
        assert policy.lineage == "demo"
        good = new.state_dict()
        broken = dict(good)
        broken["model.norm.weight"] = torch.full_like(broken["model.norm.weight"], float("nan"))
        untied = {**good, "lm_head.weight": good["lm_head.weight"] + 1}
        for bad, word in [
            ({k: v for k, v in good.items() if "norm" not in k}, "missing"),
            ({**good, "extra": torch.zeros(1)}, "unexpected"),
            ({**good, "model.norm.weight": torch.zeros(3)}, "misshapen"),
            (broken, "not finite"),
            (untied, "tied"),
            (tmp_path / "nowhere", "weight files are missing"),
        ]:
            with pytest.raises(ModelRefused, match=word):
                await policy.update_weights(bad, 1)
        prompt = prompt_of(4, 30)
        check_exact({0: make_model(0)}, prompt, await ask(policy, prompt))
        await policy.update_weights(tmp_path / "v1", 1)  # the tied head is not in the file
        check_exact({1: new}, prompt, await ask(policy, prompt))
        with pytest.raises(ModelRefused, match="versions only grow"):
            await policy.update_weights(tmp_path / "v1", 1)
        await policy.close()

    asyncio.run(run())


def test_greedy_takes_the_most_likely_token(make_model) -> None:
    model = make_model()

    async def run() -> None:
        policy = make(make_model(), sampling=Sampling(temperature=0.0))
        prompt = prompt_of(2, 30)
        made = await ask(policy, prompt, 0, 12, stop=())
        check_exact({0: model}, prompt, made)
        ids = list(prompt)
        for token in made.tokens:
            with torch.no_grad():
                assert int(model(torch.tensor([ids])).logits[0, -1].argmax()) == token
            ids.append(token)
        await policy.close()

    asyncio.run(run())


def test_untied_model_without_grouped_heads_and_long_prefill(make_model) -> None:
    changes = dict(tie_word_embeddings=False, num_key_value_heads=4, max_position_embeddings=4096)
    model = make_model(3, **changes)

    async def run() -> None:
        policy = make(make_model(3, **changes))
        prompts = [prompt_of(8, 2600), prompt_of(9, 3)]
        for prompt, made in zip(
            prompts, await asyncio.gather(*(ask(policy, p, 5, 8, stop=()) for p in prompts)), strict=True
        ):
            check_exact({0: model}, prompt, made)
        await policy.close()

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["qwen2", "llama", "mistral", "gpt_neox"])
def test_other_architectures_fused_or_by_their_own_forward(kind) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    def build():
        torch.manual_seed(5)
        config = AutoConfig.for_model(
            kind, vocab_size=97, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=4 if kind == "gpt_neox" else 2, max_position_embeddings=512, initializer_range=0.3,
            sliding_window=None,
        )  # fmt: skip
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.data.add_(torch.randn_like(parameter) * 0.3)
        return model

    model = build()

    async def run() -> None:
        policy = make(build())
        assert (policy._batch.fused is not None) == (kind in ("qwen2", "llama"))
        prompts = [prompt_of(i, 5 + 40 * i) for i in range(3)]
        for prompt, made in zip(
            prompts, await asyncio.gather(*(ask(policy, p, 1, 12, stop=()) for p in prompts)), strict=True
        ):
            check_exact({0: model}, prompt, made)
        await policy.close()

    asyncio.run(run())


def test_fused_forward_is_used_and_distrusts_itself(make_model, caplog, monkeypatch) -> None:
    from agent.engines.fused import FusedForward

    assert FusedForward.for_model(make_model()) is not None
    assert FusedForward.for_model(make_model().to(torch.bfloat16)) is None
    monkeypatch.setattr("agent.engines.fused._Layer.__init__", _swapped_norms)
    assert FusedForward.for_model(make_model()) is None
    assert "differs by" in caplog.text


def _swapped_norms(self, *values: object) -> None:
    names = ("after", "qkv", "qkv_bias", "query_norm", "key_norm", "out", "before", "gate_up", "gate_up_bias", "down")
    for name, value in zip(names, values, strict=True):
        object.__setattr__(self, name, value)
