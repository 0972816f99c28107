"""Replays: exact where the paper says so, not where it cannot be, and their pullbacks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from undelta.attacker.replay import Chain, ReplayPart
from undelta.attacker.replays import CoarseRollout, FullRollout, InterpolatedEpoch, OneStep, observed_update
from undelta.client.disclose import disclose, disclose_with_secrets
from undelta.client.scenario import Scenario
from undelta.errors import ConfigError
from undelta.observation import Observation
from undelta.updates import Update, along, inner

MODELS: dict[str, dict[str, object]] = {
    "cnn": {"width": 4, "hidden": 16},
    "convnet": {"width": 4},
    "vit": {"width": 8, "depth": 1, "heads": 2},
}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def scenario_of(epochs: int, batches: int, model: str = "cnn", **changes: object) -> Scenario:
    scenario = Scenario(
        data="digits",
        num_samples=8,
        model=model,
        model_arguments=MODELS.get(model, {}),
        epochs=epochs,
        batches=batches,
        learning_rate=0.05,
    )
    return replace(scenario, **changes)  # type: ignore[arg-type]


def observe(scenario: Scenario) -> tuple[Observation, Tensor, Tensor]:
    """An observation in float64, and the truth behind it in the order of the client's first epoch."""
    private = scenario.draw(0)
    observation, (run,) = disclose_with_secrets(private, scenario, dtype=torch.float64)
    order = run.orders[0]
    return observation, observation.image.normalize(private.images.double())[order], private.labels[order]


def gap(found: Update, expected: Update) -> float:
    """Relative distance of two updates."""
    difference = {name: found[name] - expected[name] for name in expected}
    return float((inner(difference, difference) / inner(expected, expected)).sqrt())


def replay_gap(part: ReplayPart, scenario: Scenario) -> float:
    observation, images, labels = observe(scenario)
    replay = part(observation, generator())
    return gap(replay(images, labels).update, replay.target)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("epochs", "batches"), [(1, 1), (3, 1), (1, 4)])
def test_rolling_out_the_private_batch_is_exact_in_scenarios_1_to_3(epochs: int, batches: int, model: str) -> None:
    assert replay_gap(FullRollout(), scenario_of(epochs, batches, model)) < 1e-10


@pytest.mark.parametrize("model", MODELS)
def test_rolling_out_the_private_batch_is_not_exact_in_scenario_4(model: str) -> None:
    assert replay_gap(FullRollout(), scenario_of(3, 4, model)) > 1e-5


def test_rolling_out_an_uneven_epoch_is_exact() -> None:
    assert replay_gap(FullRollout(), scenario_of(1, 3)) < 1e-10


def test_rolling_out_batch_norm_in_eval_mode_is_exact() -> None:
    assert replay_gap(FullRollout(), scenario_of(1, 4, "convnet", norm_mode="eval")) < 1e-10


def test_rolling_out_from_a_later_round_is_exact() -> None:
    assert replay_gap(FullRollout(), scenario_of(1, 4, "convnet", rounds=2, clients=2, participants=2)) < 1e-10


def test_in_scenario_3_another_order_does_not_explain_the_update() -> None:
    observation, images, labels = observe(scenario_of(1, 4))
    replay = FullRollout()(observation, generator())
    assert gap(replay(images.flip(0), labels.flip(0)).update, replay.target) > 1e-5


class Tied(nn.Module):
    """An encoder and a decoder that share their weights."""

    def __init__(self) -> None:
        super().__init__()
        self.flatten = nn.Flatten()
        self.first = nn.Linear(64, 64)
        self.second = nn.Linear(64, 64)
        self.second.weight = self.first.weight
        self.head = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.second(torch.tanh(self.first(self.flatten(images)))))
        return logits


class Frozen(nn.Module):
    """A first layer that the client does not train."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 8).requires_grad_(False), nn.Tanh(), nn.Linear(8, 10))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.body(images)
        return logits


class WithConstant(nn.Module):
    """A constant that is no part of the state: a buffer that is not saved, as position encodings often are."""

    constant: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        self.register_buffer("constant", torch.linspace(0.5, 2, 10), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.body(images) * self.constant
        return logits


class WithPlainTensor(nn.Module):
    """A constant that is not even a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        self.constant = torch.linspace(0.5, 2, 10)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.body(images) * self.constant
        return logits


@pytest.mark.parametrize("builder", [Tied, Frozen, WithConstant, WithPlainTensor])
def test_rolling_out_a_custom_model_is_exact(builder: type[nn.Module]) -> None:
    assert replay_gap(FullRollout(), scenario_of(3, 1, f"{__name__}:{builder.__name__}")) < 1e-10


def test_the_targets_of_all_interpolated_epochs_sum_to_the_observed_update() -> None:
    observation, _, _ = observe(scenario_of(3, 4))
    _, _, update = observed_update(observation)
    targets = [InterpolatedEpoch(position=epoch / 3)(observation, generator()).target for epoch in range(3)]
    total = {name: sum((target[name] for target in targets), torch.zeros_like(update[name])) for name in update}
    assert gap(total, update) < 1e-12


def test_the_observed_update_is_the_difference_of_the_states() -> None:
    observation, _, _ = observe(scenario_of(3, 4, "convnet"))
    _, start, update = observed_update(observation)
    assert not any("running" in name for name in update)
    for name, value in update.items():
        assert torch.equal(start[name], observation.initial[name])
        assert torch.equal(value, observation.received[name] - observation.initial[name])


