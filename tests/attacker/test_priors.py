"""Priors: total variation by hand, and what BatchNorm buffers tell of the client's batches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from inspect import signature

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from undelta.attacker import objective
from undelta.attacker.attacks import ATTACKS
from undelta.attacker.priors import (
    UNTOUCHED,
    BatchNormStatistics,
    ColorVariation,
    Off,
    OnMoments,
    Source,
    TotalVariation,
    batch_norm_targets,
    total_variation,
)
from undelta.attacker.replay import Chain
from undelta.attacker.replays import InterpolatedEpoch, OneStep
from undelta.client.disclose import disclose, disclose_with_secrets
from undelta.client.scenario import Scenario
from undelta.engine import Moments
from undelta.errors import ConfigError, MissingKnowledge
from undelta.observation import Observation


def cumulative_net() -> nn.Module:
    """A net whose BatchNorm averages over all batches it ever saw, and one with an odd momentum."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4, momentum=None),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, 6),
        nn.BatchNorm1d(6, momentum=0.35),
        nn.Linear(6, 10),
    )


def replay_of(observation: Observation, position: float = 0.0) -> Chain:
    return InterpolatedEpoch(position=position)(observation, torch.Generator().manual_seed(0))


def touched(observation: Observation) -> Observation:
    """The same, from a server whose running statistics are no longer those of a fresh network."""
    moved = {name: 0.1 for name in observation.initial if name.endswith(("running_mean", "running_var"))}
    return replace(observation, initial={k: v + moved.get(k, 0) for k, v in observation.initial.items()})


def penalty_of(
    prior: BatchNormStatistics, observation: Observation, replay: Chain, images: Tensor, labels: Tensor
) -> float:
    given = prior(observation, replay)
    assert isinstance(given, OnMoments)
    return float(replay(images, labels, {}, given.penalty).penalty)


@pytest.fixture
def normed() -> Scenario:
    return Scenario(
        data="digits",
        num_samples=6,
        model="convnet",
        model_arguments={"width": 4},
        epochs=2,
        batches=2,
        learning_rate=0.1,
    )


def test_total_variation_by_hand() -> None:
    image = torch.tensor([[0.0, 1.0, 1.0], [2.0, 4.0, 1.0]]).view(1, 1, 2, 3)
    assert float(total_variation(image)) == pytest.approx((2 + 3 + 0) / 3 + (1 + 0 + 2 + 3) / 4)


def test_a_flat_image_and_a_single_pixel_vary_nothing() -> None:
    assert float(total_variation(torch.full((2, 3, 4, 4), 0.7))) == 0
    assert float(total_variation(torch.rand(2, 3, 1, 1))) == 0
    assert float(total_variation(torch.tensor([[0.0, 2.0]]).view(1, 1, 1, 2))) == 2


def test_total_variation_is_weighted(observation: Observation) -> None:
    images = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    penalty = TotalVariation(weight=0.25)(observation, replay_of(observation))
    torch.testing.assert_close(penalty(images, torch.zeros(5)), 0.25 * total_variation(images))


def test_color_varies_at_three_times_the_price_of_lightness() -> None:
    scenario = Scenario(data="photos", image_size=8, num_samples=1, model="mlp", epochs=1, batches=1)
    observation = disclose(scenario.draw(0), scenario)
    replay = replay_of(observation)
    plain, colored = TotalVariation(weight=1.0)(observation, replay), ColorVariation(weight=0.5)(observation, replay)
    grey = torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(0)).expand(1, 3, 8, 8)
    red_blue = grey * torch.tensor([1.0, 0.0, -1.0]).view(1, 3, 1, 1)
    none = torch.zeros(1)
    # Of three axes one varies: the mean over channels has a third of it, at the length of its axis.
    variation = float(plain(grey, none))
    assert float(colored(grey, none)) == pytest.approx(0.5 * variation * math.sqrt(3) / 3)
    assert float(colored(red_blue, none)) == pytest.approx(0.5 * variation * 3 * math.sqrt(2) / 3)
    darker = ColorVariation(weight=0.5, lightness=0.2, chroma=1.0)(observation, replay)
    assert float(darker(grey, none)) == pytest.approx(0.2 * float(colored(grey, none)))
    assert float(darker(red_blue, none)) == pytest.approx(float(colored(red_blue, none)) / 3)


def test_a_grey_image_has_plain_variation(observation: Observation) -> None:
    images = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    penalty = ColorVariation(weight=0.25)(observation, replay_of(observation))
    torch.testing.assert_close(penalty(images, torch.zeros(5)), 0.25 * total_variation(images))


