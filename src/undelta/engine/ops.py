"""The operations of a network, each with its first and second derivatives written out.

Of a loss L(θ, x) an attack needs g = ∇θ L and, for a cotangent μ of g, the derivatives of ⟨μ, g⟩ by x and by θ. Since
⟨μ, g⟩ is the tangent of L in the direction μ, four sweeps over the operations give both (Pearlmutter 1994): values
forward, adjoints δ = ∂L/∂y backward, tangents ẏ forward, and the adjoints' tangents δ̇ backward. The first two are a
plain training step; the last two cost twice a forward and twice an input gradient. Autograd's double backward
walks the same way, but through slower kernels and with more memory.

Here are operations without parameters; `affine` and `norms` have the others. An operation keeps what the later sweeps
need in a `Cell`; the operation itself has no state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from undelta.engine.moments import Slope

aten = torch.ops.aten

Parameters: TypeAlias = Mapping[str, Tensor]
Maybe: TypeAlias = Tensor | None


class Cell:
    """What one operation remembers of one mini-batch, from sweep to sweep."""

    __slots__ = ("delta", "saved", "seen", "source", "tangent")

    def __init__(self) -> None:
        self.saved: tuple[Tensor, ...] = ()
        self.delta: Maybe = None  # the adjoint of the output, where a later sweep needs it
        self.seen = False  # whether the loss sees the output
        self.tangent: Maybe = None  # the tangent of the input; None is zero
        self.source: Slope | None = None  # of a BatchNorm: a prior's gradient by its input

    @property
    def values(self) -> list[Tensor]:
        """All that it holds now."""
        return [value for value in (*self.saved, self.delta, self.tangent) if value is not None]


Given = TypeVar("Given")


def given(value: Given | None) -> Given:
    """The value, which an earlier sweep has left."""
    assert value is not None  # noqa: S101
    return value


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
        cell.delta = delta
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
