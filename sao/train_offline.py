"""Training from a log alone: `sao pretrain-value`, and `sao replay --train exact|offpolicy`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from data.journal import Journal
from data.log import TrajectoryLog, read_logs
from sao.config import Config
from sao.guard import refuse_evaluation_run
from sao.paths import UserError, model_folder
from sao.run_kinds import LOGGED, TRAINING
from sao.rundir import find_run, read_config
from trainer.paths import TrainerPaths


def pretrain_value(config: Config, console: Console, logs: Sequence[Path], out: Path) -> Path:
    """Train a critic on trajectory logs and hand it over as `out`. Raises ValueDataError, GateError, CriticError."""
    import torch

    from agent.tokenizer import load_tokenizer
    from trainer.critic import Critic
    from trainer.precision import resolve
    from trainer.setup import choose_device, load_policy, model_hash
    from trainer.unfit import Limits
    from trainer.value_pretrain import ValueDataError, hand_over
    from trainer.value_pretrain import pretrain_value as fit

    if out.exists():
        raise UserError(f"{out} exists: a critic folder is written once. Choose another --out or remove it.")
    for log in logs:
        if (log.parent / "config.toml").is_file():
            refuse_evaluation_run(log.parent)
    model = model_folder(config.model.path)
    tokenizer = load_tokenizer(model).fingerprint
    torch.set_num_threads(config.train.threads)
    device = choose_device(config.train.device)
    policy = load_policy(model, device)
    value = config.value.model_copy(update={"precision": resolve(config.value.precision, device)})
    admitted = Limits.of(config.train.limits, policy)
    trajectories, refused = [], Counter[str]()
    for trajectory in read_logs(logs):
        refusal = admitted.refusal(trajectory, bootstraps=True)
        if refusal is not None and refusal[0].unfit:
            refused[str(refusal[0])] += 1
        else:
            trajectories.append(trajectory)
    left_out = "".join(f", left out: {count} {reason}" for reason, count in refused.items())
    console.print(f"{admitted}{left_out}", highlight=False)
    foreign = next((t for t in trajectories if t.identity.tokenizer != tokenizer), None)
    if foreign is not None:
        raise ValueDataError(
            f"episode {foreign.identity.episode_id} holds ids of another tokenizer than {model}: pass that log's model"
        )
    critic = Critic.from_policy(policy)
    passed = sum((t.outcome.reward or 0.0) >= 1.0 for t in trajectories)
    console.print(
        f"{len(trajectories)} trajectories, {passed} passed; {value.steps} steps on {device} in {value.precision}",
        highlight=False,
    )
    result = fit(critic, trajectories, value, say=lambda text: console.print(text, highlight=False))
    folder = hand_over(critic, result, out, tokenizer=tokenizer, base_model=model_hash(model), config=value)
    best = result.best
    console.print(
        f"held-out explained variance {best.explained_variance:.3f} (step {best.step}) on {result.held_out} "
        f"trajectories; critic: {folder}    use: sao train --critic {folder}",
        highlight=False,
    )
    return folder


def replay_training(
    run: str,
    console: Console,
    mode: str,
    *,
    control: str | None = None,
    limit: float = 0.2,
    steps: int | None = None,
    overrides: Sequence[str] = (),
) -> int:
    """Exit code 0; 1 when an exact replay does not end at the run's own weights."""
    import torch
    from safetensors.torch import load_file

    from sao.train_setup import critic_of
    from trainer.publish import WEIGHTS, WeightFolder
    from trainer.replay import recorded_steps, replay_exact, replay_offpolicy, weights_digest
    from trainer.setup import build_learner, choose_device, load_policy
    from trainer.statistics import StepMetrics
    from trainer.unfit import Limits

    folder = find_run(run, TRAINING if mode == "exact" else LOGGED)
    refuse_evaluation_run(folder)
    config = read_config(folder)
    train = config.train
    if overrides or control:
        if mode == "exact":
            raise UserError("An exact replay takes the run's own settings: leave --set and --control out.")
        train = _changed(config, overrides, control).train
    torch.set_num_threads(train.threads)
    learner = build_learner(
        load_policy(model_folder(config.model.path), choose_device(train.device)),
        train.resolved_step(),
        critic_folder=critic_of(config.model_copy(update={"train": train}), folder),
        say=lambda text: console.print(text, highlight=False),
    )

    def show(metrics: StepMetrics) -> None:
        reward = "—" if metrics.reward is None else f"{metrics.reward:.3f}"
        rejected = 100 * (metrics.rejected_share or 0.0)
        console.print(f"step {metrics.step}: reward {reward}, rejected {rejected:.2f} %", highlight=False)

    log = TrajectoryLog(folder / "log")
    if mode == "offpolicy":
        admitted = Limits.of(train.limits, learner.policy)
        report = replay_offpolicy(
            log.read(), learner, train.batch, limit=limit, admitted=admitted, max_steps=steps, on_step=show
        )
        mean = sum(report.rejected) / max(report.steps, 1)
        console.print(f"{report.steps} steps, rejected {100 * mean:.2f} % on average; weights {report.digest[:16]}")
        return 0
    if mode != "exact":
        raise UserError(f"--train {mode!r}: choose exact or offpolicy.")
    recorded = recorded_steps(Journal(TrainerPaths(folder).journal).read())
    wanted = {episode for step in recorded for episode in step.episodes}
    trajectories = {t.identity.episode_id: t for t in log.read() if t.identity.episode_id in wanted}
    report = replay_exact(recorded, trajectories, learner, config.train.settings_hash(), on_step=show)
    weights = WeightFolder(TrainerPaths(folder).weights)
    newest = weights.newest()
    if newest is None:
        raise UserError(f"{weights.directory} holds no version to compare with.")
    with weights.fetch(newest) as place:
        original = weights_digest(load_file(place / WEIGHTS))
    same = original == report.digest
    verdict = "bit-equal to" if same else "DIFFERENT from"
    console.print(
        f"{report.steps} steps replayed: weights {report.digest[:16]} are {verdict} {newest} ({original[:16]})"
    )
    return 0 if same else 1


def _changed(config: Config, overrides: Sequence[str], control: str | None) -> Config:
    from sao.config import apply_override, validate

    values = config.model_dump(mode="json", exclude_none=True)
    for override in [*overrides, *([f"train.control={control!r}"] if control else [])]:
        apply_override(values, override)
    return validate(Config, values, "the run's configuration with overrides")
