"""BatchNorm with its second derivatives, over the batch's own statistics or over fixed ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from undelta.engine.moments import mean_and_squares, sum_per_channel
from undelta.engine.ops import Back, Cell, Maybe, Parameters
from undelta.errors import ConfigError

ONE_VALUE = (
    "BatchNorm over one value per channel has no statistics; use fewer batches, larger images, or norm_mode = 'eval'"
)


def _channels(values: Tensor, like: Tensor) -> Tensor:
    """One value per channel, shaped to broadcast over ``like``."""
    return values.view(1, -1, *[1] * (like.dim() - 2))


def _of(mu: Parameters, name: str | None) -> Maybe:
    return None if name is None else mu.get(name)


@dataclass(frozen=True, kw_only=True)
class _Norm:
    weight: str | None
    bias: str | None
    eps: float

    def _weight(self, at: Parameters) -> Maybe:
        return at[self.weight] if self.weight else None

    def _bias(self, at: Parameters) -> Maybe:
        return at[self.bias] if self.bias else None

    def _gradients(self, weight: Tensor, bias: Tensor) -> dict[str, Tensor]:
        return {name: value for name, value in ((self.weight, weight), (self.bias, bias)) if name is not None}

    def _shift(self, result: Maybe, mu: Parameters, normal: Tensor) -> Maybe:
        """The tangent γ̇ x̂ + β̇ added to the rest of the output's tangent."""
        weight, bias = _of(mu, self.weight), _of(mu, self.bias)
        if weight is not None:
            scale = _channels(weight, normal)
            result = normal * scale if result is None else result.addcmul_(normal, scale)
        if bias is not None:
            shift = _channels(bias, normal)
            result = shift.expand_as(normal).clone() if result is None else result.add_(shift)
        return result