@pytest.mark.parametrize("part", [InterpolatedEpoch, OneStep])
@pytest.mark.parametrize("position", [0.0, 0.25, 1.0])
def test_a_position_is_a_point_between_the_initial_and_the_received_model(
    part: type[InterpolatedEpoch] | type[OneStep], position: float
) -> None:
    observation, _, _ = observe(scenario_of(3, 4))
    start = part(position=position)(observation, generator()).start
    for name, value in start.items():
        expected = (1 - position) * observation.initial[name] + position * observation.received[name]
        torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-14)


def test_an_interpolated_epoch_is_one_epoch_of_the_clients_steps() -> None:
    observation, _, _ = observe(scenario_of(3, 4))
    plan = InterpolatedEpoch()(observation, generator()).plan
    assert [indices.tolist() for indices, _ in plan] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert [rate for _, rate in plan] == [0.05] * 4


def test_a_single_interpolated_epoch_is_the_full_rollout() -> None:
    assert replay_gap(InterpolatedEpoch(), scenario_of(1, 4)) < 1e-10


def test_one_step_at_the_start_is_a_coarse_rollout_of_one_step() -> None:
    observation, images, labels = observe(scenario_of(3, 4))
    one = OneStep(position=0.0)(observation, generator())(images, labels)[0]
    coarse = CoarseRollout(steps=1)(observation, generator())(images, labels)[0]
    assert gap(one, coarse) < 1e-14


def test_a_coarse_rollout_of_e_full_batch_steps_is_the_full_rollout() -> None:
    observation, images, labels = observe(scenario_of(3, 1))
    coarse = CoarseRollout(steps=3)(observation, generator())(images, labels)[0]
    full = FullRollout()(observation, generator())(images, labels)[0]
    assert gap(coarse, full) < 1e-12


@pytest.mark.parametrize("part", [FullRollout(), OneStep(position=0.5), CoarseRollout(steps=5)])
def test_replays_of_the_whole_training_are_as_long_as_the_clients_path(part: ReplayPart) -> None:
    observation, _, _ = observe(scenario_of(3, 4))
    replay = part(observation, generator())
    assert isinstance(replay, Chain)
    assert sum(rate for _, rate in replay.plan) == pytest.approx(0.05 * 3 * 4)
    assert observation.path_length == pytest.approx(0.05 * 3 * 4)


def test_hidden_orders_are_the_attackers_own_and_cover_every_epoch() -> None:
    observation, _, _ = observe(scenario_of(6, 4))
    plans = [FullRollout()(observation, generator(seed)).plan for seed in (0, 0, 1)]
    orders = [[index for indices, _ in plan for index in indices.tolist()] for plan in plans]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]
    assert all(sorted(orders[0][8 * epoch : 8 * epoch + 8]) == list(range(8)) for epoch in range(6))
    assert orders[0][:8] == list(range(8))


@pytest.mark.parametrize(("epochs", "position"), [(1, 0.0), (2, 0.25), (8, 3.5 / 8)])
def test_the_middle_epoch_lies_around_half_of_the_path(epochs: int, position: float) -> None:
    scenario = scenario_of(epochs, 2, "lenet")
    observation = disclose(scenario.draw(0), scenario, dtype=torch.float64)
    middle, there = (InterpolatedEpoch(position=where)(observation, generator()) for where in ("middle", position))
    torch.testing.assert_close(middle.start, there.start)


@pytest.mark.parametrize("soft", [False, True], ids=["class labels", "soft labels"])
@pytest.mark.parametrize(
    "part",
    [
        FullRollout(),
        InterpolatedEpoch(position=0.0),
        InterpolatedEpoch(position="middle"),
        OneStep(position=0.5),
        CoarseRollout(steps=3),
    ],
    ids=lambda part: f"{type(part).__name__} {getattr(part, 'position', '')}",
)
def test_a_pullback_agrees_with_finite_differences(part: ReplayPart, soft: bool) -> None:
    scenario = replace(scenario_of(2, 3, "lenet"), num_samples=5, learning_rate=0.5)
    observation = disclose(scenario.draw(0), scenario, dtype=torch.float64)
    replay, draws = part(observation, generator()), generator(1)

    def draw(shape: torch.Size | tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=draws, dtype=torch.float64)

    images, direction = draw((5, 1, 8, 8)), draw((5, 1, 8, 8))
    labels = draw((5, 10)).softmax(1) if soft else torch.tensor([3, 1, 4, 1, 5])
    label_direction = draw((5, 10)) if soft else torch.zeros(5, dtype=torch.int64)
    cotangent = {name: draw(value.shape) for name, value in replay.start.items()}
    pulled = replay(images, labels).pullback(cotangent)
    slope = float((pulled.images * direction).sum())
    if soft:
        assert pulled.labels is not None
        slope += float((pulled.labels * label_direction).sum())
    else:
        assert pulled.labels is None
    h = 1e-4
    ends = []
    for sign in (1, -1):
        moved = labels + sign * h * label_direction if soft else labels
        ends.append(float(inner(replay(images + sign * h * direction, moved).update, cotangent)))
    assert abs(slope) > 1e-6
    assert slope == pytest.approx((ends[0] - ends[1]) / (2 * h), rel=1e-5)


@pytest.mark.parametrize("position", [-0.1, 1.1, float("nan")])
def test_positions_outside_the_path_are_errors(position: float) -> None:
    with pytest.raises(ConfigError, match="position"):
        InterpolatedEpoch(position=position)
    with pytest.raises(ConfigError, match="position"):
        OneStep(position=position)


def test_a_coarse_rollout_needs_a_step() -> None:
    with pytest.raises(ConfigError, match="steps"):
        CoarseRollout(steps=0)


def test_the_line_between_two_models_ends_at_both() -> None:
    observation, _, _ = observe(scenario_of(3, 4))
    _, start, update = observed_update(observation)
    assert gap(along(start, update, 1.0), {name: observation.received[name] for name in start}) < 1e-14
