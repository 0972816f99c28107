"""What a replay is: dummy images in, a dummy update out, and the way back. `replays` has the ways to make one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from undelta.engine import MEMORY, MomentPrior, Network, Step, rollout
from undelta.observation import Observation
from undelta.stepping import Stepping
from undelta.updates import Update, inner


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

    @property
    def rates(self) -> Mapping[str, float]:
        """Adam's for some of these; the others have the method's."""

    def project(self, variables: Mapping[str, Tensor]) -> None:
        """Move learned variables back, in place, to where they make sense."""

    def ridge(self, variables: Mapping[str, Tensor]) -> Tensor | None:
        """A penalty on them, of which the pullback knows; None without one."""

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
    """A replay that trains over a fixed plan of mini-batches from a fixed start."""

    network: Network
    start: Update
    plan: tuple[tuple[Tensor, float], ...]  # (indices of a mini-batch, its learning rate), in order
    target: Update
    variables: Mapping[str, Tensor] = field(default_factory=dict)
    stepping: Stepping | None = None
    """The optimizer, if it is not plain SGD."""
    held: tuple[tuple[float, ...], ...] = ()
    """For each mini-batch the rates of all of its optimizer's steps along that gradient; empty: one step each."""
    known: Update = field(default_factory=dict)
    """What the update holds whatever the images are, taken out of it as it is out of the target."""
    rates: Mapping[str, float] = field(default_factory=dict)

    def project(self, variables: Mapping[str, Tensor]) -> None:
        """Nothing is learned."""

    def ridge(self, variables: Mapping[str, Tensor]) -> None:
        """Nothing is learned."""

    def __call__(
        self,
        images: Tensor,
        labels: Tensor,
        variables: Mapping[str, Tensor] = NOTHING,
        prior: MomentPrior | None = None,
    ) -> Replayed:
        """The sum of the plan's steps."""
        held = self.held or ((),) * len(self.plan)
        steps = [
            Step(images[indices], labels[indices], rate, rates)
            for (indices, rate), rates in zip(self.plan, held, strict=True)
        ]
        update, penalty, pull = rollout(self.network, self.start, steps, prior=prior, stepping=self.stepping)

        def pullback(cotangent: Update) -> Gradients:
            pulled = pull(extended(cotangent, self.start))
            image_gradient = torch.zeros_like(images)
            label_gradient = torch.zeros_like(labels) if labels.is_floating_point() else None
            for (indices, _), image_part, label_part in zip(self.plan, pulled.images, pulled.labels, strict=True):
                image_gradient.index_add_(0, indices, image_part)
                if label_gradient is not None and label_part is not None:
                    label_gradient.index_add_(0, indices, label_part)
            return Gradients(image_gradient, label_gradient, {})

        matched = {name: update[name] for name in self.target}
        for name, value in self.known.items():
            matched[name] = matched[name] - value
        return Replayed(matched, penalty, pullback)


FARTHEST = (0.1, 10.0)  # what images that explain nothing yet may ask of a length


@dataclass(frozen=True, kw_only=True)
class FreeLength:
    """A chain whose length is learned beside the images: its dummy update is to be as long as the target, too.

    The cosine hardly depends on the length, so what moves it is the length itself: the slope of the squared logarithm
    of <û, û>/<û, u>, which is one where û is as long as the part of u that it explains. Noise in u does not shift that.
    """

    chain: Chain
    """The replay of a path of length one."""
    variables: Mapping[str, Tensor]
    """The logarithm of the length: ``log_length``."""
    rates: Mapping[str, float] = field(default_factory=dict)

    @property
    def network(self) -> Network:
        return self.chain.network

    @property
    def start(self) -> Update:
        return self.chain.start

    @property
    def target(self) -> Update:
        return self.chain.target

    def ridge(self, variables: Mapping[str, Tensor]) -> None:
        """None."""

    def project(self, variables: Mapping[str, Tensor]) -> None:
        """Any length makes sense."""

    def __call__(
        self,
        images: Tensor,
        labels: Tensor,
        variables: Mapping[str, Tensor] = NOTHING,
        prior: MomentPrior | None = None,
    ) -> Replayed:
        """The sum of the chain's steps at the learned length."""
        log_length = (variables or self.variables)["log_length"]
        length = float(log_length.exp())
        plan = tuple((indices, rate * length) for indices, rate in self.chain.plan)
        update, penalty, pull = replace(self.chain, plan=plan)(images, labels, prior=prior)
        excess = -math.log(min(max(least_squares(update, self.target), FARTHEST[0]), FARTHEST[1]))

        def pullback(cotangent: Update) -> Gradients:
            return pull(cotangent)._replace(variables={"log_length": torch.full_like(log_length, excess)})

        return Replayed(update, penalty, pullback)


def least_squares(update: Update, target: Update) -> float:
    """The factor at which a dummy update is closest to the target, on the entries that were sent.

    Where the two point apart, it is the ratio of their lengths; where the dummy update is not finite, zero.
    """
    sent = {name: update[name] * (value != 0) for name, value in target.items()}
    own, shared = float(inner(sent, sent)), float(inner(sent, target))
    if not math.isfinite(own + shared):
        return 0.0
    if not own:
        return 1.0
    return shared / own if shared > 0 else math.sqrt(float(inner(target, target)) / own)


class Held(NamedTuple):
    """What a replay holds at once, at least."""

    images: int
    steps: int = 1
    points: int = 1
    """Copies of the parameters."""

    @staticmethod
    def by(images: int, steps: int) -> Held:
        """A rollout's: a copy at every √T-th of T steps, and those in between once more."""
        return Held(images, steps, 2 * math.isqrt(steps))


class ReplayPart(Protocol):
    """Any callable that prepares a replay of an observation; the generator is the attacker's own.

    One that holds more than a step on the client's images says so: ``held(observation) -> Held``.
    """

    def __call__(self, observation: Observation, generator: torch.Generator) -> Replay:
        """The replay."""


def prepare(part: ReplayPart, observation: Observation, generator: torch.Generator, memory: int = MEMORY) -> Replay:
    """The replay, which keeps no more than so many bytes in order to save time."""
    replay = part(observation, generator)
    replay.network.memory = memory
    return replay


def extended(cotangent: Update, start: Update) -> Update:
    """A cotangent of the observed entries as one of all entries: the others are not matched."""
    return {name: cotangent[name] if name in cotangent else torch.zeros_like(value) for name, value in start.items()}
