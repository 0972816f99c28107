"""BatchNorm with its second derivatives, over the batch's own statistics or over fixed ones."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from undelta.engine.moments import centered_and_squares, sum_per_channel
from undelta.engine.ops import Back, Cell, Maybe, Parameters, given
from undelta.errors import ConfigError

ONE_VALUE = (
    "BatchNorm over one value per channel has no statistics; use fewer batches, larger images, or norm_mode = 'eval'"
)


@dataclass(frozen=True, kw_only=True)
class Norm:
    """What both kinds share. Everything is written out as a few plain passes: a factor per channel for each map."""

    weight: str | None
    bias: str | None
    eps: float

    def _weight(self, at: Parameters) -> Maybe:
        return at[self.weight] if self.weight else None

    def _bias(self, at: Parameters) -> Maybe:
        return at[self.bias] if self.bias else None

    def _gradients(self, weight: Tensor, bias: Tensor) -> dict[str, Tensor]:
        return {name: value for name, value in ((self.weight, weight), (self.bias, bias)) if name is not None}

    @abstractmethod
    def moments(self, cell: Cell) -> tuple[Tensor, Tensor]:
        """Of x, per channel: the mean, and the sum of squared deviations from it."""


@dataclass(frozen=True, kw_only=True)
class BatchNorm(Norm):
    """y = γ x̂ + β with x̂ = (x − m)/s over the mini-batch's own mean m and s² = variance + eps.

    With P(v) = v − mean(v) − x̂ mean(v x̂): the tangent of x̂ is P(ẋ)/s, the adjoint of x is γ P(δ)/s, and ṡ = mean(ẋ x̂).
    """

    def forward(self, cell: Cell, at: Parameters, *inputs: Tensor) -> Tensor:
        """γ x̂ + β."""
        (values,) = inputs
        count = values.numel() // values.shape[1]
        if count == 1:
            raise ConfigError(ONE_VALUE)
        mean, centered, squares = centered_and_squares(values)
        inverse = (squares / count + self.eps).rsqrt()
        normal = centered.mul_(_channels(inverse, values))
        cell.saved = (normal, inverse, mean, squares)
        weight, bias = self._weight(at), self._bias(at)
        result = normal.clone() if weight is None else normal * _channels(weight, normal)
        return result if bias is None else result.add_(_channels(bias, result))

    def moments(self, cell: Cell) -> tuple[Tensor, Tensor]:
        """Known from the forward sweep."""
        return cell.saved[2], cell.saved[3]

    def _means(self, value: Tensor, normal: Tensor) -> tuple[Tensor, Tensor]:
        """The means of v and of v x̂."""
        count = normal.numel() // normal.shape[1]
        return sum_per_channel(value) / count, sum_per_channel(value * normal) / count

    def backward(self, cell: Cell, at: Parameters, delta: Tensor, *, inputs: bool, parameters: bool) -> Back:
        """γ P(δ)/s; Σ δ x̂ and Σ δ."""
        cell.delta = delta
        normal, inverse = cell.saved[:2]
        mean, product = self._means(delta, normal)
        cell.saved = (*cell.saved[:4], mean, product)
        scale = _times(inverse, self._weight(at))
        adjoint = delta * _channels(scale, delta)
        adjoint.addcmul_(normal, _channels(-scale * product, normal)).add_(_channels(-scale * mean, normal))
        count = normal.numel() // normal.shape[1]
        return Back((adjoint,), self._gradients(product * count, mean * count) if parameters else {})

    def tangent(self, cell: Cell, at: Parameters, mu: Parameters, *tangents: Maybe) -> Maybe:
        """γ P(ẋ)/s + γ̇ x̂ + β̇."""
        normal, inverse = cell.saved[:2]
        (cell.tangent,) = tangents
        turned, shift = _of(mu, self.weight), _of(mu, self.bias)
        if cell.tangent is None:
            return _affine(normal, turned, shift)
        mean, product = self._means(cell.tangent, normal)
        cell.saved = (*cell.saved[:6], mean, product)
        scale = _times(inverse, self._weight(at))
        result = cell.tangent * _channels(scale, normal)
        result.addcmul_(normal, _channels(_plus(-scale * product, turned), normal))
        return result.add_(_channels(_plus(-scale * mean, shift), normal))

    def backward_tangent(
        self, cell: Cell, at: Parameters, mu: Parameters, delta_dot: Tensor, *, parameters: bool
    ) -> Back:
        """γ/s P(δ̇) + (γ̇ − γ ṡ/s) P(δ)/s − γ/s (ẋ̂ mean(δ x̂) + x̂ mean(δ ẋ̂)), with ẋ̂ = P(ẋ)/s."""
        normal, inverse, mean, _, delta_mean, delta_product, *rest = cell.saved
        delta, moved, turned = given(cell.delta), cell.tangent, _of(mu, self.weight)
        count = normal.numel() // normal.shape[1]
        scale = _times(inverse, self._weight(at))
        dot_mean, dot_product = self._means(delta_dot, normal)
        adjoint = delta_dot * _channels(scale, normal)
        # P(δ)/s and ẋ̂ are not kept: all that they hold of x̂ and of constants goes into two factors per channel.
        by_delta = torch.zeros_like(inverse) if turned is None else turned * inverse
        by_normal, constant = -scale * dot_product, -scale * dot_mean
        weight_gradient = dot_product
        if moved is not None:
            tangent_mean, tangent_product = rest
            by_delta = by_delta - scale * inverse * tangent_product
            cross = sum_per_channel(delta * moved) / count
            cross = inverse * (cross - delta_mean * tangent_mean - delta_product * tangent_product)  # mean(δ ẋ̂)
            by_moved = -scale * inverse * delta_product
            adjoint.addcmul_(moved, _channels(by_moved, moved))
            by_normal = by_normal - scale * cross - by_moved * tangent_product
            constant = constant - by_moved * tangent_mean
            weight_gradient = dot_product + cross
        adjoint.addcmul_(delta, _channels(by_delta, delta))
        by_normal, constant = by_normal - by_delta * delta_product, constant - by_delta * delta_mean
        if cell.source is not None:
            slope, shift = cell.source
            by_normal, constant = by_normal + slope / inverse, constant + shift + slope * mean
        adjoint.addcmul_(normal, _channels(by_normal, normal)).add_(_channels(constant, normal))
        gradients = self._gradients(weight_gradient * count, dot_mean * count) if parameters else {}
        return Back((adjoint,), gradients)


@dataclass(frozen=True, kw_only=True)
class FixedNorm(Norm):
    """BatchNorm in eval mode: an affine map per channel by the running statistics m and s², which are constants."""

    mean: str
    variance: str

    def _inverse(self, at: Parameters) -> Tensor:
        return (at[self.variance] + self.eps).rsqrt()

    def forward(self, cell: Cell, at: Parameters, *inputs: Tensor) -> Tensor:
        """γ x̂ + β."""
        (values,) = cell.saved = inputs
        scale = _times(self._inverse(at), self._weight(at))
        shift = _plus(-scale * at[self.mean], self._bias(at))
        return (values * _channels(scale, values)).add_(_channels(shift, values))

    def moments(self, cell: Cell) -> tuple[Tensor, Tensor]:
        """Computed here: nothing else needs them."""
        mean, _, squares = centered_and_squares(cell.saved[0])
        return mean, squares

    def _against_normal(self, value: Tensor, total: Tensor, cell: Cell, at: Parameters) -> Tensor:
        """Σ v x̂, where Σ v is known: x̂ itself is never written."""
        return (sum_per_channel(value * cell.saved[0]) - at[self.mean] * total) * self._inverse(at)

    def backward(self, cell: Cell, at: Parameters, delta: Tensor, *, inputs: bool, parameters: bool) -> Back:
        """γ δ/s; Σ δ x̂ and Σ δ."""
        cell.delta = delta
        adjoint = delta * _channels(_times(self._inverse(at), self._weight(at)), delta)
        if not parameters:
            return Back((adjoint,), {})
        total = sum_per_channel(delta)
        return Back((adjoint,), self._gradients(self._against_normal(delta, total, cell, at), total))

    def tangent(self, cell: Cell, at: Parameters, mu: Parameters, *tangents: Maybe) -> Maybe:
        """γ ẋ/s + γ̇ x̂ + β̇."""
        (values,), (cell.tangent,) = cell.saved, tangents
        turned, shift, inverse = _of(mu, self.weight), _of(mu, self.bias), self._inverse(at)
        slope = None if turned is None else turned * inverse
        shift = shift if slope is None else _plus(-slope * at[self.mean], shift)
        if cell.tangent is None:
            return _affine(values, slope, shift)
        result = cell.tangent * _channels(_times(inverse, self._weight(at)), values)
        if slope is not None:
            result.addcmul_(values, _channels(slope, values))
        return result if shift is None else result.add_(_channels(shift, values))

    def backward_tangent(
        self, cell: Cell, at: Parameters, mu: Parameters, delta_dot: Tensor, *, parameters: bool
    ) -> Back:
        """(γ δ̇ + γ̇ δ)/s; Σ δ̇ x̂ + δ ẋ/s and Σ δ̇."""
        delta, turned, inverse = given(cell.delta), _of(mu, self.weight), self._inverse(at)
        adjoint = delta_dot * _channels(_times(inverse, self._weight(at)), delta_dot)
        if turned is not None:
            adjoint.addcmul_(delta, _channels(turned * inverse, delta))
        if cell.source is not None:
            slope, shift = cell.source
            adjoint.addcmul_(cell.saved[0], _channels(slope, delta)).add_(_channels(shift, delta))
        if not parameters:
            return Back((adjoint,), {})
        total = sum_per_channel(delta_dot)
        product = self._against_normal(delta_dot, total, cell, at)
        if cell.tangent is not None:
            product += sum_per_channel(delta * cell.tangent) * inverse
        return Back((adjoint,), self._gradients(product, total))


def _channels(values: Tensor, like: Tensor) -> Tensor:
    """One value per channel, shaped to broadcast over ``like``."""
    return values.view(1, -1, *[1] * (like.dim() - 2))


def _of(mu: Parameters, name: str | None) -> Maybe:
    return None if name is None else mu.get(name)


def _times(value: Tensor, factor: Maybe) -> Tensor:
    return value if factor is None else value * factor


def _plus(value: Tensor, more: Maybe) -> Tensor:
    return value if more is None else value + more


def _affine(values: Tensor, slope: Maybe, shift: Maybe) -> Maybe:
    """slope·v + shift per channel, where None is zero."""
    if slope is None:
        return None if shift is None else _channels(shift, values).expand_as(values).clone()
    result = values * _channels(slope, values)
    return result if shift is None else result.add_(_channels(shift, values))
