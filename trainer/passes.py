"""Passes of a model over the batch's micro-batches: read values or log-probabilities, or take one optimizer step.

Promises: micro-batches add up under the one denominator that is passed in, so their split changes nothing; every one
takes the same forward and backward path, also with no token to train; results lie on the batch's action axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trainer.config import StepConfig
from trainer.critic import Critic
from trainer.logprobs import action_logprobs, body_of, head_of, hidden_states, weighted_logprobs
from trainer.objective import TokenTerms, token_terms, value_loss
from trainer.optim import clipped_step, set_rate
from trainer.packing import ActionAxis, MicroBatch
from trainer.precision import autocast
from trainer.unfit import blamed_on


@dataclass(frozen=True)
class CriticUpdate:
    loss: float
    grad_norm: float
    values: Tensor
    """[N] float32: before the optimizer step."""


@dataclass(frozen=True)
class ActorUpdate:
    loss: float
    grad_norm: float
    logprobs: Tensor
    """[N]: before the optimizer step."""
    terms: TokenTerms


@torch.no_grad()
def read_values(critic: Critic, micro: Sequence[MicroBatch], size: int, precision: str = "auto") -> Tensor:
    """[size] values at the micro-batches' slots; 0 where none reads."""
    head = critic.head.weight
    values = torch.zeros(size, dtype=head.dtype, device=head.device)
    for part in micro:
        with blamed_on(part), autocast(head.device, precision):
            values[part.slots] = critic(part.tokens, part.gather)
    return values


@torch.no_grad()
def read_logprobs(policy: nn.Module, axis: ActionAxis, micro: Sequence[MicroBatch], config: StepConfig) -> Tensor:
    """[N] log pi(a_t) of the trainer's policy now."""
    weight, bias = head_of(policy)
    logprobs = torch.zeros(len(axis), dtype=torch.promote_types(weight.dtype, torch.float32), device=weight.device)
    for part in micro:
        with blamed_on(part):
            with autocast(weight.device, config.precision):
                hidden = part.rows(hidden_states(body_of(policy), part.tokens))
            logprobs[part.slots] = action_logprobs(
                hidden,
                weight,
                axis.tokens[part.slots],
                bias,
                logit_budget=config.packing.logit_budget,
                precision=config.precision,
            )
    return logprobs


def accumulate_value_gradient(
    critic: Critic,
    micro: Sequence[MicroBatch],
    targets: Tensor,
    denominator: int,
    precision: str = "auto",
    counted: Tensor | None = None,
) -> tuple[float, Tensor]:
    """Add the gradient of 0.5 sum (V - target)^2 / denominator; returns that loss and the values [N]. `counted` [N]
    bool: the tokens of the sum, None for all; the denominator is the caller's either way."""
    head = critic.head.weight
    values = torch.zeros(len(targets), dtype=head.dtype, device=head.device)
    total = torch.zeros((), dtype=torch.float64, device=head.device)
    for part in micro:
        with blamed_on(part):
            with autocast(head.device, precision):
                predicted = critic(part.tokens, part.gather)
            chosen = slice(None) if counted is None else counted[part.slots]
            loss = value_loss(predicted[chosen], targets[part.slots][chosen], denominator)
            loss.backward()
        values[part.slots] = predicted.detach()
        total += loss.detach()
    return float(total), values


def accumulate_policy_gradient(
    policy: nn.Module,
    axis: ActionAxis,
    micro: Sequence[MicroBatch],
    advantages: Tensor,
    old: Tensor | None,
    denominator: int,
    config: StepConfig,
) -> tuple[float, Tensor, TokenTerms]:
    """Add the gradient of the objective / denominator; returns its value, log pi [N] and the token terms [N].

    `old` [N] is what ratios are taken against; None: the policy itself at this moment (ratio 1, "latest")."""
    body, (weight, bias) = body_of(policy), head_of(policy)
    logprobs = torch.zeros(len(axis), dtype=torch.promote_types(weight.dtype, torch.float32), device=weight.device)
    for part in micro:
        part_advantages = advantages[part.slots]
        part_old = None if old is None else old[part.slots]

        def weigh(logp: Tensor, rows: slice, a: Tensor = part_advantages, o: Tensor | None = part_old) -> Tensor:
            return token_terms(logp, logp if o is None else o[rows], a[rows], config.objective).weight / denominator

        with blamed_on(part):
            with autocast(weight.device, config.precision):
                hidden = part.rows(hidden_states(body, part.tokens))
            loss, part_logprobs = weighted_logprobs(
                hidden,
                weight,
                axis.tokens[part.slots],
                weigh,
                bias,
                logit_budget=config.packing.logit_budget,
                precision=config.precision,
            )
            loss.backward()
        logprobs[part.slots] = part_logprobs
    terms = token_terms(logprobs, logprobs if old is None else old, advantages, config.objective)
    return float(terms.loss.to(torch.float64).sum() / denominator), logprobs, terms


def critic_update(
    critic: Critic,
    optimizer: torch.optim.Optimizer,
    micro: Sequence[MicroBatch],
    targets: Tensor,
    *,
    denominator: int,
    rate: float,
    max_grad_norm: float,
    precision: str = "auto",
    counted: Tensor | None = None,
) -> CriticUpdate:
    """One optimizer step of the critic against fixed targets [N] (value pretraining uses it as it is)."""
    set_rate(optimizer, rate)
    loss, values = accumulate_value_gradient(critic, micro, targets, denominator, precision, counted)
    norm = clipped_step(critic, optimizer, max_grad_norm)
    return CriticUpdate(loss, norm, values)


def actor_update(
    policy: nn.Module,
    optimizer: torch.optim.Optimizer,
    axis: ActionAxis,
    micro: Sequence[MicroBatch],
    advantages: Tensor,
    old: Tensor | None,
    config: StepConfig,
    *,
    denominator: int,
    rate: float,
) -> ActorUpdate:
    """One optimizer step of the policy."""
    set_rate(optimizer, rate)
    loss, logprobs, terms = accumulate_policy_gradient(policy, axis, micro, advantages, old, denominator, config)
    norm = clipped_step(policy, optimizer, config.policy_optimizer.max_grad_norm)
    return ActorUpdate(loss, norm, logprobs, terms)
