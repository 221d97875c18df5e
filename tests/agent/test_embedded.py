"""The embedded engine against a plain transformers forward: every log-probability, whatever shares the batch."""

from __future__ import annotations

import asyncio
import random

import pytest
import torch

from agent.engines.embedded import ContextOverflow, EmbeddedPolicy, ModelRefused
from agent.policy import EngineError, Generation, StopReason
from data.trajectory import Sampling

STOP = 7


def reference(model, ids: list[int]) -> torch.Tensor:
    """[len(ids) - 1]: log-probability of each token given those before it, by the model's own full forward."""
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].float()
    return torch.log_softmax(logits, -1)[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


def check_exact(models: dict[int, object], prompt: list[int], made: Generation) -> None:
    """Each sampled token against the model of its own version."""
    ids = [*prompt, *made.tokens]
    by_version = {version: reference(models[version], ids) for version in set(made.versions)}
    assert made.logprobs, "nothing was sampled"
    for at, (logprob, version) in enumerate(zip(made.logprobs, made.versions, strict=True)):
        expected = float(by_version[version][len(prompt) + at - 1])
        assert logprob <= 0
        assert logprob == pytest.approx(expected, abs=1e-4), f"token {at} of {len(made.tokens)}, version {version}"


def prompt_of(seed: int, length: int, vocab: int = 97) -> list[int]:
    return [random.Random(seed * 1000 + i).randrange(vocab) for i in range(length)]


def make(model, **options) -> EmbeddedPolicy:
    return EmbeddedPolicy(model, threads=1, **options)


async def sampled(policy, tokens: int) -> None:
    while policy.stats.sampled_tokens < tokens:  # noqa: ASYNC110 - the engine lives in another thread
        await asyncio.sleep(0.001)


async def ask(policy, prompt, seed=0, n=20, episode="", stop=(STOP,)):
    return await policy.generate(prompt, max_new_tokens=n, stop_ids=stop, seed=seed, episode_id=episode)


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
            assert alone.logprobs == pytest.approx(made.logprobs, abs=1e-5)
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
            (tmp_path / "nowhere", "cannot read"),
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


def test_abort_and_drain(make_model) -> None:
    model = make_model()

    async def run() -> None:
        policy = make(make_model(), max_batch=2)
        prompts = [prompt_of(i, 10) for i in range(3)]
        running = [asyncio.create_task(ask(policy, p, i, 480, f"e{i}", stop=())) for i, p in enumerate(prompts)]
        await sampled(policy, 20)
        await policy.abort("e0")
        made = await running[0]
        assert made.stop_reason is StopReason.ABORTED
        check_exact({0: model}, prompts[0], made)
        await policy.abort()
        ended = await asyncio.gather(*running[1:])
        assert [g.stop_reason for g in ended] == [StopReason.ABORTED] * 2
        last = asyncio.create_task(ask(policy, prompts[0], 1, 50, stop=()))
        await asyncio.sleep(0.01)
        await policy.drain()
        assert (await last).stop_reason is StopReason.LENGTH
        refused = await ask(policy, prompts[0])
        assert (refused.stop_reason, list(refused.tokens)) == (StopReason.ABORTED, [])
        policy.resume()
        assert (await ask(policy, prompts[0])).tokens
        await policy.close()

    asyncio.run(run())


def test_cancelled_request_leaves_the_batch(make_model) -> None:
    async def run() -> None:
        policy = make(make_model(), max_batch=1)
        blocked = asyncio.create_task(ask(policy, prompt_of(0, 10), 0, 490, stop=()))
        await asyncio.sleep(0.02)
        blocked.cancel()
        assert len((await asyncio.wait_for(ask(policy, prompt_of(1, 5), 1, 3, stop=()), 5)).tokens) == 3
        await policy.close()

    asyncio.run(run())


def test_close_answers_whoever_still_waits(make_model) -> None:
    async def run() -> None:
        policy = make(make_model(), max_batch=1)
        running = [asyncio.create_task(ask(policy, prompt_of(i, 10), i, 490, stop=())) for i in range(3)]
        await asyncio.sleep(0.02)
        await policy.close()
        await policy.close()
        assert {(await task).stop_reason for task in running} <= {StopReason.ABORTED, StopReason.LENGTH}
        with pytest.raises(EngineError, match="closed"):
            await ask(policy, [1])
        await policy.forget("e")

    asyncio.run(run())


def test_requests_that_do_not_fit_are_refused_before_sampling(make_model) -> None:
    async def run() -> None:
        policy = make(make_model(), max_context=64)
        with pytest.raises(ContextOverflow, match=r"60 tokens \+ 5 new ones exceed the engine's context of 64"):
            await ask(policy, prompt_of(0, 60), n=5)
        with pytest.raises(EngineError, match="97 is outside the model's vocabulary"):
            await ask(policy, [3, 97])
        with pytest.raises(EngineError, match="no tokens"):
            await ask(policy, [])
        assert len((await ask(policy, prompt_of(0, 60), n=4, stop=())).tokens) == 4
        assert policy.stats.sampled_tokens == 4
        await policy.close()

    asyncio.run(run())


def test_broken_engine_fails_everybody_and_says_why(make_model) -> None:
    async def run() -> None:
        policy = make(make_model(), max_batch=2)
        running = [asyncio.create_task(ask(policy, prompt_of(i, 10), i, 400, stop=())) for i in range(4)]
        await asyncio.sleep(0.02)

        def explode(*args: object, **kwargs: object) -> None:
            raise RuntimeError("out of memory")

        policy._batch._forward = explode
        for task in running:
            with pytest.raises(EngineError, match="out of memory"):
                await task
        with pytest.raises(EngineError, match="out of memory"):
            await ask(policy, [1])
        with pytest.raises(EngineError, match="out of memory"):
            await policy.update_weights(make_model(1).state_dict(), 1)
        await policy.close()

    asyncio.run(run())


def test_non_finite_logits_fail_that_request_only_and_leave_nothing_behind(make_model) -> None:
    model = make_model()

    async def run() -> None:
        policy = make(make_model(), max_batch=2)
        with torch.no_grad():
            policy._model.model.embed_tokens.weight[11] = float("inf")  # only requests with token 11 meet it
        # The head is tied, so token 11's logit breaks everybody: untie it first.
        policy._model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone(), requires_grad=False)
        healthy = [t for t in prompt_of(1, 40) if t != 11]
        good = asyncio.create_task(ask(policy, healthy, 1, 30, stop=tuple(range(97))))
        with pytest.raises(EngineError, match="non-finite logits"):
            await ask(policy, [5, 11, 6] * 30, 2, 5)
        check_exact({0: model}, healthy, await good)
        # The short one takes the row that the failed request left; the long one keeps all columns in view.
        prompts = [healthy[:5], healthy * 4]
        again = await asyncio.gather(*(ask(policy, p, 3, 6, stop=tuple(range(97))) for p in prompts))
        for prompt, made in zip(prompts, again, strict=True):
            check_exact({0: model}, prompt, made)
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


def test_refuses_what_it_cannot_serve_exactly(make_model, tmp_path) -> None:
    with pytest.raises(ModelRefused, match=r"config\.json"):
        EmbeddedPolicy.load(tmp_path)
    sliding = make_model(0, use_sliding_window=True, sliding_window=16, max_window_layers=0, layer_types=None)
    with pytest.raises(ModelRefused, match="sliding"):
        EmbeddedPolicy(sliding)
    dynamic = make_model(0, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4})
    with pytest.raises(ModelRefused, match="dynamic"):
        EmbeddedPolicy(dynamic)
    model = make_model()
    model.save_pretrained(tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(ModelRefused, match="cannot load"):
        EmbeddedPolicy.load(tmp_path / "m")
    state = model.state_dict()
    del state["model.layers.1.mlp.up_proj.weight"]
    model.save_pretrained(tmp_path / "n", state_dict=state)
    with pytest.raises(ModelRefused, match="missing keys"):
        EmbeddedPolicy.load(tmp_path / "n")
