"""One optimizer's steps, and the exact way back through them: shared by clients and replays, so that both agree.

A step maps (memory, gradient, point, moved) to (memory, change), where ``moved`` is the way from the round's start, on
which FedProx pulls. Several steps along one gradient are one: SGD's are linear, with the same few coefficients for all
entries; Adam's averages move as if the steps were taken, and the change is that of the last, times all rates. A single
step is exact, and so is the way back through any.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from undelta.training import LocalTraining, OptimizerName
from undelta.updates import Update, inner

Memory: TypeAlias = tuple[Update, ...]
"""Nothing, SGD's velocity, or Adam's two averages."""

CLIP_EPSILON = 1e-6  # as in torch.nn.utils.clip_grad_norm_


class Place(NamedTuple):
    """Where a step starts."""

    point: Update
    moved: Update
    memory: Memory
    taken: int  # steps so far


class Cotangents(NamedTuple):
    """Of a step's inputs."""

    gradient: Update
    place: Update  # of the point, which moves as ``moved`` does
    memory: Memory


@dataclass(frozen=True, kw_only=True)
class Stepping:
    """An optimizer with all that happens to a gradient before its step; fields as in `undelta.training.Recipe`."""

    optimizer: OptimizerName = "sgd"
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    betas: tuple[float, float] | None = (0.9, 0.999)
    """None: plain averages over all steps so far."""
    adam_epsilon: float = 1e-8
    softness: float = 0.0
    """Adam's denominators are no smaller than this share of their root mean square over a tensor."""
    clip_norm: float | None = None
    proximal: float = 0.0

    @staticmethod
    def of(training: LocalTraining) -> Stepping | None:
        """The optimizer of a client; None for plain SGD, which needs nothing of this."""
        if training.plain:
            return None
        return Stepping(
            optimizer=training.optimizer,
            momentum=training.momentum,
            nesterov=training.nesterov,
            weight_decay=training.weight_decay,
            betas=training.betas,
            adam_epsilon=training.adam_epsilon,
            clip_norm=training.clip_norm,
            proximal=training.proximal,
        )

    @property
    def linear(self) -> bool:
        """Whether a step is linear in all that it depends on."""
        return self.optimizer == "sgd" and self.clip_norm is None

    def start(self, point: Update) -> Place:
        """The start of a round."""
        zeros = {name: torch.zeros_like(value) for name, value in point.items()}
        kinds = (1 if self.momentum else 0) if self.optimizer == "sgd" else 2
        return Place(point, zeros, (zeros,) * kinds, 0)

    def step(self, place: Place, gradient: Update, rates: tuple[float, ...]) -> tuple[Memory, Update]:
        """The memory after a step, or after several along one gradient, and the change of the parameters."""
        slope = self._slope(place, gradient)
        if self.optimizer == "sgd":
            after, whole = _coefficients(self, rates)
            inputs = (*(place.memory or ({},)), slope, place.point, place.moved)
            return tuple(_combined(after, inputs) for _ in place.memory), _combined(whole, inputs)
        adam = self._adam(place, slope, len(rates))
        change = _foreach(torch._foreach_div, adam.mean, adam.divisor)
        torch._foreach_mul_(list(change.values()), -sum(rates))
        if self.weight_decay and self.optimizer == "adamw":
            left = math.prod(1 - rate * self.weight_decay for rate in rates)
            change = _combined((1.0, left - 1), (change, place.point))
        return (adam.mean, adam.square), change

    def pull(
        self, place: Place, gradient: Update, rates: tuple[float, ...], memory: Memory, change: Update
    ) -> Cotangents:
        """The way back through `step`, from cotangents of the memory after it and of the change."""
        if self.optimizer == "sgd":
            after, whole = _coefficients(self, rates)
            outputs = (*(memory or ({},)), change)
            parts = [_combined((after[index], whole[index]), outputs) for index in range(4)]
            slope, before = parts[1], tuple(parts[0] for _ in memory)
            at = _combined((1.0, 1.0), (parts[2], parts[3]))
        else:
            slope, before, at = self._pull_adam(place, self._slope(place, gradient), rates, memory, change)
        cotangent, moved = self._pull_slope(place, gradient, slope)
        return Cotangents(cotangent, _combined((1.0, 1.0), (at, moved)), before)

    def _slope(self, place: Place, gradient: Update) -> Update:
        """The gradient that the optimizer is given: clipped, and before that with the proximal term.

        Where nothing is clipped, SGD's coefficients hold that term.
        """
        if self.clip_norm is None and self.optimizer == "sgd":
            return gradient
        slope = _combined((1.0, self.proximal), (gradient, place.moved))
        if self.clip_norm is not None:
            slope = _combined((float(self._clip(slope)[0]),), (slope,))
        if self.weight_decay and self.optimizer == "adam":
            slope = _combined((1.0, self.weight_decay), (slope, place.point))
        return slope

    def _pull_slope(self, place: Place, gradient: Update, cotangent: Update) -> tuple[Update, Update]:
        """The way back through `_slope`: cotangents of the gradient and of the place."""
        if self.clip_norm is None and self.optimizer == "sgd":
            return cotangent, {}
        at: Update = {}
        if self.weight_decay and self.optimizer == "adam":
            at = _combined((self.weight_decay,), (cotangent,))
        if self.clip_norm is not None:
            slope = _combined((1.0, self.proximal), (gradient, place.moved))
            factor, norm = self._clip(slope)
            turn = 0.0
            if factor < 1:
                turn = float(-inner(cotangent, slope) * factor / ((norm + CLIP_EPSILON) * norm))
            cotangent = _combined((float(factor), turn), (cotangent, slope))
        return cotangent, _combined((1.0, self.proximal), (at, cotangent))

    def _clip(self, slope: Update) -> tuple[Tensor, Tensor]:
        """The factor that clips a gradient, and its norm."""
        norm = torch.stack([torch.linalg.vector_norm(value) for value in slope.values()]).norm()
        return (self.clip_norm / (norm + CLIP_EPSILON)).clamp(max=1.0), norm

    def _adam(self, place: Place, slope: Update, times: int) -> _Adam:
        """Averages after so many steps along one gradient; what divides their mean includes its own correction."""
        count = place.taken + times
        first, second = (beta**times for beta in self.betas) if self.betas else (1 - 1 / count,) * 2
        mean = _combined((first, 1 - first), (place.memory[0], slope))
        square = _combined((second,), (place.memory[1],))
        grads = list(slope.values())
        torch._foreach_addcmul_(list(square.values()), grads, grads, value=1 - second)
        bias = tuple(1 - beta**count for beta in self.betas) if self.betas else (1.0, 1.0)
        root = _foreach(torch._foreach_div, square, bias[1])
        if self.softness:
            for value in root.values():
                value.add_(value.mean(), alpha=self.softness**2)
        torch._foreach_sqrt_(list(root.values()))
        divisor = _foreach(torch._foreach_add, root, self.adam_epsilon)
        torch._foreach_mul_(list(divisor.values()), bias[0])
        return _Adam(mean, square, root, divisor, (first, second), (bias[0], bias[1]))

    def _pull_adam(
        self, place: Place, slope: Update, rates: tuple[float, ...], memory: Memory, change: Update
    ) -> tuple[Update, Memory, Update]:
        """Cotangents of the gradient, of the averages and of the point."""
        adam = self._adam(place, slope, len(rates))
        (first, second), (_, bias) = adam.betas, adam.bias
        gradients, means, squares = Update(), Update(), Update()
        for name, cotangent in change.items():
            along_mean = cotangent * -sum(rates) / adam.divisor[name]
            means[name] = memory[0][name] + along_mean
            root = adam.root[name]
            # Where no gradient ever was, the root's derivative is taken as zero.
            downward = along_mean * adam.mean[name] / adam.divisor[name] * (adam.bias[0] / (2 * bias))
            downward = torch.where(root > 0, -downward / root, 0.0)
            if self.softness:
                downward += downward.mean() * self.softness**2
            squares[name] = memory[1][name] + downward
            gradients[name] = (1 - first) * means[name] + (2 - 2 * second) * slope[name] * squares[name]
        before = (_combined((first,), (means,)), _combined((second,), (squares,)))
        if not (self.weight_decay and self.optimizer == "adamw"):
            return gradients, before, {}
        left = math.prod(1 - rate * self.weight_decay for rate in rates)
        return gradients, before, _combined((left - 1,), (change,))


