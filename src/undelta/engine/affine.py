"""Layers that are affine in their inputs and in their parameters: convolutions and linear layers.

With ∘ for the product of weight and input: y = W ∘ x + b, ẏ = μ ∘ x + W ∘ ẋ + β̇, and correspondingly backward.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from undelta.engine.ops import Back, Cell, Maybe, Parameters, aten, given
from undelta.engine.products import linear, product, sum_of_products

SMALL_INPUT = 4  # channels: up to here, an image's adjoint is faster by one matrix product
TINY_MAP = 64  # pixels: below, a weight's gradient is faster by one matrix product
DOT_MAP = 4  # pixels: up to here, everything else is, too, since the usual kernel copies all weights at every call


@dataclass(frozen=True, kw_only=True)
class _Affine:
    weight: str
    bias: str | None

    @abstractmethod
    def _apply(self, inputs: Tensor, weight: Tensor, bias: Maybe = None) -> Tensor:
        """W ∘ x + b."""

    @abstractmethod
    def _input_adjoint(self, inputs: Tensor, *pairs: tuple[Tensor, Tensor]) -> Tensor:
        """Σ Wᵀ δ over pairs of δ and W."""

    @abstractmethod
    def _weight_adjoint(self, delta: Tensor, inputs: Tensor, weight: Tensor) -> Tensor:
        """δ ⊗ x, summed over the samples."""

    def forward(self, cell: Cell, at: Parameters, *inputs: Tensor) -> Tensor:
        """W ∘ x + b."""
        cell.saved = inputs
        return self._apply(inputs[0], at[self.weight], at[self.bias] if self.bias else None)

    def tangent(self, cell: Cell, at: Parameters, mu: Parameters, *tangents: Maybe) -> Maybe:
        """μ ∘ x + W ∘ ẋ + β̇; a frozen weight has no μ."""
        (values,), (cell.tangent,) = cell.saved, tangents
        weight, bias = mu.get(self.weight), mu.get(self.bias) if self.bias else None
        result = None
        if weight is not None or bias is not None:
            result = self._apply(values, torch.zeros_like(at[self.weight]) if weight is None else weight, bias)
        if cell.tangent is not None:
            moved = self._apply(cell.tangent, at[self.weight])
            result = moved if result is None else result.add_(moved)
        return result

    def _bias_adjoint(self, delta: Tensor) -> dict[str, Tensor]:
        places = tuple(axis for axis in range(delta.dim()) if axis != 1)
        return {} if self.bias is None else {self.bias: delta.sum(places)}

    def backward(self, cell: Cell, at: Parameters, delta: Tensor, *, inputs: bool, parameters: bool) -> Back:
        """Wᵀ δ, and δ ⊗ x."""
        (values,), cell.delta = cell.saved, delta
        adjoint = self._input_adjoint(values, (delta, at[self.weight])) if inputs else None
        if not parameters:
            return Back((adjoint,), {})
        gradient = self._weight_adjoint(delta, values, at[self.weight])
        return Back((adjoint,), {self.weight: gradient, **self._bias_adjoint(delta)})

    def backward_tangent(
        self, cell: Cell, at: Parameters, mu: Parameters, delta_dot: Tensor, *, parameters: bool
    ) -> Back:
        """Wᵀ δ̇ + μᵀ δ, and δ̇ ⊗ x + δ ⊗ ẋ."""
        (values,), delta = cell.saved, given(cell.delta)
        pairs = [(delta_dot, at[self.weight])]
        if self.weight in mu:
            pairs.append((delta, mu[self.weight]))
        adjoint = self._input_adjoint(values, *pairs)
        if not parameters:
            return Back((adjoint,), {})
        pair = delta_dot, values
        if cell.tangent is not None:  # both products as one over twice the samples
            pair = torch.cat([delta_dot, delta]), torch.cat([values, cell.tangent])
        gradient = self._weight_adjoint(*pair, at[self.weight])
        return Back((adjoint,), {self.weight: gradient, **self._bias_adjoint(delta_dot)})


@dataclass(frozen=True, kw_only=True)
class Convolution(_Affine):
    """y = W * x + b."""

    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int

    def _apply(self, inputs: Tensor, weight: Tensor, bias: Maybe = None) -> Tensor:
        rows, columns = self._map(inputs, weight)
        if self.groups > 1 or rows * columns > DOT_MAP:
            return F.conv2d(inputs, weight, bias, self.stride, self.padding, self.dilation, self.groups)
        values = linear(self._patches(inputs, weight), weight.flatten(1), bias)  # (N · pixels, channels)
        return values.view(len(inputs), -1, len(weight)).transpose(1, 2).reshape(len(inputs), -1, rows, columns)

    def _map(self, inputs: Tensor, weight: Tensor) -> tuple[int, int]:
        """The sides of the output."""
        rows, columns = (
            (side + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
            for side, kernel, stride, padding, dilation in zip(
                inputs.shape[2:], weight.shape[2:], self.stride, self.padding, self.dilation, strict=True
            )
        )
        return rows, columns

    def _patches(self, inputs: Tensor, weight: Tensor) -> Tensor:
        """What every pixel of the output sees of the input; (N · pixels, channels · kernel)."""
        patches = F.unfold(inputs, weight.shape[2:], self.dilation, self.padding, self.stride)
        return patches.transpose(1, 2).reshape(-1, patches.shape[1])

    def _fold(self, columns: Tensor, inputs: Tensor, weight: Tensor) -> Tensor:
        """The transpose of `_patches`, from (N, channels · kernel, pixels)."""
        return F.fold(columns, inputs.shape[2:], weight.shape[2:], self.dilation, self.padding, self.stride)

    def _adjoint(self, delta: Tensor, inputs: Tensor, weight: Tensor, mask: tuple[bool, bool]) -> tuple[Tensor, Tensor]:
        result = aten.convolution_backward(
            delta,
            inputs,
            weight,
            None,
            self.stride,
            self.padding,
            self.dilation,
            False,
            (0, 0),
            self.groups,
            (*mask, False),
        )
        return result[0], result[1]

    def _input_adjoint(self, inputs: Tensor, *pairs: tuple[Tensor, Tensor]) -> Tensor:
        delta, weight = pairs[0]
        if self.groups == 1 and delta[0, 0].numel() <= DOT_MAP:
            flat = [(delta.flatten(2).transpose(1, 2).reshape(-1, len(each)), each.flatten(1)) for delta, each in pairs]
            rows = sum_of_products(flat)
            return self._fold(rows.view(len(inputs), -1, weight[0].numel()).transpose(1, 2), inputs, weight)
        if self.groups > 1 or inputs.shape[1] > SMALL_INPUT:
            parts = [self._adjoint(delta, inputs, weight, (True, False))[0] for delta, weight in pairs]
            return parts[0] if len(parts) == 1 else parts[0].add_(parts[1])
        columns: Maybe = None
        for delta, each in pairs:
            transposed = each.flatten(1).t().expand(len(delta), -1, -1)
            deltas = delta.flatten(2)
            columns = transposed @ deltas if columns is None else columns.baddbmm_(transposed, deltas)
        return self._fold(given(columns), inputs, weight)

    def _weight_adjoint(self, delta: Tensor, inputs: Tensor, weight: Tensor) -> Tensor:
        if self.groups > 1 or delta.shape[2] * delta.shape[3] >= TINY_MAP or weight.shape[1] <= SMALL_INPUT:
            return self._adjoint(delta, inputs, weight, (False, True))[1]
        left = delta.flatten(2).transpose(0, 1).reshape(delta.shape[1], -1)
        return product(left, self._patches(inputs, weight)).view_as(weight)


@dataclass(frozen=True, kw_only=True)
class Dense(_Affine):
    """y = W x + b."""

    def _apply(self, inputs: Tensor, weight: Tensor, bias: Maybe = None) -> Tensor:
        return linear(inputs, weight, bias)

    def _input_adjoint(self, inputs: Tensor, *pairs: tuple[Tensor, Tensor]) -> Tensor:
        return sum_of_products(pairs)

    def _weight_adjoint(self, delta: Tensor, inputs: Tensor, weight: Tensor) -> Tensor:
        return product(delta.t(), inputs)
