"""The operations of a network, each with its first and second derivatives written out.

Of a loss L(θ, x) an attack needs g = ∇θ L and, for a cotangent μ of g, the derivatives of ⟨μ, g⟩ by x and by θ. Since
⟨μ, g⟩ is the tangent of L in the direction μ, four sweeps over the operations give both (Pearlmutter 1994): values
forward, adjoints δ = ∂L/∂y backward, tangents ẏ forward, and the adjoints' tangents δ̇ backward. The first two are a
plain training step; the last two cost twice a forward and twice an input gradient. Autograd's double backward
walks the same way, but through slower kernels and with more memory.

An operation keeps what the later sweeps need in a `Cell`; the operation itself has no state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

aten = torch.ops.aten

Parameters: TypeAlias = Mapping[str, Tensor]
Maybe: TypeAlias = Tensor | None

SMALL_INPUT = 4  # channels: below, an image's adjoint is faster by one matrix product
TINY_MAP = 64  # pixels: below, a weight's gradient is faster by one matrix product


class Cell:
    """What one operation remembers of one mini-batch, from sweep to sweep."""

    __slots__ = ("delta", "saved", "tangent")

    def __init__(self) -> None:
        self.saved: tuple[Tensor, ...] = ()
        self.delta: Maybe = None  # the adjoint of the output
        self.tangent: Maybe = None  # the tangent of the input; None is zero


class Back(NamedTuple):
    """What a backward sweep returns: adjoints of the inputs, and of the operation's own parameters."""

    inputs: tuple[Maybe, ...]
    parameters: dict[str, Tensor]


class Operation(Protocol):
    """One node of a network. ``at`` holds parameters and constants by name, ``mu`` the direction in the parameters."""

    def forward(self, cell: Cell, at: Parameters, *inputs: Tensor) -> Tensor:
        """The value."""

    def backward(self, cell: Cell, at: Parameters, delta: Tensor, *, inputs: bool, parameters: bool) -> Back:
        """Adjoints from the output's adjoint; only those asked for."""

    def tangent(self, cell: Cell, at: Parameters, mu: Parameters, *tangents: Maybe) -> Maybe:
        """The output's tangent; None is zero."""

    def backward_tangent(
        self, cell: Cell, at: Parameters, mu: Parameters, delta_dot: Tensor, *, parameters: bool
    ) -> Back:
        """The tangents of `backward`'s adjoints."""


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """y = W * x + b."""

    weight: str
    bias: str | None
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int

    def _apply(self, inputs: Tensor, weight: Tensor, bias: Maybe = None) -> Tensor:
        return F.conv2d(inputs, weight, bias, self.stride, self.padding, self.dilation, self.groups)

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
        """Σ Wᵀ δ over pairs of δ and W."""
        weight = pairs[0][1]
        if self.groups > 1 or inputs.shape[1] > SMALL_INPUT:
            parts = [self._adjoint(delta, inputs, weight, (True, False))[0] for delta, weight in pairs]
            return parts[0] if len(parts) == 1 else parts[0].add_(parts[1])
        columns: Tensor | None = None
        for delta, each in pairs:
            transposed = each.flatten(1).t().expand(len(delta), -1, -1)
            deltas = delta.flatten(2)
            columns = transposed @ deltas if columns is None else columns.baddbmm_(transposed, deltas)
        assert columns is not None  # noqa: S101
        return F.fold(columns, inputs.shape[2:], weight.shape[2:], self.dilation, self.padding, self.stride)

    def _weight_adjoint(self, delta: Tensor, inputs: Tensor, weight: Tensor) -> Tensor:
        """δ ⊗ x, summed over the samples."""
        if self.groups > 1 or delta.shape[2] * delta.shape[3] >= TINY_MAP or weight.shape[1] <= SMALL_INPUT:
            return self._adjoint(delta, inputs, weight, (False, True))[1]
        columns = F.unfold(inputs, weight.shape[2:], self.dilation, self.padding, self.stride)
        left = delta.flatten(2).transpose(0, 1).reshape(delta.shape[1], -1)
        right = columns.transpose(1, 2).reshape(-1, columns.shape[1])
        return (left @ right).view_as(weight)

    def _bias_adjoint(self, delta: Tensor) -> dict[str, Tensor]:
        return {} if self.bias is None else {self.bias: delta.sum((0, 2, 3))}

    def forward(self, cell: Cell, at: Parameters, *inputs: Tensor) -> Tensor:
        """W * x + b."""
        cell.saved = inputs
        return self._apply(inputs[0], at[self.weight], at[self.bias] if self.bias else None)

    def backward(self, cell: Cell, at: Parameters, delta: Tensor, *, inputs: bool, parameters: bool) -> Back:
        """Wᵀ δ, and δ ⊗ x."""
        (values,) = cell.saved
        adjoint = self._input_adjoint(values, (delta, at[self.weight])) if inputs else None
        if not parameters:
            return Back((adjoint,), {})
        gradient = self._weight_adjoint(delta, values, at[self.weight])
        return Back((adjoint,), {self.weight: gradient, **self._bias_adjoint(delta)})

    def tangent(self, cell: Cell, at: Parameters, mu: Parameters, *tangents: Maybe) -> Maybe:
        """μ * x + W * ẋ."""
        (values,), (cell.tangent,) = cell.saved, tangents
        bias = mu.get(self.bias) if self.bias else None
        result = None
        if self.weight in mu:
            result = self._apply(values, mu[self.weight], bias)
        elif bias is not None:  # a frozen weight
            result = self._apply(values, torch.zeros_like(at[self.weight]), bias)
        if cell.tangent is not None:
            moved = self._apply(cell.tangent, at[self.weight])
            result = moved if result is None else result.add_(moved)
        return result

    def backward_tangent(
        self, cell: Cell, at: Parameters, mu: Parameters, delta_dot: Tensor, *, parameters: bool
    ) -> Back:
        """Wᵀ δ̇ + μᵀ δ, and δ̇ ⊗ x + δ ⊗ ẋ."""
        (values,), delta = cell.saved, cell.delta
        assert delta is not None  # noqa: S101
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
class Dense:
    """y = W x + b."""

    weight: str
    bias: str | None

    def _parameters(self, delta: Tensor, inputs: Tensor) -> dict[str, Tensor]:
        gradients = {self.weight: delta.t() @ inputs}
        if self.bias is not None:
            gradients[self.bias] = delta.sum(0)
        return gradients

    def forward(self, cell: Cell, at: Parameters, *inputs: Tensor) -> Tensor:
        """W x + b."""
        cell.saved = inputs
        return F.linear(inputs[0], at[self.weight], at[self.bias] if self.bias else None)

    def backward(self, cell: Cell, at: Parameters, delta: Tensor, *, inputs: bool, parameters: bool) -> Back:
        """Wᵀ δ, and δ xᵀ."""
        adjoint = delta @ at[self.weight] if inputs else None
        return Back((adjoint,), self._parameters(delta, cell.saved[0]) if parameters else {})

    def tangent(self, cell: Cell, at: Parameters, mu: Parameters, *tangents: Maybe) -> Maybe:
        """μ x + W ẋ."""
        (values,), (cell.tangent,) = cell.saved, tangents
        bias = mu.get(self.bias) if self.bias else None
        result = None
        if self.weight in mu:
            result = F.linear(values, mu[self.weight], bias)
        elif bias is not None:  # a frozen weight
            result = bias.expand(len(values), -1).clone()
        if cell.tangent is not None:
            moved = F.linear(cell.tangent, at[self.weight])
            result = moved if result is None else result.add_(moved)
        return result

    def backward_tangent(
        self, cell: Cell, at: Parameters, mu: Parameters, delta_dot: Tensor, *, parameters: bool
    ) -> Back:
        """Wᵀ δ̇ + μᵀ δ, and δ̇ xᵀ + δ ẋᵀ."""
        (values,), delta = cell.saved, cell.delta
        assert delta is not None  # noqa: S101
        adjoint = delta_dot @ at[self.weight]
        if self.weight in mu:
            adjoint = adjoint.addmm_(delta, mu[self.weight])
        if not parameters:
            return Back((adjoint,), {})
        gradients = self._parameters(delta_dot, values)
        if cell.tangent is not None:
            gradients[self.weight].addmm_(delta.t(), cell.tangent)
        return Back((adjoint,), gradients)