class _Adam(NamedTuple):
    """Of one step: the averages, the root of the squares with bias corrected, what divides the mean, and how."""

    mean: Update
    square: Update
    root: Update
    divisor: Update
    betas: tuple[float, float]
    bias: tuple[float, float]


class Response(NamedTuple):
    """What becomes of the gradients of a whole round, as far as it does not depend on them."""

    length: float
    """The weights with which the steps' gradients enter the update, together: η·E·B for plain SGD."""
    decay: float
    """The update without any gradient, as a multiple of the round's start: what weight decay does alone."""
    gradients: tuple[float, ...]
    """The share of these weights that is spent before each step, and after the last."""
    moved: tuple[float, ...]
    """The share of the way that is done by then, if all gradients are alike."""

    def reached(self, position: float) -> float:
        """The share of the way that is done when this share of the gradients' weights is spent."""
        for index in range(1, len(self.gradients)):
            low, high = self.gradients[index - 1 : index + 1]
            if position <= high and high > low:
                share = (position - low) / (high - low)
                return self.moved[index - 1] + share * (self.moved[index] - self.moved[index - 1])
        return 1.0


@lru_cache(maxsize=64)
def response(training: LocalTraining) -> Response:
    """The response of a client's round, as if nothing were clipped.

    By the linear steps themselves, on one number each: a gradient of one in all steps, none at a start of one, and back
    from the end to the gradient of every single step. Adam's steps do not depend on the gradients' length; theirs is
    the sum of the rates.
    """
    if training.adaptive:
        decay = training.weight_decay if training.optimizer == "adamw" else 0.0
        left = math.prod(1 - rate * decay for rate in training.rates)
        return Response(sum(training.rates), left - 1, (0.0, 1.0), (0.0, 1.0))
    stepping = replace(Stepping.of(training) or Stepping(), clip_norm=None)
    laws = [_coefficients(stepping, (rate,)) for rate in training.rates]
    velocity = moved = sinking = decay = 0.0  # of a gradient of one in every step; of none, at a start of one
    way = [0.0]
    for after, whole in laws:
        drift, slide = after[2] + after[3], whole[2] + whole[3]
        velocity, moved = (
            after[0] * velocity + after[1] + drift * moved,
            whole[0] * velocity + whole[1] + (1 + slide) * moved,
        )
        sinking, decay = (
            after[0] * sinking + after[2] + drift * decay,
            whole[0] * sinking + whole[2] + (1 + slide) * decay,
        )
        way.append(moved)
    weights, memory, place = [], 0.0, 1.0  # of each step's gradient, on the way back
    for after, whole in reversed(laws):
        weights.append(after[1] * memory + whole[1] * place)
        memory, place = (
            after[0] * memory + whole[0] * place,
            (after[2] + after[3]) * memory + (1 + whole[2] + whole[3]) * place,
        )
    spent = [0.0, *itertools.accumulate(reversed(weights))]
    return Response(-moved, decay, tuple(part / moved for part in spent), tuple(part / moved for part in way))


