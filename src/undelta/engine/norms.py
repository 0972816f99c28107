"""BatchNorm with its second derivatives, over the batch's own statistics or over fixed ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from undelta.engine.ops import Back, Cell, Maybe, Parameters, aten
from undelta.errors import ConfigError


def _channels(values: Tensor, like: Tensor) -> Tensor:
    """One value per channel, shaped to broadcast over ``like``."""
    return values.view(1, -1, *[1] * (like.dim() - 2))


def _of(mu: Parameters, name: str | None) -> Maybe:
    return None if name is None else mu.get(name)


def _sum(values: Tensor) -> Tensor:
    return values.sum([axis for axis in range(values.dim()) if axis != 1])


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

    def _shift(self, result: Maybe, mu: Parameters, values: Tensor, mean: Tensor, inverse: Tensor) -> Maybe:
        """The tangent γ̇ x̂ + β̇ added to the rest of the output's tangent."""
        weight, offset = _of(mu, self.weight), _of(mu, self.bias)
        if weight is not None:
            slope = weight * inverse
            offset = -slope * mean if offset is None else offset - slope * mean
            scale = _channels(slope, values)
            result = values * scale if result is None else result.addcmul_(values, scale)
        if offset is not None:
            shift = _channels(offset, values)
            result = shift.expand_as(values).clone() if result is None else result.add_(shift)
        return result


@dataclass(frozen=True, kw_only=True)
class BatchNorm(_Norm):
    """y = γ x̂ + β with x̂ = (x − m)/s over the mini-batch's own mean m and s² = variance + eps.

    With P(v) = v − mean(v) − x̂ mean(v x̂): the tangent of x̂ is P(ẋ)/s, the adjoint of x is γ P(δ)/s, and ṡ = mean(ẋ x̂).
    """

    def forward(self, cell: Cell, at: Parameters, *inputs: Tensor) -> Tensor:
        """γ x̂ + β."""
        if inputs[0].numel() == inputs[0].shape[1]:
            raise ConfigError(
                "BatchNorm over one value per channel has no statistics; use fewer batches, larger images, or "
                "norm_mode = 'eval'"
            )
        value, mean, inverse = torch.native_batch_norm(
            inputs[0], self._weight(at), self._bias(at), None, None, True, 0.0, self.eps
        )
        cell.saved = (inputs[0], mean, inverse)
        return value

    def _projected(self, value: Tensor, cell: Cell, weight: Maybe) -> tuple[Tensor, Tensor, Tensor]:
        """γ P(v)/s, Σ v x̂ and Σ v."""
        inputs, mean, inverse = cell.saved[:3]
        result = aten.native_batch_norm_backward(
            value, inputs, weight, None, None, mean, inverse, True, self.eps, (True, True, True)
        )
        return result[0], result[1], result[2]

    def backward(self, cell: Cell, at: Parameters, delta: Tensor, *, inputs: bool, parameters: bool) -> Back:
        """γ P(δ)/s; Σ δ x̂ and Σ δ."""
        # The projection is kept without γ, which may be zero.
        projected, weight_gradient, bias_gradient = self._projected(delta, cell, None)
        cell.saved = (*cell.saved, projected, weight_gradient)
        weight = self._weight(at)
        adjoint = projected if weight is None else projected * _channels(weight, projected)
        return Back((adjoint,), self._gradients(weight_gradient, bias_gradient) if parameters else {})

    def tangent(self, cell: Cell, at: Parameters, mu: Parameters, *tangents: Maybe) -> Maybe:
        """γ P(ẋ)/s + γ̇ x̂ + β̇."""
        values, mean, inverse = cell.saved[:3]
        result = None
        if tangents[0] is not None:
            moved, product, _ = self._projected(tangents[0], cell, None)
            cell.tangent = moved  # of x̂
            cell.saved = (*cell.saved, product)
            weight = self._weight(at)
            result = moved.clone() if weight is None else moved * _channels(weight, moved)
        return self._shift(result, mu, values, mean, inverse)

    def backward_tangent(
        self, cell: Cell, at: Parameters, mu: Parameters, delta_dot: Tensor, *, parameters: bool
    ) -> Back:
        """γ/s P(δ̇) + (γ̇ − γ ṡ/s) P(δ)/s − γ/s (ẋ̂ mean(δ x̂) + x̂ mean(δ ẋ̂))."""
        values, mean, inverse, projected, delta_product, *rest = cell.saved
        delta, moved, weight = cell.delta, cell.tangent, self._weight(at)
        assert delta is not None  # noqa: S101
        count = values.numel() // values.shape[1]
        adjoint, weight_gradient, bias_gradient = self._projected(delta_dot, cell, weight)
        gamma = torch.ones_like(mean) if weight is None else weight
        turned = _of(mu, self.weight)
        factor = torch.zeros_like(mean) if turned is None else turned.clone()
        if moved is not None:
            factor -= gamma * inverse * rest[0] / count
            cross = _sum(delta * moved)
            adjoint.addcmul_(moved, _channels(-gamma * inverse * delta_product / count, moved))
            scale = -gamma * inverse.square() * cross / count
            adjoint.addcmul_(values, _channels(scale, values)).add_(_channels(-scale * mean, values))
            weight_gradient = weight_gradient + cross
        adjoint.addcmul_(projected, _channels(factor, projected))
        return Back((adjoint,), self._gradients(weight_gradient, bias_gradient) if parameters else {})