@dataclass(frozen=True, kw_only=True)
class Rectifier:
    """max(x, 0). Its kinks have no second derivative, as in autograd."""

    def forward(self, cell: Cell, at: Parameters, *inputs: Tensor) -> Tensor:
        """max(x, 0)."""
        cell.saved = (F.relu(inputs[0]),)
        return cell.saved[0]

    def _mask(self, cell: Cell, value: Tensor) -> Tensor:
        masked: Tensor = aten.threshold_backward(value, cell.saved[0], 0)
        return masked

    def backward(self, cell: Cell, at: Parameters, delta: Tensor, *, inputs: bool, parameters: bool) -> Back:
        """δ where x > 0."""
        return Back((self._mask(cell, delta) if inputs else None,), {})

    def tangent(self, cell: Cell, at: Parameters, mu: Parameters, *tangents: Maybe) -> Maybe:
        """ẋ where x > 0."""
        return None if tangents[0] is None else self._mask(cell, tangents[0])

    def backward_tangent(
        self, cell: Cell, at: Parameters, mu: Parameters, delta_dot: Tensor, *, parameters: bool
    ) -> Back:
        """δ̇ where x > 0."""
        return Back((self._mask(cell, delta_dot),), {})


@dataclass(frozen=True, kw_only=True)
class Smooth:
    """A smooth function of every entry, given with its derivatives in terms of its value."""

    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]  # f' as a function of y = f(x)
    bend: Callable[[Tensor, Tensor], Tensor]  # f'' as a function of y and f'

    def forward(self, cell: Cell, at: Parameters, *inputs: Tensor) -> Tensor:
        """f(x)."""
        cell.saved = (self.value(inputs[0]),)
        return cell.saved[0]

    def backward(self, cell: Cell, at: Parameters, delta: Tensor, *, inputs: bool, parameters: bool) -> Back:
        """The slope times δ: f' δ."""
        return Back((self.slope(cell.saved[0]) * delta if inputs else None,), {})

    def tangent(self, cell: Cell, at: Parameters, mu: Parameters, *tangents: Maybe) -> Maybe:
        """The slope times ẋ: f' ẋ."""
        cell.tangent = tangents[0]
        return None if cell.tangent is None else self.slope(cell.saved[0]) * cell.tangent

    def backward_tangent(
        self, cell: Cell, at: Parameters, mu: Parameters, delta_dot: Tensor, *, parameters: bool
    ) -> Back:
        """Slope and bend: f' δ̇ + f'' ẋ δ."""
        slope = self.slope(cell.saved[0])
        adjoint = slope * delta_dot
        if cell.tangent is not None and cell.delta is not None:
            adjoint.add_(self.bend(cell.saved[0], slope) * cell.tangent * cell.delta)
        return Back((adjoint,), {})


