"""Log-probabilities of action tokens from hidden states and the LM head, without a [tokens, vocabulary] tensor.

Promises: equal to `log_softmax(hidden @ W.T)[target]` forward and backward; numbers and sums are at least fp32 whatever
the autocast, products too but for TF32 with bf16 on a GPU (trainer/precision.py); only `chunk` rows of logits exist at
any time. Zero rows are fine: the graph and the (zero) gradients stay, so ranks with a fully masked micro-batch do the
same backward as the others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from trainer.precision import head_products, logits_at_once

WeightFn = Callable[[Tensor, slice], Tensor]
"""(log pi of a chunk, its place among the rows) -> weight per row. It sees log pi because DIS's f(r) needs it."""


class HeadError(ValueError):
    """The model's logits are not `hidden @ W.T (+ b)`, so its log-probabilities cannot be computed in chunks."""


def body_of(model: nn.Module) -> Any:
    """The Hugging Face causal LM without its head: token ids -> last hidden state (after the final norm)."""
    body = getattr(model, "base_model", None)
    if not isinstance(body, nn.Module) or body is model:
        raise HeadError(f"{type(model).__name__} has no body under its head: pass a Hugging Face causal LM")
    return body


def head_of(model: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Weight [V, H] and bias [V] or None of the LM head."""
    getter: Any = getattr(model, "get_output_embeddings", None)
    head = getter() if getter is not None else None
    if head is None or not isinstance(getattr(head, "weight", None), Tensor):
        raise HeadError(f"{type(model).__name__} has no linear LM head: pass a Hugging Face causal LM")
    return head.weight, getattr(head, "bias", None)


def hidden_states(body: Any, tokens: Tensor) -> Tensor:
    """[b, L] ids, right-padded -> [b, L, H]. No attention mask: attention is causal, so padding on the right is never
    seen by a real token."""
    return body(input_ids=tokens, use_cache=False).last_hidden_state


@torch.no_grad()
def check_head(model: nn.Module) -> None:
    """Raise `HeadError` when the model transforms its logits (soft-capping, scaling) after the linear head."""
    config = getattr(model, "config", None)
    for field, plain in (("final_logit_softcapping", None), ("logits_scaling", 1), ("logit_scale", 1)):
        value = getattr(config, field, None)
        if value is not None and value != plain:
            raise HeadError(f"{type(model).__name__} has {field} = {value}: SAO needs logits = hidden @ W.T")
    weight, bias = head_of(model)
    tokens = torch.arange(min(8, len(weight)), device=weight.device)[None]
    hidden = hidden_states(body_of(model), tokens)
    ours = hidden @ weight.to(hidden.dtype).T + (0 if bias is None else bias)
    theirs = model(input_ids=tokens, use_cache=False).logits
    if ours.shape != theirs.shape or (ours - theirs).abs().max() > 1e-3 * theirs.abs().max().clamp(min=1e-3):
        raise HeadError(f"{type(model).__name__} transforms its logits after the linear head: SAO needs hidden @ W.T")


def chunk_rows(weight: Tensor, logit_budget: int = 0) -> int:
    """Rows per chunk so that about `logit_budget` logits exist at once; 0: as many as suit the device."""
    return max(1, logits_at_once(logit_budget, weight.device) // weight.shape[0])


class _Logprobs(torch.autograd.Function):
    """Saves hidden states and one number per row; the backward recomputes each chunk's logits."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, chunk: int, precision: str
    ) -> Tensor:
        with _plainly(hidden, precision):
            compute = _compute_dtype(hidden)
            w, b = weight.to(compute), None if bias is None else bias.to(compute)
            logp, norm = hidden.new_empty(len(hidden), dtype=compute), hidden.new_empty(len(hidden), dtype=compute)
            for part in _chunks(len(hidden), chunk):
                logits = _logits(hidden[part].to(compute), w, b)
                norm[part] = logits.logsumexp(-1)
                logp[part] = _pick(logits, targets[part]) - norm[part]
        ctx.save_for_backward(hidden, weight, bias, targets, norm)
        ctx.chunk, ctx.precision = chunk, precision
        return logp

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        hidden, weight, bias, targets, norm = ctx.saved_tensors
        need_hidden, need_weight, need_bias, *_ = ctx.needs_input_grad
        with _plainly(hidden, ctx.precision):
            compute = norm.dtype
            w, b = weight.to(compute), None if bias is None else bias.to(compute)
            out = _HeadGradients(hidden, w, need_hidden, need_weight, need_bias)
            for part in _chunks(len(hidden), ctx.chunk):
                rows = hidden[part].to(compute)
                logits = _logits(rows, w, b)
                out.add(part, rows, logits, norm[part], targets[part], -grads[0][part].to(compute))
        return (*out.cast(hidden, weight, bias), None, None, None)