def true_statistics(scenario: Scenario) -> tuple[Observation, dict[str, list[tuple[Tensor, Tensor]]]]:
    """An observation, and the mean and variance of each BatchNorm's input in each step of the true training."""
    private = scenario.draw(0)
    observation, (run,) = disclose_with_secrets(private, scenario, dtype=torch.float64)
    model = observation.model().train()
    seen: dict[str, list[tuple[Tensor, Tensor]]] = {}

    def note(name: str, inputs: Tensor) -> None:
        values = inputs.detach().transpose(0, 1).flatten(1)  # (C, N·H·W)
        seen.setdefault(name, []).append((values.mean(1), values.var(1)))

    for name, module in model.named_modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.register_forward_pre_hook(lambda _, inputs, name=name: note(name, inputs[0]))
    optimizer = torch.optim.SGD(model.parameters(), lr=scenario.learning_rate)
    images = observation.image.normalize(private.images.double())
    for order in run.orders:
        for batch in order.split(list(scenario.training.sizes(len(private)))):
            optimizer.zero_grad()
            F.cross_entropy(model(images[batch]), private.labels[batch]).backward()
            optimizer.step()
    return observation, seen


def weighted_mean(values: list[Tensor], momentum: float | None) -> Tensor:
    if momentum is None:
        return torch.stack(values).mean(0)
    shares = [momentum * (1 - momentum) ** age for age in reversed(range(len(values)))]
    return torch.stack([share / sum(shares) * value for share, value in zip(shares, values, strict=True)]).sum(0)