SIGMOID = Smooth(value=torch.sigmoid, slope=lambda y: y * (1 - y), bend=lambda y, slope: slope * (1 - 2 * y))
TANH = Smooth(value=torch.tanh, slope=lambda y: 1 - y * y, bend=lambda y, slope: -2 * y * slope)


@dataclass(frozen=True, kw_only=True)
class Fixed:
    """A linear map without parameters (pooling by means, flattening): tangents go as values do, δ̇ as δ does."""

    apply: Callable[[Tensor], Tensor]
    transpose: Callable[[Tensor, Tensor], Tensor]  # (δ, x) -> the adjoint of x, of which only the shape matters

    def forward(self, cell: Cell, at: Parameters, *inputs: Tensor) -> Tensor:
        """A x."""
        cell.saved = inputs
        return self.apply(inputs[0])

    def backward(self, cell: Cell, at: Parameters, delta: Tensor, *, inputs: bool, parameters: bool) -> Back:
        """Aᵀ δ."""
        return Back((self.transpose(delta, cell.saved[0]) if inputs else None,), {})

    def tangent(self, cell: Cell, at: Parameters, mu: Parameters, *tangents: Maybe) -> Maybe:
        """A ẋ."""
        return None if tangents[0] is None else self.apply(tangents[0])

    def backward_tangent(
        self, cell: Cell, at: Parameters, mu: Parameters, delta_dot: Tensor, *, parameters: bool
    ) -> Back:
        """Aᵀ δ̇."""
        return Back((self.transpose(delta_dot, cell.saved[0]),), {})


@dataclass(frozen=True, kw_only=True)
class Sum:
    """x + x', as where a shortcut joins."""

    def forward(self, cell: Cell, at: Parameters, *inputs: Tensor) -> Tensor:
        """The sum x + x'."""
        if inputs[0].shape != inputs[1].shape:
            raise RuntimeError("a sum that broadcasts has other adjoints")
        return inputs[0] + inputs[1]

    def backward(self, cell: Cell, at: Parameters, delta: Tensor, *, inputs: bool, parameters: bool) -> Back:
        """δ for both."""
        return Back((delta, delta), {})

    def tangent(self, cell: Cell, at: Parameters, mu: Parameters, *tangents: Maybe) -> Maybe:
        """ẋ + ẋ'."""
        first, second = tangents
        if first is None or second is None:
            return second if first is None else first
        return first + second

    def backward_tangent(
        self, cell: Cell, at: Parameters, mu: Parameters, delta_dot: Tensor, *, parameters: bool
    ) -> Back:
        """δ̇ for both."""
        return Back((delta_dot, delta_dot), {})


@dataclass(frozen=True, kw_only=True)
class MaxPool:
    """The largest entry of every window; which one it was is kept."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    ceil: bool

    def forward(self, cell: Cell, at: Parameters, *inputs: Tensor) -> Tensor:
        """The maxima."""
        values, places = F.max_pool2d_with_indices(
            inputs[0], self.kernel, self.stride, self.padding, self.dilation, self.ceil
        )
        cell.saved = (inputs[0], places)
        return values

    def _scatter(self, cell: Cell, delta: Tensor) -> Tensor:
        values, places = cell.saved
        adjoint: Tensor = aten.max_pool2d_with_indices_backward(
            delta, values, self.kernel, self.stride, self.padding, self.dilation, self.ceil, places
        )
        return adjoint

    def backward(self, cell: Cell, at: Parameters, delta: Tensor, *, inputs: bool, parameters: bool) -> Back:
        """δ to where the maxima came from."""
        return Back((self._scatter(cell, delta) if inputs else None,), {})

    def tangent(self, cell: Cell, at: Parameters, mu: Parameters, *tangents: Maybe) -> Maybe:
        """ẋ from where the maxima came from."""
        if tangents[0] is None:
            return None
        places = cell.saved[1]
        return tangents[0].flatten(2).gather(2, places.flatten(2)).view(places.shape)

    def backward_tangent(
        self, cell: Cell, at: Parameters, mu: Parameters, delta_dot: Tensor, *, parameters: bool
    ) -> Back:
        """δ̇ to where the maxima came from."""
        return Back((self._scatter(cell, delta_dot),), {})
