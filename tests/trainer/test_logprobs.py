from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from trainer.logprobs import (
    HeadError,
    action_logprobs,
    body_of,
    check_head,
    chunk_rows,
    head_of,
    weighted_logprobs,
)

from .tiny_models import tiny_policy

pytestmark = pytest.mark.numeric

ROWS, HIDDEN, VOCAB = 7, 5, 11


def leaves(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    hidden = torch.randn(ROWS, HIDDEN, generator=g).to(dtype).requires_grad_()
    weight = torch.randn(VOCAB, HIDDEN, generator=g).to(dtype).requires_grad_()
    bias = torch.randn(VOCAB, generator=g).to(dtype).requires_grad_()
    return hidden, weight, bias, torch.randint(0, VOCAB, (ROWS,), generator=g)


def plain(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    logits = hidden @ weight.T if bias is None else hidden @ weight.T + bias
    return torch.log_softmax(logits, -1)[torch.arange(len(targets)), targets]


@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
@pytest.mark.parametrize("biased", [False, True])
def test_equals_log_softmax_forward_and_backward(chunk: int, biased: bool) -> None:
    hidden, weight, bias, targets = leaves()
    b = bias if biased else None
    inputs = [hidden, weight, *([bias] if biased else [])]
    up = torch.linspace(-1, 2, ROWS, dtype=torch.float64)
    want = plain(hidden, weight, b, targets)
    got = action_logprobs(hidden, weight, targets, b, logit_budget=chunk * VOCAB)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    for ours, theirs in zip(torch.autograd.grad(got, inputs, up), torch.autograd.grad(want, inputs, up), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_weight_is_a_function_of_the_log_probability(chunk: int) -> None:
    hidden, weight, bias, targets = leaves()

    def weigh(logp: Tensor, rows: slice) -> Tensor:
        return logp.exp() * torch.arange(ROWS)[rows]  # depends on log pi and on the place

    want_logp = plain(hidden, weight, bias, targets)
    want = -(weigh(want_logp, slice(0, ROWS)).detach() * want_logp).sum()
    loss, logp = weighted_logprobs(hidden, weight, targets, weigh, bias, logit_budget=chunk * VOCAB)
    torch.testing.assert_close(loss, want)
    torch.testing.assert_close(logp, want_logp.detach())
    assert not logp.requires_grad
    expected = torch.autograd.grad(3 * want, [hidden, weight, bias])
    for ours, theirs in zip(torch.autograd.grad(3 * loss, [hidden, weight, bias]), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_fp32_result_from_bf16_inputs_under_autocast() -> None:
    hidden, weight, _, targets = leaves(torch.bfloat16)
    want = plain(hidden.float(), weight.float(), None, targets)
    with torch.autocast("cpu", torch.bfloat16):
        got = action_logprobs(hidden, weight, targets)
        loss, fused = weighted_logprobs(hidden, weight, targets, lambda logp, _: torch.ones_like(logp))
    assert got.dtype == fused.dtype == loss.dtype == torch.float32
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5)
    torch.testing.assert_close(fused, want.detach(), rtol=0, atol=1e-5)
    loss.backward()
    assert hidden.grad is not None
    assert hidden.grad.dtype == torch.bfloat16


def test_no_rows_keeps_graph_and_zero_gradients() -> None:
    hidden, weight, bias, targets = leaves()
    loss, logp = weighted_logprobs(hidden[:0], weight, targets[:0], lambda logp, _: logp, bias)
    assert logp.shape == (0,)
    loss.backward()
    for leaf in (hidden, weight, bias):
        assert leaf.grad is not None
        assert not leaf.grad.any()
    action_logprobs(hidden[:0], weight, targets[:0]).sum().backward()


def test_far_logits_stay_finite() -> None:
    hidden = torch.tensor([[1000.0], [-1000.0]], requires_grad=True)
    weight = torch.tensor([[1.0], [-1.0]])
    got = action_logprobs(hidden, weight, torch.tensor([0, 0]))
    assert got.tolist() == [0.0, -2000.0]


def test_never_more_logits_than_the_budget() -> None:
    assert chunk_rows(torch.empty(100, 2), 1000) == 10
    assert chunk_rows(torch.empty(100, 2), 1) == 1
    seen: list[int] = []
    hidden, weight, _, targets = leaves()

    def weigh(logp: Tensor, rows: slice) -> Tensor:
        seen.append(len(logp))
        return torch.ones_like(logp)

    weighted_logprobs(hidden, weight, targets, weigh, logit_budget=3 * VOCAB)
    assert seen == [3, 3, 1]


class TestHead:
    @pytest.mark.parametrize("tied", [False, True])
    def test_body_and_head_of_a_causal_lm(self, tied: bool) -> None:
        policy = tiny_policy(tied=tied)
        check_head(policy)
        assert head_of(policy)[0].shape == (24, 16)
        assert (head_of(policy)[0] is policy.get_input_embeddings().weight) is tied
        assert body_of(policy) is policy.model

    def test_soft_capped_logits_are_refused(self) -> None:
        policy = tiny_policy()
        policy.config.final_logit_softcapping = 30.0
        with pytest.raises(HeadError, match="final_logit_softcapping"):
            check_head(policy)

    def test_a_head_that_is_not_linear_is_refused(self) -> None:
        policy = tiny_policy()
        policy.lm_head.forward = lambda x: 2 * nn.functional.linear(x, policy.lm_head.weight)
        with pytest.raises(HeadError, match="transforms its logits"):
            check_head(policy)
        with pytest.raises(HeadError, match="causal LM"):
            body_of(nn.Linear(2, 2))
