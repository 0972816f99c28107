"""Replays: how an attacker turns dummy images into a dummy update, and pulls a cotangent back.

Every replay is SGD from some point over some plan of mini-batches, matched with some part of the observed
update u = θ⁺ − θ. The factories below differ in these three choices only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from undelta.errors import ConfigError
from undelta.observation import Observation
from undelta.training import Network, Step, rollout
from undelta.updates import Update, along, difference, parameters_of, scaled


class Gradients(NamedTuple):
    """Cotangents of the dummy data."""

    images: Tensor  # (N, C, H, W)
    labels: Tensor | None  # (N, classes) where the labels are soft


Pullback: TypeAlias = Callable[[Update], Gradients]


@dataclass(frozen=True, kw_only=True)
class Replay:
    """``update, pullback = replay(images, labels)``: a dummy update, and the way back from it."""

    network: Network
    start: Update
    plan: tuple[tuple[Tensor, float], ...]  # (indices of a mini-batch, its learning rate), in order
    target: Update  # what the dummy update is to equal

    def __call__(self, images: Tensor, labels: Tensor) -> tuple[Update, Pullback]:
        """The dummy update of these dummy data, and its pullback."""
        steps = [Step(images[indices], labels[indices], rate) for indices, rate in self.plan]
        update, pull = rollout(self.network, self.start, steps)

        def pullback(cotangent: Update) -> Gradients:
            pulled = pull(cotangent)
            image_gradient = torch.zeros_like(images)
            label_gradient = torch.zeros_like(labels) if labels.is_floating_point() else None
            for (indices, _), image_part, label_part in zip(self.plan, pulled.images, pulled.labels, strict=True):
                image_gradient.index_add_(0, indices, image_part)
                if label_gradient is not None and label_part is not None:
                    label_gradient.index_add_(0, indices, label_part)
            return Gradients(image_gradient, label_gradient)

        return update, pullback

    @property
    def batches(self) -> tuple[Tensor, ...]:
        """The mini-batches that cover the dummy images once: those of the first epoch."""
        seen = 0
        total = int(max(int(indices.max()) for indices, _ in self.plan)) + 1
        cover = []
        for indices, _ in self.plan:
            cover.append(indices)
            seen += len(indices)
            if seen >= total:
                break
        return tuple(cover)


class ReplayPart(Protocol):
    """Any callable that prepares a replay of an observation; the generator is the attacker's own."""

    def __call__(self, observation: Observation, generator: torch.Generator) -> Replay:
        """The replay."""


def observed_update(observation: Observation) -> tuple[Network, Update, Update]:
    """The network, θ and u of an observation."""
    model = observation.model()
    start = {name: value.clone() for name, value in parameters_of(model).items()}
    return (
        Network(model, observation.training),
        start,
        difference(observation.received, start, start),
    )


@dataclass(frozen=True, kw_only=True)
class FullRollout:
    """All E epochs of B mini-batches from θ, matched with u: exact in scenarios 1 to 3 (sec_different_EB).

    The order within the first epoch is no loss of generality, since dummy images have no order. From the second epoch
    on the client's shuffles are hidden, and random ones take their place.
    """

    def __call__(self, observation: Observation, generator: torch.Generator) -> Replay:
        """The replay."""
        network, start, update = observed_update(observation)
        training, device = observation.training, _device(update)
        plan: list[tuple[Tensor, float]] = []
        for epoch in range(training.epochs):
            order = torch.arange(observation.num_samples)
            if epoch > 0:
                order = torch.randperm(observation.num_samples, generator=generator)
            batches = order.to(device).split(list(training.sizes(observation.num_samples)))
            plan.extend((batch, training.learning_rate) for batch in batches)
        return Replay(network=network, start=start, plan=tuple(plan), target=update)


@dataclass(frozen=True, kw_only=True)
class InterpolatedEpoch:
    """One epoch of B mini-batches from θ + position·u, matched with u/E (AWA eq_model_update_approximate).

    Position 0 is the paper's choice, its first epoch; epoch e starts at position (e−1)/E. Along a curved path the mean
    gradient is met far better at the middle, position 0.5.
    """

    position: float = 0.0

    def __post_init__(self) -> None:
        _check_position(self.position)

    def __call__(self, observation: Observation, generator: torch.Generator) -> Replay:
        """The replay."""
        network, start, update = observed_update(observation)
        training = observation.training
        order = torch.arange(observation.num_samples, device=_device(update))
        batches = order.split(list(training.sizes(observation.num_samples)))
        return Replay(
            network=network,
            start=along(start, update, self.position),
            plan=tuple((batch, training.learning_rate) for batch in batches),
            target=scaled(update, 1 / training.epochs),
        )


@dataclass(frozen=True, kw_only=True)
class OneStep:
    """One full-batch step from θ + position·u as long as all E·B steps together, matched with u."""

    position: float = 0.0

    def __post_init__(self) -> None:
        _check_position(self.position)

    def __call__(self, observation: Observation, generator: torch.Generator) -> Replay:
        """The replay."""
        network, start, update = observed_update(observation)
        everything = torch.arange(observation.num_samples, device=_device(update))
        return Replay(
            network=network,
            start=along(start, update, self.position),
            plan=((everything, path_length(observation)),),
            target=update,
        )


@dataclass(frozen=True, kw_only=True)
class CoarseRollout:
    """The whole path from θ in a few full-batch macro-steps of length η·E·B/steps, matched with u.

    As the dummy images approach the truth, the simulated path approaches the client's; what remains is mini-batch
    noise, of second order in η. Too few steps for a long path show in the attacker's own mismatch.
    """

    steps: int

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ConfigError(f"expected steps >= 1, got steps={self.steps}")

    def __call__(self, observation: Observation, generator: torch.Generator) -> Replay:
        """The replay."""
        network, start, update = observed_update(observation)
        everything = torch.arange(observation.num_samples, device=_device(update))
        rate = path_length(observation) / self.steps
        return Replay(network=network, start=start, plan=((everything, rate),) * self.steps, target=update)


def path_length(observation: Observation) -> float:
    """η·E·B: the learning rates of all of the client's steps together."""
    training = observation.training
    return training.learning_rate * training.epochs * training.batches


def _check_position(position: float) -> None:
    if not 0 <= position <= 1:
        raise ConfigError(f"expected 0 <= position <= 1, got position={position}")


def _device(update: Update) -> torch.device:
    return next(iter(update.values())).device
