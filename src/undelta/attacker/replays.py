"""Replays: how an attacker turns dummy images into a dummy update, and pulls a cotangent back.

Every replay is SGD from some point over some plan of mini-batches, matched with some part of the observed
update u = θ⁺ − θ. The factories below differ in these three choices only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from undelta.engine import MEMORY, MomentPrior, Network, Step, rollout
from undelta.errors import ConfigError, MissingKnowledge
from undelta.observation import Observation
from undelta.updates import Update, along, difference, parameters_of, scaled


class Gradients(NamedTuple):
    """Cotangents of the dummy data, and of a replay's own variables where it has some."""

    images: Tensor  # (N, C, H, W)
    labels: Tensor | None  # (N, classes) where the labels are soft
    variables: dict[str, Tensor]


Pullback: TypeAlias = Callable[[Update], Gradients]
NOTHING: Mapping[str, Tensor] = MappingProxyType({})


class Replayed(NamedTuple):
    """A dummy update, a prior's penalty on what BatchNorms saw on the way, and the way back from both."""

    update: Update
    penalty: Tensor
    pullback: Pullback


class Replay(Protocol):
    """A dummy update of dummy data, and the way back from it."""

    @property
    def network(self) -> Network:
        """The model as a function of its parameters."""

    @property
    def start(self) -> Update:
        """The parameters where the replay begins."""

    @property
    def target(self) -> Update:
        """What the dummy update is to equal; holds the observed entries only."""

    @property
    def variables(self) -> Mapping[str, Tensor]:
        """What the replay itself learns, at its start; empty for most."""

    def project(self, variables: Mapping[str, Tensor]) -> None:
        """Move learned variables back, in place, to where they make sense."""

    def __call__(
        self,
        images: Tensor,
        labels: Tensor,
        variables: Mapping[str, Tensor] = NOTHING,
        prior: MomentPrior | None = None,
    ) -> Replayed:
        """The dummy update of these dummy data, and its pullback."""


@dataclass(frozen=True, kw_only=True)
class Chain:
    """A replay that is SGD over a fixed plan of mini-batches from a fixed start."""

    network: Network
    start: Update
    plan: tuple[tuple[Tensor, float], ...]  # (indices of a mini-batch, its learning rate), in order
    target: Update
    variables: Mapping[str, Tensor] = field(default_factory=dict)

    def project(self, variables: Mapping[str, Tensor]) -> None:
        """Nothing is learned."""

    def __call__(
        self,
        images: Tensor,
        labels: Tensor,
        variables: Mapping[str, Tensor] = NOTHING,
        prior: MomentPrior | None = None,
    ) -> Replayed:
        """The sum of the plan's steps."""
        steps = [Step(images[indices], labels[indices], rate) for indices, rate in self.plan]
        update, penalty, pull = rollout(self.network, self.start, steps, prior=prior)

        def pullback(cotangent: Update) -> Gradients:
            pulled = pull(extended(cotangent, self.start))
            image_gradient = torch.zeros_like(images)
            label_gradient = torch.zeros_like(labels) if labels.is_floating_point() else None
            for (indices, _), image_part, label_part in zip(self.plan, pulled.images, pulled.labels, strict=True):
                image_gradient.index_add_(0, indices, image_part)
                if label_gradient is not None and label_part is not None:
                    label_gradient.index_add_(0, indices, label_part)
            return Gradients(image_gradient, label_gradient, {})

        return Replayed({name: update[name] for name in self.target}, penalty, pullback)


class ReplayPart(Protocol):
    """Any callable that prepares a replay of an observation; the generator is the attacker's own."""

    def __call__(self, observation: Observation, generator: torch.Generator) -> Replay:
        """The replay."""


def prepare(part: ReplayPart, observation: Observation, generator: torch.Generator, memory: int = MEMORY) -> Replay:
    """The replay, which keeps no more than so many bytes in order to save time."""
    replay = part(observation, generator)
    replay.network.memory = memory
    return replay


def observed_update(observation: Observation) -> tuple[Network, Update, Update]:
    """The network, θ, and the observed entries of u."""
    model = observation.model()
    start = {name: value.clone() for name, value in parameters_of(model).items()}
    seen = [name for name in start if name in observation.received]
    if not seen:
        raise MissingKnowledge("the observation holds no parameter that was received, only buffers")
    return Network(model, observation.training), start, difference(observation.received, start, seen)


