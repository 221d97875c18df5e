from __future__ import annotations

from collections.abc import Iterator

import pytest
from pydantic import BaseModel, ValidationError

from trainer.config import StepConfig


def test_paper_values_are_the_defaults() -> None:
    c = StepConfig()
    assert (c.objective.eps_low, c.objective.eps_high) == (0.8, 3.0)
    assert (c.advantage.alpha, c.advantage.lambda_critic, c.advantage.gamma) == (1.5, 1.0, 1.0)
    assert (c.critic.updates, c.critic.advantage_values) == (2, "fresh")
    assert (c.policy_optimizer.learning_rate, c.critic_optimizer.learning_rate) == (1e-6, 5e-6)
    assert (c.policy_optimizer.beta1, c.policy_optimizer.beta2) == (0.9, 0.98)
    assert (c.policy_optimizer.max_grad_norm, c.critic_optimizer.max_grad_norm) == (1.0, 10.0)
    assert (c.critic_only_steps, c.policy_optimizer.warmup_steps) == (10, 10)
    assert c.advantage.whitening == "off"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"temperature": 0.7}, "Sample training rollouts at temperature 1"),
        ({"top_p": 0.95}, "top_p 0.95"),
        ({"top_k": 50}, "Extra inputs"),
        ({"critic": {"freze": "none"}}, "Extra inputs"),
        ({"critic": {"updates": 0}}, "greater than or equal to 1"),
        ({"critic": {"freeze": "attention"}}, "full_except_attention"),
        ({"advantage": {"kind": "group"}}, "set critic_only_steps = 0"),
        ({"advantage": {"gamma": float("nan")}}, "finite"),
        ({"policy_optimizer": {"learning_rate": -1, "max_grad_norm": 1}}, "greater than 0"),
    ],
)
def test_refused(fields: dict[str, object], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        StepConfig.model_validate(fields)


def test_survives_its_own_dump() -> None:
    config = StepConfig.model_validate({"objective": {"name": "ppo_clip", "eps_low": 0.2}})
    assert StepConfig.model_validate_json(config.model_dump_json()) == config


def models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield model
    for field in model.model_fields.values():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from models(field.annotation)


def test_the_fields_that_need_a_unit_have_a_text() -> None:
    bare = {
        f"{model.__name__}.{name}"
        for model in models(StepConfig)
        for name, field in model.model_fields.items()
        if not field.description
        and not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel))
    }
    assert bare == set()
