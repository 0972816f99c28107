"""SGD over given mini-batches, with the exact pullback of their sum: the map G of the paper, and the way back.

It is the same map (AWA eq_delta_theta) on both sides of the boundary; only its inputs differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from undelta.engine import ranks
from undelta.engine.moments import MomentPrior, Tally
from undelta.engine.network import Network, Tape
from undelta.engine.program import Pool, Pull
from undelta.errors import ConfigError
from undelta.updates import Update

HELD = 4  # values that a tape holds per value that the network computes, about: values, adjoints, tangents


class Step(NamedTuple):
    """One SGD step: a mini-batch and its learning rate."""

    images: Tensor  # (n, C, H, W), normalized
    labels: Tensor  # (n,) classes, or (n, classes) probabilities
    learning_rate: float


class Pulled(NamedTuple):
    """What a rollout's pullback returns: cotangents of its inputs."""

    images: list[Tensor]  # one per step
    labels: list[Tensor | None]  # one per step; None for class labels
    start: Update | None


Pullback: TypeAlias = Callable[[Update], Pulled]


@dataclass(frozen=True, kw_only=True)
class Room:
    """How much of a rollout is kept for its way back, and how much is computed again."""

    chunk: int  # samples on one tape
    tapes: int  # tapes kept
    points: int  # steps between two parameter copies that are kept

    @staticmethod
    def of(network: Network, steps: Sequence[Step], *, share: float = 1.0) -> Room:
        """What fits into this share of the network's memory; never less than one sample needs."""
        limit = int(network.memory * share)
        images = max((step.images for step in steps), key=len)
        size, channels, height, width = images.shape
        needed = HELD * images.element_size() * network.activations((channels, height, width))
        samples = max(1, limit // max(1, needed))
        chunk = size if network.couples(images) else min(size, samples)
        copy = sum(value.numel() * value.element_size() for value in network.model.parameters())
        copies = max(2, limit // max(1, copy))
        # With a copy at every k-th step, T/k + k copies are held at once.
        least = math.isqrt(len(steps)) or 1
        points = next((k for k in range(1, least + 1) if len(steps) / k + k <= copies + 1), least)
        return Room(chunk=chunk, tapes=max(1, samples // chunk), points=points)


class Rollout(NamedTuple):
    """The update −Σ η g, a prior's penalty on the way (zero without one), and the way back."""

    update: Update
    penalty: Tensor
    pullback: Pullback


def rollout(
    network: Network,
    start: Update,
    steps: Sequence[Step],
    *,
    pull_start: bool = False,
    prior: MomentPrior | None = None,
    room: Room | None = None,
) -> Rollout:
    """SGD from ``start`` over ``steps``: the update −Σ η g (AWA eq_delta_theta) and its exact pullback.

    Only first-order gradients are taken on the way. With μ = ∂/∂(update) the pullback walks back: image cotangent
    −η ∂⟨μ,g⟩/∂x, then μ ← μ − η ∂⟨μ,g⟩/∂θ (the Hessian term). What ``room`` does not keep is computed again: tapes of
    mini-batches, cut into chunks where no layer couples samples, and points of the path. Σ η g is accumulated
    rather than taken as a difference of parameters, which would cancel in float32.

    ``prior`` is a penalty on what BatchNorms see of each mini-batch, averaged over the steps; the pullback adds its
    gradient. ``pull_start`` also returns the cotangent of the starting point, at the price of one more derivative.
    """
    path = _Path(network, start, steps, room or Room.of(network, steps), prior)
    update = path.walk()

    def pullback(cotangent: Update) -> Pulled:
        mu, images, labels = cotangent, list[Tensor](), list[Tensor | None]()
        for index, point in path.points_backward():
            pulled = path.pull(index, point, mu, parameters=index > 0 or pull_start)
            rate = steps[index].learning_rate
            images.append(pulled.images * -rate)
            labels.append(None if pulled.labels is None else pulled.labels * -rate)
            if pulled.parameters is not None:
                if mu is cotangent:
                    mu = {name: value.clone() for name, value in cotangent.items()}
                torch._foreach_add_(
                    [mu[name] for name in pulled.parameters], list(pulled.parameters.values()), alpha=-rate
                )
        # Every rank has the cotangents of its own samples; the others' are zero.
        ranks.sum_over_ranks([*images, *[part for part in labels if part is not None]])
        end = {name: mu[name] - cotangent[name] for name in mu} if pull_start else None
        return Pulled(images[::-1], labels[::-1], end)

    return Rollout(update, path.penalty, pullback)


class _Path:
    """One walk along the steps, and what is kept of it for the way back."""

    def __init__(
        self, network: Network, start: Update, steps: Sequence[Step], room: Room, prior: MomentPrior | None
    ) -> None:
        self.network, self.start, self.steps, self.room, self.prior = network, start, steps, room, prior
        self.penalty = next(iter(start.values())).new_zeros(())
        self._points: dict[int, Update] = {}
        self._tapes: dict[tuple[int, int], Tape] = {}  # by step and first sample
        self._tallies = [Tally() for _ in steps]

    def walk(self) -> Update:
        update: Update = {}
        for index, step in enumerate(self.steps):
            point = _moved(self.start, update)
            if index % self.room.points == 0:
                self._points[index] = point
            gradient = self._gradient(index, point, first=True)
            if self.prior:
                self.penalty = self.penalty + self._tallies[index].penalty(self.prior) / len(self.steps)
            if index == 0:
                update = gradient  # ours to change, unlike the points, which are kept
                torch._foreach_mul_(list(update.values()), -step.learning_rate)
            else:
                torch._foreach_add_(list(update.values()), list(gradient.values()), alpha=-step.learning_rate)
        return update

    def points_backward(self) -> Iterator[tuple[int, Update]]:
        """Every step and the point it was taken at, last first; those between kept points are walked to again."""
        for first in sorted(self._points, reverse=True):
            stretch = [self._points[first]]
            for index in range(first, min(first + self.room.points, len(self.steps)) - 1):
                gradient = self._gradient(index, stretch[-1], first=False)
                stretch.append(_moved(gradient, stretch[-1], scale=-self.steps[index].learning_rate))
            for offset in reversed(range(len(stretch))):
                yield first + offset, stretch.pop()

    def _parts(self, index: int) -> list[slice]:
        """This rank's samples of a mini-batch, chunk by chunk."""
        images = self.steps[index].images
        own = ranks.part_of(len(images))
        if ranks.shared():  # the same checks, with the same outcome, on every rank
            coupled = self.network.couples(images)
            if coupled and not self.network.shares_statistics:
                raise ConfigError("some layer of this model couples the samples of a mini-batch; run it in one process")
            if len(images) < ranks.size() and (coupled or self.prior):
                raise ConfigError(
                    f"{ranks.size()} processes cannot share a mini-batch of {len(images)} where its statistics "
                    "matter (BatchNorm in train mode, or a prior on it); start fewer"
                )
        return [slice(i, min(i + self.room.chunk, own.stop)) for i in range(own.start, own.stop, self.room.chunk)]

    def _tape(self, index: int, point: Update, part: slice, *, gradient: bool) -> Tape:
        images, labels, _ = self.steps[index]
        share = (part.stop - part.start) / len(images)
        return self.network.tape(point, images[part], labels[part], share=share, gradient=gradient)

    def _gradient(self, index: int, point: Update, *, first: bool) -> Update:
        """The mini-batch's gradient; on the first walk tapes are kept and moments counted."""
        total: Update = {}
        for part in self._parts(index):
            if first and len(self._tapes) >= self.room.tapes:
                del self._tapes[next(iter(self._tapes))]  # before there is another one
            gradient = self._part_gradient(index, point, part, first=first)
            if total:
                torch._foreach_add_(list(total.values()), list(gradient.values()))
            else:
                total = gradient
        if ranks.shared():
            total = total or {name: torch.zeros_like(value) for name, value in point.items()}
            ranks.sum_over_ranks(total.values())
        return total

    def _part_gradient(self, index: int, point: Update, part: slice, *, first: bool) -> Update:
        tape = self._tape(index, point, part, gradient=True)
        if first:
            self._tapes[index, part.start] = tape
            if self.prior:
                self._tallies[index].add(tape.moments())
        gradient = tape.gradient
        if isinstance(tape, Pool):
            tape.gradient = {}  # a kept tape need not keep it
        return gradient

    def pull(self, index: int, point: Update, mu: Update, *, parameters: bool) -> Pull:
        """The derivatives of ⟨mu, g⟩ at one step, and of the prior."""
        images, labels, _ = self.steps[index]
        image_part = torch.zeros_like(images)
        label_part = torch.zeros_like(labels) if labels.is_floating_point() else None
        total: Update = {}
        for part in reversed(self._parts(index)):
            pulled = self._pull_part(index, point, part, mu, parameters=parameters)
            image_part[part] = pulled.images
            if label_part is not None and pulled.labels is not None:
                label_part[part] = pulled.labels
            if pulled.parameters is not None:
                total = _moved(pulled.parameters, total)
        if parameters and ranks.shared():
            total = total or {name: torch.zeros_like(value) for name, value in point.items()}
            ranks.sum_over_ranks(total.values())
        return Pull(image_part, label_part, total if parameters else None)

    def _pull_part(self, index: int, point: Update, part: slice, mu: Update, *, parameters: bool) -> Pull:
        tape = self._tapes.pop((index, part.start), None) or self._tape(index, point, part, gradient=False)
        sources = None
        if self.prior:  # the caller multiplies by −η
            factor = -1 / (self.steps[index].learning_rate * len(self.steps))
            sources = self._tallies[index].slopes(factor)
        return tape.pull(mu, parameters=parameters, sources=sources)


def _moved(by: Update, update: Update, *, scale: float = 1.0) -> Update:
    """scale·by + update, where an empty update is zero."""
    if not update:
        return by if scale == 1 else dict(zip(by, torch._foreach_mul(list(by.values()), scale), strict=True))
    moved = torch._foreach_add([update[name] for name in by], list(by.values()), alpha=scale)
    return dict(zip(by, moved, strict=True))
