"""The embedded engine when requests end otherwise: aborts, cancellation, closing, refusals, broken models."""

from __future__ import annotations

import asyncio

import pytest
import torch

from agent.engines.embedded import ContextOverflow, EmbeddedPolicy, ModelRefused
from agent.policy import EngineError, StopReason
from tests.agent.embedded_support import ask, check_exact, make, prompt_of, sampled
from tests.patience import PATIENCE_S


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
        assert len((await asyncio.wait_for(ask(policy, prompt_of(1, 5), 1, 3, stop=()), PATIENCE_S)).tokens) == 3
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
    with pytest.raises(ModelRefused, match="no safetensors file, or cut off"):
        EmbeddedPolicy.load(tmp_path / "m")
    state = model.state_dict()
    del state["model.layers.1.mlp.up_proj.weight"]
    model.save_pretrained(tmp_path / "n", state_dict=state)
    with pytest.raises(ModelRefused, match="a part is missing"):
        EmbeddedPolicy.load(tmp_path / "n")