def extended(cotangent: Update, start: Update) -> Update:
    """A cotangent of the observed entries as one of all entries: the others are not matched."""
    return {name: cotangent[name] if name in cotangent else torch.zeros_like(value) for name, value in start.items()}


@dataclass(frozen=True, kw_only=True)
class FullRollout:
    """All E epochs of B mini-batches from θ, matched with u: exact in scenarios 1 to 3 (sec_different_EB).

    The order within the first epoch is no loss of generality, since dummy images have no order. From the second epoch
    on the client's shuffles are hidden, and random ones take their place. With ``per_epoch`` every epoch has dummy
    images of its own (DLFA), so that no order has to be guessed.
    """

    per_epoch: bool = False

    def __call__(self, observation: Observation, generator: torch.Generator) -> Chain:
        network, start, update = observed_update(observation)
        count, rate = observation.num_samples, observation.learning_rate
        sizes = list(observation.training.sizes(count))
        plan: list[tuple[Tensor, float]] = []
        for epoch in range(observation.epochs):
            order = torch.arange(count) + (epoch * count if self.per_epoch else 0)
            if epoch > 0 and not self.per_epoch:
                order = torch.randperm(count, generator=generator)
            plan.extend((batch, rate) for batch in order.to(observation.device).split(sizes))
        return Chain(network=network, start=start, plan=tuple(plan), target=update)


@dataclass(frozen=True, kw_only=True)
class InterpolatedEpoch:
    """One epoch of B mini-batches from θ + position·u, matched with u/E (AWA eq_model_update_approximate).

    Position 0 is the paper's choice, its first epoch; epoch e starts at position (e−1)/E. Along a curved path the mean
    gradient is met far better in the middle: "middle" is the epoch around position 0.5, and the only one where E = 1.
    """

    position: float | Literal["middle"] = 0.0

    def __post_init__(self) -> None:
        if self.position != "middle":
            check_position(self.position)

    def __call__(self, observation: Observation, generator: torch.Generator) -> Chain:
        network, start, update = observed_update(observation)
        sizes = list(observation.training.sizes(observation.num_samples))
        batches = torch.arange(observation.num_samples, device=observation.device).split(sizes)
        middle = (1 - 1 / observation.epochs) / 2
        return Chain(
            network=network,
            start=along(start, update, middle if self.position == "middle" else self.position),
            plan=tuple((batch, observation.learning_rate) for batch in batches),
            target=scaled(update, 1 / observation.epochs),
        )


@dataclass(frozen=True, kw_only=True)
class OneStep:
    """One full-batch step from θ + position·u as long as all E·B steps together, matched with u.

    Its direction needs neither E nor η; where one of them is unknown, so is the update's length, and only the cosine
    distance makes sense. With ``per_epoch`` the batch has E dummy images for every private one (AGIC).
    """

    position: float = 0.0
    per_epoch: bool = False
    in_gradients: bool = False
    """Match −∇ℓ with u/(η·E·B) instead: the scale of DLG's loss."""
    stretch: float = 1.0
    """How much longer the client's path was than the update that it sent, where that was clipped."""

    def __post_init__(self) -> None:
        check_position(self.position)

    def __call__(self, observation: Observation, generator: torch.Generator) -> Chain:
        network, start, update = observed_update(observation)
        count = observation.num_samples * (observation.epochs if self.per_epoch else 1)
        rate = 1.0 if self.in_gradients else length_or_one(observation)
        return Chain(
            network=network,
            start=along(start, update, self.position * self.stretch),
            plan=((torch.arange(count, device=observation.device), rate),),
            target=scaled(update, 1 / observation.path_length) if self.in_gradients else update,
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

    def __call__(self, observation: Observation, generator: torch.Generator) -> Chain:
        network, start, update = observed_update(observation)
        everything = torch.arange(observation.num_samples, device=observation.device)
        rate = observation.path_length / self.steps
        return Chain(network=network, start=start, plan=((everything, rate),) * self.steps, target=update)


def length_or_one(observation: Observation) -> float:
    """η·E·B where it is known; 1 where only the update's direction can be matched."""
    return 1.0 if observation.unknown else observation.path_length


def check_position(position: float) -> None:
    """A position lies on the path."""
    if not 0 <= position <= 1:
        raise ConfigError(f"expected 0 <= position <= 1, got position={position}")