@dataclass(frozen=True, kw_only=True)
class BatchNorm(_Norm):
    """y = γ x̂ + β with x̂ = (x − m)/s over the mini-batch's own mean m and s² = variance + eps.

    With P(v) = v − mean(v) − x̂ mean(v x̂): the tangent of x̂ is P(ẋ)/s, the adjoint of x is γ P(δ)/s, and ṡ = mean(ẋ x̂).
    Written out, since on the CPU the fused kernels are slower than a few plain passes.
    """

    def forward(self, cell: Cell, at: Parameters, *inputs: Tensor) -> Tensor:
        """γ x̂ + β."""
        (values,) = inputs
        count = values.numel() // values.shape[1]
        if count == 1:
            raise ConfigError(ONE_VALUE)
        mean, squares = mean_and_squares(values)
        inverse = (squares / count + self.eps).rsqrt()
        normal = (values - _channels(mean, values)).mul_(_channels(inverse, values))
        cell.saved = (normal, mean, inverse)
        weight, bias = self._weight(at), self._bias(at)
        result = normal.clone() if weight is None else normal * _channels(weight, normal)
        return result if bias is None else result.add_(_channels(bias, result))

    def norm_input(self, cell: Cell) -> Tensor:
        """x, from x̂."""
        normal, mean, inverse = cell.saved[:3]
        return (normal / _channels(inverse, normal)).add_(_channels(mean, normal))

    def _projected(self, value: Tensor, cell: Cell, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scale P(v), Σ v x̂ and Σ v."""
        normal = cell.saved[0]
        count = normal.numel() // normal.shape[1]
        total, product = sum_per_channel(value), sum_per_channel(value * normal)
        result = value * _channels(scale, value)
        result.addcmul_(normal, _channels(-scale * product / count, value))
        result.add_(_channels(-scale * total / count, value))
        return result, product, total

    def backward(self, cell: Cell, at: Parameters, delta: Tensor, *, inputs: bool, parameters: bool) -> Back:
        """γ P(δ)/s; Σ δ x̂ and Σ δ."""
        # The projection is kept without γ, which may be zero.
        projected, weight_gradient, bias_gradient = self._projected(delta, cell, cell.saved[2])
        cell.saved = (*cell.saved, projected, weight_gradient.clone())  # whoever takes a gradient may change it
        weight = self._weight(at)
        adjoint = projected if weight is None else projected * _channels(weight, projected)
        return Back((adjoint,), self._gradients(weight_gradient, bias_gradient) if parameters else {})

    def tangent(self, cell: Cell, at: Parameters, mu: Parameters, *tangents: Maybe) -> Maybe:
        """γ P(ẋ)/s + γ̇ x̂ + β̇."""
        normal, inverse, result = cell.saved[0], cell.saved[2], None
        cell.tangent = None
        if tangents[0] is not None:
            moved, product, _ = self._projected(tangents[0], cell, inverse)
            cell.tangent = moved  # of x̂
            cell.saved = (*cell.saved[:5], product)
            weight = self._weight(at)
            result = moved.clone() if weight is None else moved * _channels(weight, moved)
        return self._shift(result, mu, normal)

    def backward_tangent(
        self, cell: Cell, at: Parameters, mu: Parameters, delta_dot: Tensor, *, parameters: bool
    ) -> Back:
        """γ/s P(δ̇) + (γ̇ − γ ṡ/s) P(δ)/s − γ/s (ẋ̂ mean(δ x̂) + x̂ mean(δ ẋ̂))."""
        normal, _, inverse, projected, delta_product, *rest = cell.saved
        delta, moved, weight = cell.delta, cell.tangent, self._weight(at)
        assert delta is not None  # noqa: S101
        count = normal.numel() // normal.shape[1]
        scale = inverse if weight is None else weight * inverse
        adjoint, weight_gradient, bias_gradient = self._projected(delta_dot, cell, scale)
        turned = _of(mu, self.weight)
        factor = torch.zeros_like(inverse) if turned is None else turned.clone()
        if moved is not None:
            factor -= scale * rest[0] / count
            cross = sum_per_channel(delta * moved)
            adjoint.addcmul_(moved, _channels(-scale * delta_product / count, moved))
            adjoint.addcmul_(normal, _channels(-scale * cross / count, normal))
            weight_gradient = weight_gradient + cross
        adjoint.addcmul_(projected, _channels(factor, projected))
        return Back((adjoint,), self._gradients(weight_gradient, bias_gradient) if parameters else {})


@dataclass(frozen=True, kw_only=True)
class FixedNorm(_Norm):
    """BatchNorm in eval mode: an affine map per channel by the running statistics, which are constants."""

    mean: str
    variance: str

    def _inverse(self, at: Parameters) -> Tensor:
        return (at[self.variance] + self.eps).rsqrt()

    def _scale(self, at: Parameters) -> Tensor:
        """γ/s."""
        weight, inverse = self._weight(at), self._inverse(at)
        return inverse if weight is None else weight * inverse

    def forward(self, cell: Cell, at: Parameters, *inputs: Tensor) -> Tensor:
        """γ x̂ + β."""
        (values,) = inputs
        cell.saved = inputs
        bias, scale = self._bias(at), self._scale(at)
        shift = -scale * at[self.mean] if bias is None else bias - scale * at[self.mean]
        return (values * _channels(scale, values)).add_(_channels(shift, values))

    def norm_input(self, cell: Cell) -> Tensor:
        """X."""
        return cell.saved[0]

    def _normal(self, cell: Cell, at: Parameters) -> Tensor:
        """x̂."""
        (values,) = cell.saved
        return (values - _channels(at[self.mean], values)).mul_(_channels(self._inverse(at), values))

    def backward(self, cell: Cell, at: Parameters, delta: Tensor, *, inputs: bool, parameters: bool) -> Back:
        """γ δ/s; Σ δ x̂ and Σ δ."""
        adjoint = delta * _channels(self._scale(at), delta)
        if not parameters:
            return Back((adjoint,), {})
        product = sum_per_channel(self._normal(cell, at).mul_(delta))
        return Back((adjoint,), self._gradients(product, sum_per_channel(delta)))

    def tangent(self, cell: Cell, at: Parameters, mu: Parameters, *tangents: Maybe) -> Maybe:
        """γ ẋ/s + γ̇ x̂ + β̇."""
        (cell.tangent,) = tangents
        result = None if cell.tangent is None else cell.tangent * _channels(self._scale(at), cell.tangent)
        return self._shift(result, mu, self._normal(cell, at))

    def backward_tangent(
        self, cell: Cell, at: Parameters, mu: Parameters, delta_dot: Tensor, *, parameters: bool
    ) -> Back:
        """(γ δ̇ + γ̇ δ)/s; Σ δ̇ x̂ + δ ẋ/s and Σ δ̇."""
        delta, turned, inverse = cell.delta, _of(mu, self.weight), self._inverse(at)
        assert delta is not None  # noqa: S101
        adjoint = delta_dot * _channels(self._scale(at), delta_dot)
        if turned is not None:
            adjoint.addcmul_(delta, _channels(turned * inverse, delta))
        if not parameters:
            return Back((adjoint,), {})
        product = sum_per_channel(self._normal(cell, at).mul_(delta_dot))
        if cell.tangent is not None:
            product += sum_per_channel(delta * cell.tangent) * inverse
        return Back((adjoint,), self._gradients(product, sum_per_channel(delta_dot)))