@dataclass(frozen=True, kw_only=True)
class FixedNorm(_Norm):
    """BatchNorm in eval mode: an affine map per channel by the running statistics, which are constants."""

    mean: str
    variance: str

    def _statistics(self, at: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        return at[self.mean], (at[self.variance] + self.eps).rsqrt()

    def forward(self, cell: Cell, at: Parameters, *inputs: Tensor) -> Tensor:
        """γ x̂ + β."""
        cell.saved = inputs
        return F.batch_norm(
            inputs[0], at[self.mean], at[self.variance], self._weight(at), self._bias(at), False, 0.0, self.eps
        )

    def _scaled(self, value: Tensor, cell: Cell, at: Parameters, parameters: bool) -> tuple[Tensor, dict[str, Tensor]]:
        """γ v/s; Σ v x̂ and Σ v."""
        result = aten.native_batch_norm_backward(
            value,
            cell.saved[0],
            self._weight(at),
            at[self.mean],
            at[self.variance],
            None,
            None,
            False,
            self.eps,
            (True, parameters, parameters),
        )
        return result[0], self._gradients(result[1], result[2]) if parameters else {}

    def backward(self, cell: Cell, at: Parameters, delta: Tensor, *, inputs: bool, parameters: bool) -> Back:
        """γ δ/s; Σ δ x̂ and Σ δ."""
        adjoint, gradients = self._scaled(delta, cell, at, parameters)
        return Back((adjoint,), gradients)

    def tangent(self, cell: Cell, at: Parameters, mu: Parameters, *tangents: Maybe) -> Maybe:
        """γ ẋ/s + γ̇ x̂ + β̇."""
        (values,), (cell.tangent,) = cell.saved, tangents
        mean, inverse = self._statistics(at)
        result = None
        if cell.tangent is not None:
            weight = self._weight(at)
            result = cell.tangent * _channels(inverse if weight is None else weight * inverse, values)
        return self._shift(result, mu, values, mean, inverse)

    def backward_tangent(
        self, cell: Cell, at: Parameters, mu: Parameters, delta_dot: Tensor, *, parameters: bool
    ) -> Back:
        """(γ δ̇ + γ̇ δ)/s; Σ δ̇ x̂ + δ ẋ/s and Σ δ̇."""
        delta = cell.delta
        assert delta is not None  # noqa: S101
        _, inverse = self._statistics(at)
        adjoint, gradients = self._scaled(delta_dot, cell, at, parameters)
        turned = _of(mu, self.weight)
        if turned is not None:
            adjoint.addcmul_(delta, _channels(turned * inverse, delta))
        if parameters and self.weight and cell.tangent is not None:
            gradients[self.weight] = gradients[self.weight] + _sum(delta * cell.tangent) * inverse
        return Back((adjoint,), gradients)
