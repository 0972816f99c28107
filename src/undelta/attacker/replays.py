"""Replays: how an attacker turns dummy images into a dummy update, and pulls a cotangent back.

Every replay is training from some point over some plan of mini-batches, matched with some part of the observed
update u = θ⁺ − θ. The factories below differ in these three choices only. Rollouts repeat the client's own optimizer.
Single steps match a mean gradient, in which momentum weighs each step's by what became of it; what weight decay did
alone is known, and taken out of u. Adam divides every entry by the size of its gradients, and so must they.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from undelta.attacker.remember import network_of
from undelta.attacker.replay import Chain, FreeLength, Held
from undelta.attacker.replay import Replay as Replay  # for annotations of parts of your own
from undelta.engine import Network
from undelta.errors import ConfigError, MissingKnowledge
from undelta.observation import Observation
from undelta.stepping import Stepping
from undelta.updates import Update, along, difference, scaled


def observed_update(observation: Observation) -> tuple[Network, Update, Update]:
    """The network, θ, and the observed entries of u."""
    network = network_of(observation)
    start = network.start
    seen = [name for name in start if name in observation.received]
    if not seen:
        raise MissingKnowledge("the observation holds no parameter that was received, only buffers")
    return network, start, difference(observation.received, start, seen)


def decayed(observation: Observation, start: Update, update: Update) -> Update:
    """The part of the observed update that weight decay made alone; empty without it, or where E, B or η is unknown.

    An entry that did not change at all was not sent.
    """
    if observation.unknown or not observation.training.weight_decay:
        return {}
    decay = observation.response.decay
    return {name: torch.where(value != 0, decay * start[name], 0.0) for name, value in update.items()} if decay else {}


def without(update: Update, known: Update) -> Update:
    """The update less what is known of it."""
    return {name: value - known[name] if name in known else value for name, value in update.items()}


def spanned_update(observation: Observation) -> Update:
    """The observed update as a sum of gradients, whose weight matrices are sums of outer products with inputs."""
    if observation.training.adaptive:
        raise MissingKnowledge(
            f"{observation.training.optimizer} divides each entry of a gradient by its own size, so that the update "
            "does not span the layers' inputs. Use a matching attack, such as strongest."
        )
    _, start, update = observed_update(observation)
    return without(update, decayed(observation, start, update))


# Adam's steps are nearly signs, which say nothing of how a gradient changes; a smoother divisor does.
SOFTNESS = 0.1  # of rollouts, which add up many
LOCAL_SOFTNESS = 1.0  # of a single step


@dataclass(frozen=True, kw_only=True)
class FullRollout:
    """All E epochs of B mini-batches from θ, matched with u: exact in scenarios 1 to 3 (sec_different_EB).

    The order within the first epoch is no loss of generality, since dummy images have no order. From the second epoch
    on the client's shuffles are hidden, and random ones take their place. With ``per_epoch`` every epoch has dummy
    images of its own (DLFA), so that no order has to be guessed.
    """

    per_epoch: bool = False

    def held(self, observation: Observation) -> Held:
        epochs = observation.epochs
        return Held.by(observation.num_samples * epochs, epochs * observation.batches)

    def __call__(self, observation: Observation, generator: torch.Generator) -> Chain:
        count = observation.num_samples
        batches = _shuffled_epochs(observation, observation.epochs, generator)
        if self.per_epoch:
            first = batches[: observation.training.batches]
            batches = [batch + epoch * count for epoch in range(observation.epochs) for batch in first]
        rates = observation.rates
        return _rolled_out(observation, tuple(zip(batches, rates, strict=True)))


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

    def held(self, observation: Observation) -> Held:
        return Held.by(observation.num_samples, observation.batches)

    def __call__(self, observation: Observation, generator: torch.Generator) -> Chain:
        middle = (1 - 1 / observation.epochs) / 2
        steps = observation.epochs * observation.batches
        constant = observation.training.plain and observation.training.schedule == "constant"
        return _local(
            observation,
            position=middle if self.position == "middle" else self.position,
            batches=_cut(observation),
            rate=observation.learning_rate if constant else observation.reach / steps,
            share=1 / observation.epochs,
        )


@dataclass(frozen=True, kw_only=True)
class OneStep:
    """One full-batch step from θ + position·u as long as all E·B steps together, matched with u.

    Its direction needs neither E, B nor η; where one of them is unknown, so is the update's length, and only the cosine
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
        copies = observation.epochs if self.per_epoch else 1
        everything = torch.arange(observation.num_samples * copies, device=observation.device)
        batches: tuple[Tensor, ...] = (everything,)
        if observation.training.adaptive:  # gradients are small or large by comparison among mini-batches
            count = observation.num_samples
            batches = tuple(batch + copy * count for copy in range(copies) for batch in _cut(observation))
        return _local(
            observation,
            position=self.position,
            batches=batches,
            rate=(1.0 if self.in_gradients else length_or_one(observation)) / len(batches),
            share=1 / observation.path_length if self.in_gradients else 1.0,
            stretch=self.stretch,
        )