class _WeightedLogprobs(torch.autograd.Function):
    """Loss -sum(weight_fn(log pi) log pi) with its gradient taken in the forward pass, chunk by chunk: the logits are
    computed once, where log-probabilities with a later backward compute them twice."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        weight_fn: WeightFn,
        chunk: int,
        precision: str,
    ) -> tuple[Tensor, Tensor]:
        need_hidden, need_weight, need_bias, *_ = ctx.needs_input_grad
        with _plainly(hidden, precision):
            compute = _compute_dtype(hidden)
            w, b = weight.to(compute), None if bias is None else bias.to(compute)
            out = _HeadGradients(hidden, w, need_hidden, need_weight, need_bias)
            logp = hidden.new_empty(len(hidden), dtype=compute)
            loss = hidden.new_zeros((), dtype=compute)
            for part in _chunks(len(hidden), chunk):
                rows = hidden[part].to(compute)
                logits = _logits(rows, w, b)
                norm = logits.logsumexp(-1)
                logp[part] = _pick(logits, targets[part]) - norm
                token_weight = weight_fn(logp[part], part).detach().to(compute)
                loss -= (token_weight * logp[part]).sum()
                out.add(part, rows, logits, norm, targets[part], token_weight)
        gradients = out.cast(hidden, weight, bias)
        ctx.gradients = gradients
        ctx.mark_non_differentiable(logp)
        return loss, logp

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        scale = grads[0]
        scaled = tuple(None if g is None else g * scale.to(g.dtype) for g in ctx.gradients)
        ctx.gradients = None  # one backward: free the [V, H] gradient at once
        return (*scaled, None, None, None, None)


class _HeadGradients:
    """Accumulates d(-sum w log pi) with respect to hidden states, head weight and bias. Consumes `logits` in place."""

    def __init__(self, hidden: Tensor, w: Tensor, need_hidden: bool, need_weight: bool, need_bias: bool) -> None:
        self.w = w
        self.hidden = torch.zeros_like(hidden, dtype=w.dtype) if need_hidden else None
        self.weight = torch.zeros_like(w) if need_weight else None
        self.bias = w.new_zeros(len(w)) if need_bias else None

    def add(self, part: slice, rows: Tensor, logits: Tensor, norm: Tensor, targets: Tensor, weight: Tensor) -> None:
        if self.hidden is None and self.weight is None and self.bias is None:
            return
        # d(-w log pi_a)/d logits = w (softmax - onehot_a)
        grad = logits.sub_(norm[:, None]).exp_().mul_(weight[:, None])
        grad[torch.arange(len(targets), device=targets.device), targets] -= weight
        if self.hidden is not None:
            self.hidden[part] = grad @ self.w
        if self.weight is not None:
            self.weight.addmm_(grad.T, rows)
        if self.bias is not None:
            self.bias += grad.sum(0)

    def cast(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor | None, ...]:
        pairs = ((self.hidden, hidden), (self.weight, weight), (self.bias, bias))
        return tuple(None if g is None or like is None else g.to(like.dtype) for g, like in pairs)


@contextlib.contextmanager
def _plainly(hidden: Tensor, precision: str) -> Iterator[None]:
    with torch.autocast(hidden.device.type, enabled=False), head_products(hidden.device, precision):
        yield


def _compute_dtype(hidden: Tensor) -> torch.dtype:
    return torch.promote_types(hidden.dtype, torch.float32)


def _chunks(rows: int, chunk: int) -> list[slice]:
    return [slice(start, min(start + chunk, rows)) for start in range(0, rows, chunk)]


def _logits(rows: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    return rows @ w.T if b is None else torch.addmm(b, rows, w.T)


def _pick(logits: Tensor, targets: Tensor) -> Tensor:
    return logits.gather(-1, targets[:, None]).squeeze(-1)


def action_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None = None,
    *,
    logit_budget: int = 0,
    precision: str = "auto",
) -> Tensor:
    """log pi(target) per row. hidden [K, H] at the positions that *predict* the targets [K]; result [K], fp32."""
    return _Logprobs.apply(hidden, weight, bias, targets, chunk_rows(weight, logit_budget), precision)


def weighted_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    weight_fn: WeightFn,
    bias: Tensor | None = None,
    *,
    logit_budget: int = 0,
    precision: str = "auto",
) -> tuple[Tensor, Tensor]:
    """(loss, log pi [K]): loss = -sum_k sg(weight_fn(log pi)_k) log pi_k, differentiable in hidden and head; one
    backward only. log pi carries no gradient."""
    return _WeightedLogprobs.apply(
        hidden, weight, bias, targets, weight_fn, chunk_rows(weight, logit_budget), precision
    )