@lru_cache(maxsize=1024)
def _coefficients(stepping: Stepping, rates: tuple[float, ...]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """How SGD's velocity and change after steps along one gradient depend on velocity, gradient, point and moved."""
    velocity, gradient, point, moved = torch.eye(4, dtype=torch.float64).unbind()
    change = torch.zeros(4, dtype=torch.float64)
    pull = 0.0 if stepping.clip_norm is not None else stepping.proximal  # before clipping, which is done already
    for rate in rates:
        slope = gradient + pull * (moved + change) + stepping.weight_decay * (point + change)
        velocity = stepping.momentum * velocity + slope
        change = change - rate * (slope + stepping.momentum * velocity if stepping.nesterov else velocity)
    return tuple(velocity.tolist()), tuple(change.tolist())


def _combined(factors: Sequence[float], parts: Sequence[Update]) -> Update:
    """The sum of the parts, each times its factor; an empty part is zero, and so is the sum of none."""
    used = [(factor, part) for factor, part in zip(factors, parts, strict=True) if factor and part]
    if not used:
        like = next((part for part in parts if part), {})
        return {name: torch.zeros_like(value) for name, value in like.items()}
    (factor, first), *others = used
    total = list(first.values()) if factor == 1 and not others else torch._foreach_mul(list(first.values()), factor)
    for factor, part in others:
        torch._foreach_add_(total, [part[name] for name in first], alpha=factor)
    return dict(zip(first, total, strict=True))


def _foreach(operation: Callable[..., Any], part: Update, other: Update | float) -> Update:
    others = [other[name] for name in part] if isinstance(other, dict) else other
    return dict(zip(part, operation(list(part.values()), others), strict=True))
