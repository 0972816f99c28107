"""The way forward through a rollout's derivative: how its update moves when its images do, J·w beside Jᵀ·v.

With θ̇ for the tangent of the parameters, every step adds −η (∂g/∂θ·θ̇ + ∂g/∂x·ẋ) to it. Nothing is kept on the way but
one mini-batch's tape, so memory does not grow with the number of steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from undelta.engine.network import Network
from undelta.engine.room import Room, Step
from undelta.stepping import CLIP_EPSILON, Memory, Place, Stepping
from undelta.updates import Update, inner


def pushforward(
    network: Network,
    start: Update,
    steps: Sequence[Step],
    tangents: Sequence[Tensor],
    *,
    stepping: Stepping | None = None,
) -> Update:
    """The tangent of the update of `rollout` as the images of each step move along ``tangents``, one for each step."""
    room = Room.of(network, steps)
    if stepping is None:
        return _plain(network, start, steps, tangents, room.chunk)
    place = stepping.start(start)
    zeros = {name: torch.zeros_like(value) for name, value in start.items()}
    moved, memory = zeros, tuple(zeros for _ in place.memory)
    for step, tangent in zip(steps, tangents, strict=True):
        gradient, turned = _gradient(network, place.point, moved, step, tangent, room.chunk)
        memory, change = _pushed(stepping, place, gradient, step.rates, Place(moved, moved, memory, 0), turned)
        place = _next(stepping, start, place, gradient, step.rates)
        moved = _sum(moved, change)
    return moved


def _plain(network: Network, start: Update, steps: Sequence[Step], tangents: Sequence[Tensor], chunk: int) -> Update:
    """The same for plain SGD, in place: large layers of small mini-batches are bound by memory."""
    update, moved = Update(), Update()
    for step, tangent in zip(steps, tangents, strict=True):
        point = _sum(start, update) if update else start
        gradient, turned = _gradient(network, point, moved, step, tangent, chunk)
        for total, part in ((update, gradient), (moved, turned)):
            if total:
                torch._foreach_add_(list(total.values()), list(part.values()), alpha=-step.learning_rate)
            else:
                torch._foreach_mul_(list(part.values()), -step.learning_rate)
                total.update(part)
    return moved


def _gradient(
    network: Network, point: Update, moved: Update, step: Step, tangent: Tensor, chunk: int
) -> tuple[Update, Update]:
    """A mini-batch's gradient and its tangent, chunk by chunk."""
    gradient, turned, count = Update(), Update(), len(step.images)
    for first in range(0, count, chunk):
        part = slice(first, min(first + chunk, count))
        share = (part.stop - first) / count
        tape = network.tape(point, step.images[part], step.labels[part], share=share)
        for total, added in ((gradient, tape.gradient), (turned, tape.push(moved, tangent[part]))):
            if total:
                torch._foreach_add_(list(total.values()), list(added.values()))
            else:
                total.update(added)
    return gradient, turned


def _next(stepping: Stepping, start: Update, place: Place, gradient: Update, rates: tuple[float, ...]) -> Place:
    memory, change = stepping.step(place, gradient, rates)
    moved = _sum(place.moved, change)
    return Place(_sum(start, moved), moved, memory, place.taken + len(rates))


def _pushed(
    stepping: Stepping, place: Place, gradient: Update, rates: tuple[float, ...], tangent: Place, turned: Update
) -> tuple[Memory, Update]:
    """The tangents of an optimizer's memory after a step, and of its change."""
    if stepping.linear:
        return stepping.step(tangent, turned, rates)
    if stepping.clip_norm is not None:
        gradient, turned = _clipped(stepping, place, gradient, tangent, turned)
        # What is left is a step along the clipped gradient, with its proximal term in it.
        return _pushed(replace(stepping, clip_norm=None, proximal=0.0), place, gradient, rates, tangent, turned)
    # Entry by entry, so that a cotangent of ones reads off the derivatives by all inputs.
    zeros = {name: torch.zeros_like(value) for name, value in gradient.items()}
    ones = {name: torch.ones_like(value) for name, value in gradient.items()}
    outputs = []
    for output in range(len(place.memory) + 1):
        units = [ones if index == output else zeros for index in range(len(place.memory) + 1)]
        slopes = stepping.pull(place, gradient, rates, tuple(units[:-1]), units[-1])
        pairs = [(slopes.gradient, turned), (slopes.place, tangent.point)]
        pairs += zip(slopes.memory, tangent.memory, strict=True)
        outputs.append(
            {name: sum((slope[name] * way[name] for slope, way in pairs if slope), zeros[name]) for name in zeros}
        )
    return tuple(outputs[:-1]), outputs[-1]


def _clipped(
    stepping: Stepping, place: Place, gradient: Update, tangent: Place, turned: Update
) -> tuple[Update, Update]:
    """A clipped gradient c·s with s = g + μ·moved, and its tangent c (ṡ − s ⟨s, ṡ⟩/(|s| (|s| + ε)))."""
    assert stepping.clip_norm is not None  # noqa: S101
    slope = _sum(gradient, place.moved, stepping.proximal)
    way = _sum(turned, tangent.moved, stepping.proximal)
    norm = float(inner(slope, slope).sqrt())
    factor = min(1.0, stepping.clip_norm / (norm + CLIP_EPSILON))
    if factor < 1:
        way = _sum(way, slope, -float(inner(slope, way)) / (norm * (norm + CLIP_EPSILON)))
    return {name: value * factor for name, value in slope.items()}, {
        name: value * factor for name, value in way.items()
    }


def _sum(first: Update, second: Update, factor: float = 1.0) -> Update:
    """The sum of the first and factor times the second."""
    others = [second[name] for name in first]
    return dict(zip(first, torch._foreach_add(list(first.values()), others, alpha=factor), strict=True))
