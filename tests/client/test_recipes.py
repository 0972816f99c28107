"""Clients as they really train: undelta's client against a loop of torch's own optimizers, in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from undelta.client.augment import augmented
from undelta.client.disclose import disclose, disclose_with_secrets
from undelta.client.local import train
from undelta.client.private import Private
from undelta.client.scenario import Scenario
from undelta.client.sgd import trained
from undelta.errors import ConfigError, ObservationError
from undelta.models import build
from undelta.observation import ImageSpec
from undelta.training import LocalTraining
from undelta.updates import parameters_of

IMAGE = ImageSpec(shape=(1, 4, 4), mean=(0.5,), std=(0.25,), classes=3)
SMALL: dict[str, Any] = {
    "data": "digits",
    "num_samples": 5,
    "model_arguments": {"width": 4, "hidden": 8},
    "epochs": 2,
    "batches": 2,
}


def make_model() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build("cnn", {"width": 2, "hidden": 4}, shape=IMAGE.shape, classes=IMAGE.classes).double()


def make_private() -> Private:
    images = torch.rand(5, *IMAGE.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return Private(images=images, labels=torch.tensor([0, 1, 2, 0, 1]))


def looped(
    model: nn.Module,
    orders: tuple[Tensor, ...],
    sizes: list[int],
    make: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    *,
    clip: float | None = None,
    proximal: float = 0.0,
    smoothing: float = 0.0,
) -> dict[str, Tensor]:
    """What anyone would write in a Flower client."""
    private, model = make_private(), copy.deepcopy(model)
    optimizer = make(trained(model))
    start = [parameter.detach().clone() for parameter in trained(model)]
    criterion = nn.CrossEntropyLoss(label_smoothing=smoothing)
    for order in orders:
        for batch in order.split(sizes):
            optimizer.zero_grad()
            loss = criterion(model(IMAGE.normalize(private.images[batch])), private.labels[batch])
            for parameter, first in zip(trained(model), start, strict=True):
                loss = loss + proximal / 2 * (parameter - first).square().sum()
            loss.backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(trained(model), clip)
            optimizer.step()
    return dict(parameters_of(model))


CLIENTS: dict[str, tuple[dict[str, Any], Callable[[Any], torch.optim.Optimizer], dict[str, Any]]] = {
    "momentum and weight decay": (
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
        lambda values: torch.optim.SGD(values, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
        {},
    ),
    "AdamW": (
        {"optimizer": "adamw", "weight_decay": 0.1},
        lambda values: torch.optim.AdamW(values, lr=0.1, weight_decay=0.1),
        {},
    ),
    "clipped FedProx, smoothed labels": (
        {"clip_norm": 0.3, "proximal": 1.0, "label_smoothing": 0.1},
        lambda values: torch.optim.SGD(values, lr=0.1),
        {"clip": 0.3, "proximal": 1.0, "smoothing": 0.1},
    ),
    "a loader that drops its last mini-batch": (
        {"batch_size": 2, "drop_last": True},
        lambda values: torch.optim.SGD(values, lr=0.1),
        {},
    ),
}


@pytest.mark.parametrize(("settings", "make", "extra"), CLIENTS.values(), ids=CLIENTS.keys())
def test_a_client_moves_as_a_loop_around_torchs_optimizer_does(
    settings: dict[str, Any], make: Callable[[Any], torch.optim.Optimizer], extra: dict[str, Any]
) -> None:
    model = make_model()
    training = LocalTraining(**{"epochs": 3, "batches": 2, "learning_rate": 0.1, **settings})
    run = train(model, make_private(), training, IMAGE, seed=("test",))
    expected = looped(model, run.orders, list(training.sizes(5)), make, **extra)
    for name, value in expected.items():
        assert (run.state[name] - value).abs().max() < 1e-12
        assert (value - parameters_of(model)[name]).abs().max() > 1e-6


def test_mini_batches_are_those_of_a_data_loader() -> None:
    for samples in range(2, 12):
        for drop in (False, True):
            data: Any = range(samples)
            loader = torch.utils.data.DataLoader(data, batch_size=3, drop_last=drop)
            training = LocalTraining(epochs=1, batches=1, learning_rate=0.1, batch_size=3, drop_last=drop)
            if samples == 2 and drop:
                with pytest.raises(ConfigError, match="do not fill one mini-batch"):
                    training.sizes(samples)
            else:
                assert training.sizes(samples) == tuple(len(batch) for batch in loader)


def test_a_batch_size_counts_the_mini_batches() -> None:
    scenario = Scenario(**SMALL, batch_size=2)
    assert scenario.batches == 3
    assert disclose(scenario.draw(0), scenario).training.sizes(5) == (2, 2, 1)
    observation, runs = disclose_with_secrets(scenario.draw(0), replace(scenario, drop_last=True))
    assert (observation.training.batches, len(runs[0].losses)) == (2, 4)
    with pytest.raises(ObservationError, match="make 3 mini-batches, but batches=2"):
        replace(observation, training=replace(observation.training, drop_last=False))


def test_only_some_parameters_are_trained_and_sent() -> None:
    scenario = Scenario(**SMALL, trained=("fc2",))
    observation = disclose(scenario.draw(0), scenario)
    assert set(observation.received) == {"fc2.weight", "fc2.bias"}
    assert set(parameters_of(observation.model())) == {"fc2.weight", "fc2.bias"}
    everything = disclose(scenario.draw(0), replace(scenario, trained=()))
    assert set(everything.received) == set(observation.initial)


def test_a_frozen_name_that_fits_nothing_is_an_error() -> None:
    scenario = Scenario(**SMALL, trained=("head",))
    with pytest.raises(ConfigError, match="trained: the model has no parameter or module 'head'"):
        disclose(scenario.draw(0), scenario)


def test_images_are_mirrored_and_cropped_within_black_padding() -> None:
    images = IMAGE.normalize(torch.rand(40, *IMAGE.shape, generator=torch.Generator().manual_seed(0)) + 1)
    training = LocalTraining(epochs=1, batches=1, learning_rate=0.1, flip=True)
    changed = augmented(images, training, IMAGE, torch.Generator().manual_seed(0))
    mirrored = [torch.equal(one, other.flip(2)) for one, other in zip(changed, images, strict=True)]
    same = [torch.equal(one, other) for one, other in zip(changed, images, strict=True)]
    assert all(a != b for a, b in zip(mirrored, same, strict=True))
    assert 5 < sum(mirrored) < 35
    cropped = augmented(images, replace(training, flip=False, crop=2), IMAGE, torch.Generator().manual_seed(0))
    assert cropped.shape == images.shape
    for one, other in zip(IMAGE.denormalize(cropped), IMAGE.denormalize(images), strict=True):
        black = one.abs() < 1e-6
        assert black.sum() + sum((value - other).abs().min() < 1e-5 for value in one[~black]) == one.numel()
    assert (IMAGE.denormalize(cropped).abs() < 1e-6).any()


def test_augmentation_changes_what_a_client_sends() -> None:
    plain, mirrored = (disclose(s.draw(0), s) for s in (Scenario(**SMALL), Scenario(**SMALL, flip=True)))
    assert not torch.equal(plain.received["fc2.weight"], mirrored.received["fc2.weight"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"momentum": 1.0}, "expected momentum in"),
        ({"nesterov": True}, "nesterov needs momentum"),
        ({"optimizer": "adam", "momentum": 0.9}, "momentum is of sgd"),
        ({"optimizer": "lamb"}, "unknown optimizer 'lamb'"),
        ({"drop_last": True}, "drop_last needs batch_size"),
        ({"clip_norm": 0.0}, "expected clip_norm > 0"),
        ({"loss": "l2", "label_smoothing": 0.1}, "label_smoothing is of cross_entropy"),
        ({"schedule": "exponential"}, r"expected schedule_end in \(0, 1\]"),
        ({"betas": (0.9, 1.0)}, "expected betas in"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Scenario(**SMALL, **settings)


@pytest.mark.parametrize("settings", [{"momentum": 0.9, "weight_decay": 0.1}, {"optimizer": "adam"}])
def test_dp_sgd_without_noise_and_with_a_wide_bound_moves_as_its_optimizer_does(settings: dict[str, Any]) -> None:
    scenario = Scenario(**{**SMALL, "num_samples": 4}, **settings)
    defense = {"defense": "dp_sgd", "noise_multiplier": 0.0, "norm": 1e6, "sampling": "shuffled"}
    private = scenario.draw(0)
    free, bound = (disclose(private, replace(scenario, defenses=d)) for d in ((), (defense,)))
    for name, value in free.received.items():
        torch.testing.assert_close(bound.received[name], value, rtol=1e-4, atol=1e-6)


def test_dp_sgd_refuses_what_it_cannot_account_for() -> None:
    defense = {"defense": "dp_sgd", "noise_multiplier": 1.0}
    with pytest.raises(ConfigError, match="dp_sgd cannot be combined with clip_norm, flip"):
        Scenario(**SMALL, flip=True, clip_norm=1.0, defenses=(defense,))