@dataclass(frozen=True, kw_only=True)
class CoarseRollout:
    """The whole path from θ in a few full-batch macro-steps of length η·E·B/steps, matched with u.

    As the dummy images approach the truth, the simulated path approaches the client's; what remains is mini-batch
    noise, of second order in η. Too few steps for a long path show in the attacker's own mismatch. An optimizer with
    a memory takes all of the client's steps, several along each gradient. Where it depends on how gradients differ
    among mini-batches (Adam, clipping), a macro-step is one epoch of them.
    """

    steps: int

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ConfigError(f"expected steps >= 1, got steps={self.steps}")

    def held(self, observation: Observation) -> Held:
        training = observation.training
        if training.adaptive or training.clip_norm is not None:
            epochs = min(self.steps, observation.epochs)
            return Held.by(observation.num_samples * epochs, epochs * training.batches)
        return Held.by(observation.num_samples * self.steps, self.steps)

    def __call__(self, observation: Observation, generator: torch.Generator) -> Chain:
        training = observation.training
        everything = torch.arange(observation.num_samples, device=observation.device)
        if training.plain and training.schedule == "constant":
            return _rolled_out(observation, ((everything, observation.path_length / self.steps),) * self.steps)
        if training.adaptive or training.clip_norm is not None:
            batches = _shuffled_epochs(observation, min(self.steps, observation.epochs), generator)
        else:
            batches = [everything] * min(self.steps, observation.epochs * training.batches)
        rates = observation.rates
        marks = [len(rates) * index // len(batches) for index in range(len(batches) + 1)]
        held = tuple(rates[low:high] for low, high in pairwise(marks))
        plan = tuple((batch, sum(part)) for batch, part in zip(batches, held, strict=True))
        return _rolled_out(observation, plan, held)


@dataclass(frozen=True, kw_only=True)
class LearnedLength:
    """A coarse rollout of plain SGD whose length η·E·B is learned beside the images, for whoever does not know it."""

    steps: int
    length: float
    """Where it starts."""

    def __post_init__(self) -> None:
        if self.steps < 1 or not 0 < self.length < math.inf:
            raise ConfigError(f"expected steps >= 1 and a length > 0, got steps={self.steps}, length={self.length}")

    def held(self, observation: Observation) -> Held:
        return Held.by(observation.num_samples * self.steps, self.steps)

    def __call__(self, observation: Observation, generator: torch.Generator) -> FreeLength:
        network, start, update = observed_update(observation)
        everything = torch.arange(observation.num_samples, device=observation.device)
        chain = Chain(network=network, start=start, plan=((everything, 1 / self.steps),) * self.steps, target=update)
        log_length = torch.tensor(math.log(self.length), dtype=observation.dtype, device=observation.device)
        return FreeLength(chain=chain, variables={"log_length": log_length})


def _rolled_out(
    observation: Observation, plan: tuple[tuple[Tensor, float], ...], held: tuple[tuple[float, ...], ...] = ()
) -> Chain:
    """The client's own optimizer from θ over a plan, matched with u."""
    network, start, update = observed_update(observation)
    known = decayed(observation, start, update)
    stepping = Stepping.of(observation.training)
    if stepping and stepping.optimizer != "sgd":
        stepping = replace(stepping, softness=SOFTNESS)
    target = without(update, known)
    return Chain(network=network, start=start, plan=plan, target=target, stepping=stepping, held=held, known=known)


def _local(
    observation: Observation,
    *,
    position: float,
    batches: tuple[Tensor, ...],
    rate: float,
    share: float,
    stretch: float = 1.0,
) -> Chain:
    """The mean gradient near one point of the path, matched with a share of u."""
    network, start, update = observed_update(observation)
    training = observation.training
    reached = position if training.plain or observation.unknown else observation.response.reached(position)
    rates = [rate] * len(batches)
    stepping = None
    if training.adaptive:  # averages over all mini-batches, and one step along them
        rates = [*[0.0] * (len(batches) - 1), rate * len(batches)]
        stepping = Stepping(optimizer="adam", betas=None, adam_epsilon=training.adam_epsilon, softness=LOCAL_SOFTNESS)
    elif training.clip_norm is not None:
        stepping = Stepping(clip_norm=training.clip_norm)
    return Chain(
        network=network,
        start=along(start, update, reached * stretch),
        plan=tuple(zip(batches, rates, strict=True)),
        target=scaled(without(update, decayed(observation, start, update)), share),
        stepping=stepping,
    )


def _cut(observation: Observation) -> tuple[Tensor, ...]:
    """All dummy images in B mini-batches: in the mean of many epochs a loader drops none."""
    training = observation.training
    if training.drop_last:
        training = replace(training, batch_size=None, drop_last=False)
    everything = torch.arange(observation.num_samples, device=observation.device)
    return tuple(everything.split(list(training.sizes(observation.num_samples))))


def _shuffled_epochs(observation: Observation, epochs: int, generator: torch.Generator) -> list[Tensor]:
    """The mini-batches of some epochs, one after the other; the first in order, the others shuffled at random."""
    sizes, count = list(observation.training.sizes(observation.num_samples)), observation.num_samples
    batches: list[Tensor] = []
    for epoch in range(epochs):
        order = torch.randperm(count, generator=generator) if epoch else torch.arange(count)
        batches.extend(order[: sum(sizes)].to(observation.device).split(sizes))
    return batches


def length_or_one(observation: Observation) -> float:
    """η·E·B where it is known; 1 where only the update's direction can be matched."""
    return 1.0 if observation.unknown else observation.reach


def check_position(position: float) -> None:
    """A position lies on the path."""
    if not 0 <= position <= 1:
        raise ConfigError(f"expected 0 <= position <= 1, got position={position}")
