"""Mean and variance of what BatchNorms see, over all parts of a mini-batch, and a prior's way back to each part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from undelta.engine import ranks


class Slope(NamedTuple):
    """A prior's gradient by a BatchNorm's input x, which is affine per channel: factor·x + shift."""

    factor: Tensor
    shift: Tensor


class Moments(NamedTuple):
    """One BatchNorm's input, per channel: its mean and (unbiased) variance, or a function's derivatives by them."""

    mean: Tensor
    variance: Tensor


MomentPrior: TypeAlias = Callable[[Mapping[str, Moments]], Tensor]
"""A differentiable penalty on the moments of a mini-batch, by BatchNorm."""


def sum_per_channel(values: Tensor) -> Tensor:
    """(N, C, ...) -> (C,). In two reductions, which are much faster on the CPU than one over several axes."""
    return values.sum(0) if values.dim() == 2 else values.flatten(2).sum(2).sum(0)


def centered_and_squares(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Per channel the mean; the deviations from it; the sums of their squares."""
    mean = sum_per_channel(values) * (values.shape[1] / values.numel())
    centered = values - mean.view(1, -1, *[1] * (values.dim() - 2))
    # The norm's kernel sums squares without writing them.
    sizes = torch.linalg.vector_norm(centered.flatten(2) if values.dim() > 2 else centered.unsqueeze(2), dim=2)
    return mean, centered, sizes.square().sum(0)


class Part(NamedTuple):
    """What one BatchNorm saw of a part of a mini-batch, per channel."""

    size: float
    mean: Tensor
    squares: Tensor  # sums of squared deviations from the mean


class Tally:
    """Collects one mini-batch's moments part by part, then says what a prior wants of each part."""

    def __init__(self) -> None:
        self._counts: dict[str, float] = {}
        self._means: dict[str, Tensor] = {}
        self._squares: dict[str, Tensor] = {}  # sums of squared deviations from the mean
        self._slopes: dict[str, Moments] = {}

    def add(self, parts: Mapping[str, Part]) -> None:
        """One part of the mini-batch; deviations are merged, not squares, which would cancel."""
        for name, (count, mean, squares) in parts.items():
            if name not in self._counts:
                self._counts[name], self._means[name], self._squares[name] = count, mean, squares
                continue
            before, total = self._counts[name], self._counts[name] + count
            gap = mean - self._means[name]
            self._means[name] = self._means[name] + gap * (count / total)
            self._squares[name] = self._squares[name] + squares + gap.square() * (before * count / total)
            self._counts[name] = total

    def _over_ranks(self) -> None:
        if not ranks.shared():
            return
        for name, own in self._means.items():
            count = own.new_tensor([self._counts[name]])
            mean = own * count
            ranks.sum_over_ranks([count, mean])
            mean = mean / count
            squares = self._squares[name] + (own - mean).square() * self._counts[name]
            ranks.sum_over_ranks([squares])
            self._counts[name], self._means[name], self._squares[name] = float(count), mean, squares

    def penalty(self, prior: MomentPrior) -> Tensor:
        """The prior's value, once all parts are in."""
        self._over_ranks()
        moments = {
            name: Moments(
                mean.detach().requires_grad_(),
                (self._squares[name] / max(self._counts[name] - 1, 1)).detach().requires_grad_(),
            )
            for name, mean in self._means.items()
        }
        with torch.enable_grad():
            value = prior(moments)
        if not value.requires_grad:  # a network without BatchNorm
            return value
        leaves = [leaf for pair in moments.values() for leaf in pair]
        slopes = iter(torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True))
        self._slopes = {name: Moments(next(slopes), next(slopes)) for name in moments}
        return value.detach()

    def slopes(self, factor: float) -> dict[str, Slope]:
        """The penalty's gradient by what each BatchNorm saw, times ``factor``; the same for every part."""
        result = {}
        for name, count in self._counts.items():
            slope = self._slopes[name].variance * (2 * factor / max(count - 1, 1))
            result[name] = Slope(slope, self._slopes[name].mean * (factor / count) - slope * self._means[name])
        return result
