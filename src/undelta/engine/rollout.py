"""Training over given mini-batches, with the exact pullback of their sum: the map G of the paper, and the way back.

It is the same map (AWA eq_delta_theta) on both sides of the boundary; only its inputs differ. Optimizers other than
plain SGD are steps of `undelta.stepping`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from undelta.engine import ranks
from undelta.engine.moments import MomentPrior, Tally
from undelta.engine.network import Network, Tape
from undelta.engine.program import Pool, Pull
from undelta.engine.room import Room, Step
from undelta.errors import ConfigError
from undelta.stepping import Memory, Place, Stepping
from undelta.updates import Update


class Pulled(NamedTuple):
    """What a rollout's pullback returns: cotangents of its inputs."""

    images: list[Tensor]  # one per step
    labels: list[Tensor | None]  # one per step; None for class labels
    start: Update | None


Pullback: TypeAlias = Callable[[Update], Pulled]


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
    stepping: Stepping | None = None,
) -> Rollout:
    """SGD from ``start`` over ``steps``: the update −Σ η g (AWA eq_delta_theta) and its exact pullback.

    Only first-order gradients are taken on the way. With μ = ∂/∂(update) the pullback walks back: image cotangent
    −η ∂⟨μ,g⟩/∂x, then μ ← μ − η ∂⟨μ,g⟩/∂θ (the Hessian term). What ``room`` does not keep is computed again: tapes of
    mini-batches, cut into chunks where no layer couples samples, and points of the path. Σ η g is accumulated
    rather than taken as a difference of parameters, which would cancel in float32.

    ``prior`` is a penalty on what BatchNorms see of each mini-batch, averaged over the steps; the pullback adds its
    gradient. ``pull_start`` also returns the cotangent of the starting point, at the price of one more derivative.

    ``stepping`` is an optimizer other than plain SGD, which begins with an empty memory.
    """
    if stepping:
        return _stepped(network, start, steps, stepping, prior, room)
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
        _share(images, labels)
        end = {name: mu[name] - cotangent[name] for name in mu} if pull_start else None
        return Pulled(images[::-1], labels[::-1], end)

    return Rollout(update, path.penalty, pullback)


def _stepped(
    network: Network,
    start: Update,
    steps: Sequence[Step],
    stepping: Stepping,
    prior: MomentPrior | None,
    room: Room | None,
) -> Rollout:
    """The same with an optimizer's memory, whose cotangent walks back beside that of the parameters."""
    first = stepping.start(start)
    copies = 2 + len(first.memory) + (not stepping.linear)
    path = _Path(network, start, steps, room or Room.of(network, steps, copies=copies), prior, scaled=False)
    last = path.walk_stepped(stepping, first)

    def pullback(cotangent: Update) -> Pulled:
        mu, images, labels = cotangent, list[Tensor](), list[Tensor | None]()
        zeros = {name: torch.zeros_like(value) for name, value in cotangent.items()}
        memory: Memory = (zeros,) * len(first.memory)
        for index, place, gradient in path.places_backward(stepping):
            back = stepping.pull(place, gradient, steps[index].rates, memory, mu)
            pulled = path.pull(index, place.point, back.gradient, parameters=index > 0)
            images.append(pulled.images)
            labels.append(pulled.labels)
            mu, memory = _moved(back.place, mu), back.memory
            if pulled.parameters is not None:
                mu = _moved(pulled.parameters, mu)
        _share(images, labels)
        return Pulled(images[::-1], labels[::-1], None)

    return Rollout(last.moved, path.penalty, pullback)


def _share(images: list[Tensor], labels: list[Tensor | None]) -> None:
    """Every rank has the cotangents of its own samples; the others' are zero."""
    ranks.sum_over_ranks([*images, *[part for part in labels if part is not None]])


class _Path:
    """One walk along the steps, and what is kept of it for the way back."""

    def __init__(
        self,
        network: Network,
        start: Update,
        steps: Sequence[Step],
        room: Room,
        prior: MomentPrior | None,
        *,
        scaled: bool = True,
    ) -> None:
        self.network, self.start, self.steps, self.room, self.prior = network, start, steps, room, prior
        self.scaled = scaled  # whether the caller of `pull` multiplies by −η
        self.penalty = next(iter(start.values())).new_zeros(())
        self._points: dict[int, Update] = {}
        self._places: dict[int, tuple[Place, Update | None]] = {}  # with an optimizer; and the gradient there
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

    def walk_stepped(self, stepping: Stepping, place: Place) -> Place:
        """The place at the end."""
        keep_gradients = self.room.points == 1 and not stepping.linear
        for index in range(len(self.steps)):
            gradient = self._gradient(index, place.point, first=True)
            if index % self.room.points == 0:
                self._places[index] = (place, gradient if keep_gradients else None)
            if self.prior:
                self.penalty = self.penalty + self._tallies[index].penalty(self.prior) / len(self.steps)
            place = self._stepped(stepping, index, place, gradient)
        return place

    def _stepped(self, stepping: Stepping, index: int, place: Place, gradient: Update) -> Place:
        rates = self.steps[index].rates
        memory, change = stepping.step(place, gradient, rates)
        moved = _moved(change, place.moved)
        return Place(_moved(self.start, moved), moved, memory, place.taken + len(rates))

    def places_backward(self, stepping: Stepping) -> Iterator[tuple[int, Place, Update]]:
        """Every step, the place it was taken at and, unless the optimizer is linear, its gradient; last first."""
        for first in sorted(self._places, reverse=True):
            place, gradient = self._places[first]
            last = min(first + self.room.points, len(self.steps)) - 1
            stretch = []
            for index in range(first, last + 1):
                if gradient is None and (index < last or not stepping.linear):
                    gradient = self._gradient(index, place.point, first=False)
                stretch.append((index, place, gradient or {}))
                if index < last:
                    assert gradient is not None  # noqa: S101
                    place, gradient = self._stepped(stepping, index, place, gradient), None
            while stretch:
                yield stretch.pop()

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
        images, labels = self.steps[index][:2]
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
        images, labels = self.steps[index][:2]
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
        if self.prior:
            factor = -1 / (self.steps[index].learning_rate * len(self.steps)) if self.scaled else 1 / len(self.steps)
            sources = self._tallies[index].slopes(factor)
        return tape.pull(mu, parameters=parameters, sources=sources)


def _moved(by: Update, update: Update, *, scale: float = 1.0) -> Update:
    """scale·by + update, where an empty update is zero."""
    if not update:
        return by if scale == 1 else dict(zip(by, torch._foreach_mul(list(by.values()), scale), strict=True))
    moved = torch._foreach_add([update[name] for name in by], list(by.values()), alpha=scale)
    return dict(zip(by, moved, strict=True))
