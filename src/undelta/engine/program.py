"""A network as a straight list of operations, traced once, with its four sweeps.

`trace` reads the list off any module made of convolutions, BatchNorm, ReLU, sigmoid, tanh, pooling, flattening, linear
layers and sums. It returns None for everything else, and autograd does the work.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from typing import NamedTuple, cast

from torch import Tensor

from undelta.engine.losses import Loss
from undelta.engine.moments import Part, Slope
from undelta.engine.norms import Norm
from undelta.engine.ops import Cell, Maybe, Operation, Parameters, given
from undelta.updates import Update


class Node(NamedTuple):
    """One operation and the places of its inputs."""

    operation: Operation
    inputs: tuple[int, ...]  # place 0 is the images, place i + 1 the output of node i


class Program(NamedTuple):
    """A traced network."""

    nodes: tuple[Node, ...]
    output: int  # a place
    norms: Mapping[str, int]  # the node of every BatchNorm, by its name
    couples: bool  # whether some operation mixes the samples of a mini-batch


class Pull(NamedTuple):
    """The derivatives of ⟨μ, g⟩."""

    images: Tensor
    labels: Tensor | None
    parameters: Update | None


class Pool:
    """One mini-batch at one point: plain sweeps at once, tangent sweeps when asked.

    The loss is the mini-batch's mean times ``share``, for a part of a larger mini-batch.
    """

    def __init__(
        self,
        program: Program,
        loss: Loss,
        constants: Parameters,
        point: Parameters,
        images: Tensor,
        labels: Tensor,
        *,
        share: float = 1.0,
        gradient: bool = True,
    ) -> None:
        self.program, self.loss, self.point = program, loss, point
        self.labels, self.share = labels, share
        self.at: Parameters = ChainMap(cast("Update", point), cast("Update", constants))  # it is only read
        self.cells = [Cell() for _ in program.nodes]
        values: list[Maybe] = [images, *[None] * len(program.nodes)]
        dying = _last_uses(program)
        for index, (node, cell) in enumerate(zip(program.nodes, self.cells, strict=True)):
            inputs = [value for place in node.inputs if (value := values[place]) is not None]
            values[index + 1] = node.operation.forward(cell, self.at, *inputs)
            for place in dying[index]:
                values[place] = None  # what later sweeps need is in the cells
        self.outputs = given(values[program.output])
        self.gradient: Update = self._backward(gradient)

    def _backward(self, wanted: bool) -> Update:
        """The adjoints δ of all values, and with ``wanted`` the gradient."""
        adjoints = self._adjoints(self.loss.delta(self.outputs, self.labels) * self.share)
        gradient: Update = {}
        for index in reversed(range(len(self.cells))):
            (operation, inputs), cell = self.program.nodes[index], self.cells[index]
            delta = adjoints.pop(index + 1, None)
            if delta is None:
                continue  # nothing that the loss sees
            cell.seen = True
            deep = any(place > 0 for place in inputs)
            back = operation.backward(cell, self.at, delta, inputs=deep, parameters=wanted)
            _accumulate(adjoints, inputs, back.inputs)
            self._collect(gradient, back.parameters)
        return self._complete(gradient) if wanted else {}

    def pull(self, mu: Parameters, *, parameters: bool, sources: Mapping[str, Slope] | None = None) -> Pull:
        """The derivatives of ⟨mu, g⟩; those by the parameters only where asked.

        ``sources`` adds, for BatchNorms by name, the gradient of something else by their inputs.
        """
        tangent = self._tangent(mu)
        adjoints = self._adjoints(self.loss.delta_dot(self.outputs, self.labels, tangent) * self.share)
        for name, slope in (sources or {}).items():
            self.cells[self.program.norms[name]].source = slope
        gradient = self._backward_tangent(adjoints, mu, parameters=parameters)
        soft = self.labels.is_floating_point()
        return Pull(
            adjoints[0],
            self.loss.label_gradient(self.outputs, tangent) * self.share if soft else None,
            self._complete(gradient) if parameters else None,
        )

    def push(self, mu: Parameters, images: Tensor) -> Update:
        """The tangent of g as the parameters move along ``mu`` and the images along ``images``.

        It is the gradient of the loss's tangent in that direction, since second derivatives commute: the sweeps of
        `pull`, with images that move.
        """
        tangent = self._tangent(mu, images)
        adjoints = self._adjoints(self.loss.delta_dot(self.outputs, self.labels, tangent) * self.share)
        return self._complete(self._backward_tangent(adjoints, mu, parameters=True))

    def _tangent(self, mu: Parameters, images: Maybe = None) -> Tensor:
        """The tangent of the outputs; the cells keep those of all inputs."""
        tangents: dict[int, Tensor] = {} if images is None else {0: images}
        dying = _last_uses(self.program)
        for index, ((operation, inputs), cell) in enumerate(zip(self.program.nodes, self.cells, strict=True)):
            if not cell.seen:
                continue
            tangent = operation.tangent(cell, self.at, mu, *[tangents.get(place) for place in inputs])
            if tangent is not None:
                tangents[index + 1] = tangent
            for place in dying[index]:
                tangents.pop(place, None)
        return tangents.pop(self.program.output, self.outputs.new_zeros(self.outputs.shape))

    def _backward_tangent(self, adjoints: dict[int, Tensor], mu: Parameters, *, parameters: bool) -> Update:
        """The tangents of all adjoints, those of the images left in ``adjoints``, and of the gradient where asked."""
        gradient: Update = {}
        for index in reversed(range(len(self.cells))):
            (operation, inputs), cell = self.program.nodes[index], self.cells[index]
            delta_dot = adjoints.pop(index + 1, None)
            if delta_dot is not None and cell.seen:
                back = operation.backward_tangent(cell, self.at, mu, delta_dot, parameters=parameters)
                _accumulate(adjoints, inputs, back.inputs)
                self._collect(gradient, back.parameters)
        return gradient

    @property
    def held(self) -> int:
        """The bytes that the cells hold."""
        storages = [value.untyped_storage() for cell in self.cells for value in cell.values]
        return sum({one.data_ptr(): one.nbytes() for one in storages}.values())

    def moments(self) -> dict[str, Part]:
        parts = {}
        for name, index in self.program.norms.items():
            operation = self.program.nodes[index].operation
            assert isinstance(operation, Norm)  # noqa: S101
            mean, squares = operation.moments(self.cells[index])
            values = self.cells[index].saved[0]
            parts[name] = Part(values.numel() / values.shape[1], mean, squares)
        return parts

    def _adjoints(self, last: Tensor) -> dict[int, Tensor]:
        return {self.program.output: last}

    def _collect(self, gradient: Update, parts: dict[str, Tensor]) -> None:
        for name, value in parts.items():
            if name in self.point:  # others are frozen
                gradient[name] = gradient[name] + value if name in gradient else value

    def _complete(self, gradient: Update) -> Update:
        """In the point's order; a parameter that the loss ignores has gradient zero."""
        return {
            name: gradient[name] if name in gradient else value.new_zeros(value.shape)
            for name, value in self.point.items()
        }


def _accumulate(adjoints: dict[int, Tensor], places: tuple[int, ...], parts: tuple[Maybe, ...]) -> None:
    for place, part in zip(places, parts, strict=True):
        if part is not None:
            # Never in place: where a shortcut joins, both branches hold the same tensor.
            adjoints[place] = adjoints[place] + part if place in adjoints else part


def _last_uses(program: Program) -> list[list[int]]:
    """For every node the places that nobody reads after it."""
    last: dict[int, int] = {}
    for index, node in enumerate(program.nodes):
        for place in (*node.inputs, index + 1):
            last[place] = index
    last[program.output] = len(program.nodes)
    dying: list[list[int]] = [[] for _ in program.nodes]
    for place, index in last.items():
        if index < len(dying):
            dying[index].append(place)
    return dying