@pytest.mark.parametrize("rounds", [0, 1])
@pytest.mark.parametrize("model", ["convnet", f"{__name__}:cumulative_net"])
def test_the_clients_buffers_reveal_the_weighted_statistics_of_its_batches(
    normed: Scenario, model: str, rounds: int
) -> None:
    arguments = {"width": 4} if model == "convnet" else {}
    observation, seen = true_statistics(replace(normed, model=model, model_arguments=arguments, rounds=rounds))
    targets = batch_norm_targets(observation, "client")
    norms = {
        name: module
        for name, module in observation.model().named_modules()
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)
    }
    assert set(targets) == set(seen) == set(norms)
    for name, (mean, variance) in targets.items():
        momentum = norms[name].momentum
        assert len(seen[name]) == 4
        torch.testing.assert_close(mean, weighted_mean([m for m, _ in seen[name]], momentum), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(variance, weighted_mean([v for _, v in seen[name]], momentum), rtol=1e-9, atol=1e-9)


def test_the_servers_statistics_are_its_own_buffers(normed: Scenario) -> None:
    observation = disclose(normed.draw(0), replace(normed, rounds=1))
    for name, (mean, variance) in batch_norm_targets(observation, "server").items():
        assert torch.equal(mean, observation.initial[f"{name}.running_mean"])
        assert torch.equal(variance, observation.initial[f"{name}.running_var"])


def test_buffers_that_did_not_move_reveal_nothing(normed: Scenario) -> None:
    observation = disclose(normed.draw(0), replace(normed, norm_mode="eval"))
    prior = BatchNormStatistics(weight=1.0, source="client")
    with pytest.raises(MissingKnowledge, match="server's"):
        prior(observation, replay_of(observation))
    BatchNormStatistics(weight=1.0, source="server")(observation, replay_of(observation))


def test_the_true_data_meet_the_clients_statistics_when_it_takes_one_step(normed: Scenario) -> None:
    private = normed.draw(0)
    observation = disclose(private, replace(normed, epochs=1, batches=1), dtype=torch.float64)
    prior, replay = BatchNormStatistics(weight=1.0, source="client"), replay_of(observation)
    truth = observation.image.normalize(private.images.double())
    assert penalty_of(prior, observation, replay, truth, private.labels) < 1e-9
    assert penalty_of(prior, observation, replay, truth.flip(1, 2), private.labels) > 1e-3


@pytest.mark.parametrize("index", range(6))
def test_every_mini_batch_counts_in_the_penalty(normed: Scenario, index: int) -> None:
    private = normed.draw(0)
    observation = touched(disclose(private, normed))
    images = observation.image.normalize(private.images)
    prior, replay = BatchNormStatistics(weight=1.0), replay_of(observation)
    before = penalty_of(prior, observation, replay, images, private.labels)
    images[index] *= 0.5
    assert penalty_of(prior, observation, replay, images, private.labels) != pytest.approx(before, rel=1e-6)


def test_the_penalty_is_the_mean_over_mini_batches_each_at_its_own_point(normed: Scenario) -> None:
    private = normed.draw(0)
    observation = touched(disclose(private, normed, dtype=torch.float64))
    images, labels = observation.image.normalize(private.images.double()), private.labels
    prior, replay = BatchNormStatistics(weight=2.0), replay_of(observation)
    first, second = replay.plan
    moved = replace(replay, plan=(first,))(images, labels).update
    after = {name: value + moved[name] for name, value in replay.start.items()}
    halves = [
        penalty_of(prior, observation, replace(replay, plan=(first,)), images, labels),
        penalty_of(prior, observation, replace(replay, plan=(second,), start=after), images, labels),
    ]
    whole = penalty_of(prior, observation, replay, images, labels)
    assert whole == pytest.approx(sum(halves) / 2)


def test_the_penalty_comes_back_with_a_gradient_and_changes_no_buffer(normed: Scenario) -> None:
    private = normed.draw(0)
    observation = touched(disclose(private, normed))
    replay = replay_of(observation)
    before = {name: tensor.clone() for name, tensor in replay.network.model.state_dict().items()}
    images = observation.image.normalize(private.images)
    given = BatchNormStatistics(weight=1.0)(observation, replay)
    assert isinstance(given, OnMoments)
    update, _, pullback = replay(images, private.labels, {}, given.penalty)
    nothing = {name: torch.zeros_like(value) for name, value in update.items()}
    gradient = pullback(nothing).images  # nothing to match: all of it is the prior's
    assert torch.isfinite(gradient).all()
    assert all(part.any() for part in gradient)
    after = replay.network.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("source", ["server", "auto"])
def test_statistics_of_a_fresh_network_switch_the_prior_off(normed: Scenario, source: Source) -> None:
    observation = disclose(normed.draw(0), replace(normed, norm_mode="eval"))
    given = BatchNormStatistics(weight=1.0, source=source)(observation, replay_of(observation))
    assert given == Off(UNTOUCHED)


def test_the_clients_own_statistics_are_a_target_even_if_the_servers_are_untouched(normed: Scenario) -> None:
    observation = disclose(normed.draw(0), normed)
    given = BatchNormStatistics(weight=1.0, source="auto")(observation, replay_of(observation))
    assert isinstance(given, OnMoments)


def test_only_untouched_layers_are_left_out(normed: Scenario) -> None:
    observation = disclose(normed.draw(0), replace(normed, norm_mode="eval"))
    first, *_ = batch_norm_targets(observation, "server")
    initial = {**observation.initial, f"{first}.running_mean": observation.initial[f"{first}.running_mean"] + 1}
    seen = replace(observation, initial=initial)
    private = normed.draw(0)
    images = seen.image.normalize(private.images)
    replay = OneStep()(seen, torch.Generator())
    moments: dict[str, Moments] = {}

    def look(found: Mapping[str, Moments]) -> Tensor:
        moments.update(found)
        return next(iter(found.values())).mean.sum() * 0

    replay(images, private.labels, {}, look)
    mean, variance = moments[first].mean, moments[first].variance
    alone = (mean - 1).norm() + (variance - 1).norm()
    whole = penalty_of(BatchNormStatistics(weight=1.0), seen, replay, images, private.labels)
    assert whole == pytest.approx(float(alone.detach()), rel=1e-5)


@pytest.mark.parametrize("name", [name for name, attack in ATTACKS.items() if "bn" in signature(attack).parameters])
def test_every_attack_with_the_prior_says_that_it_is_off(normed: Scenario, name: str) -> None:
    observation = disclose(normed.draw(0), replace(normed, norm_mode="eval", batches=1))
    small = {"steps": 2, **({"rollout_steps": 1} if name == "strongest" else {})}
    told, silent = ATTACKS[name](**small, bn=0.1)(observation), ATTACKS[name](**small, bn=0.0)(observation)
    assert told.notes == (UNTOUCHED,)
    assert silent.notes == ()
    assert torch.equal(told.images, silent.images)


def test_the_note_is_logged_once(normed: Scenario, caplog: pytest.LogCaptureFixture) -> None:
    objective._log_once.cache_clear()
    observation = disclose(normed.draw(0), replace(normed, norm_mode="eval"))
    for seed in (0, 1):
        ATTACKS["awa"](steps=1, restarts=2)(observation, seed=seed)
    assert [record.getMessage() for record in caplog.records] == [UNTOUCHED]


@pytest.mark.parametrize("source", ["server", "client"])
def test_a_net_without_batch_norm_has_no_such_penalty(observation: Observation, source: Source) -> None:
    assert BatchNormStatistics(weight=1.0, source=source)(observation, replay_of(observation)) is None


def test_a_single_value_per_channel_leaves_the_penalty_finite() -> None:
    # In eval mode BatchNorm takes mini-batches of one; on its deepest 1 x 1 maps no variance is defined.
    normed = Scenario(
        data="digits",
        image_size=4,
        num_samples=2,
        model="convnet",
        model_arguments={"width": 4},
        epochs=1,
        batches=2,
        norm_mode="eval",
    )
    private = normed.draw(0)
    observation = touched(disclose(private, normed))
    images = observation.image.normalize(private.images)
    prior = BatchNormStatistics(weight=1.0)
    assert math.isfinite(penalty_of(prior, observation, replay_of(observation), images, private.labels))


def test_statistics_are_taken_where_the_replay_starts(normed: Scenario) -> None:
    private = normed.draw(0)
    observation = touched(disclose(private, normed))
    images = observation.image.normalize(private.images)
    prior = BatchNormStatistics(weight=1.0)
    ends = [
        penalty_of(
            prior, observation, OneStep(position=position)(observation, torch.Generator()), images, private.labels
        )
        for position in (0.0, 1.0)
    ]
    assert ends[0] != pytest.approx(ends[1], rel=1e-4)


def test_an_unknown_source_is_an_error() -> None:
    with pytest.raises(ConfigError, match="source"):
        BatchNormStatistics(weight=1.0, source="oracle")  # type: ignore[arg-type]
