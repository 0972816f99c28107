"""Reading a module's operations off: from any traceable ``nn.Module`` to a `Program`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, fx, nn

from undelta.engine.affine import Convolution, Dense
from undelta.engine.norms import BatchNorm, FixedNorm, Norm
from undelta.engine.ops import SIGMOID, TANH, Fixed, MaxPool, Operation, Rectifier, Sum, aten
from undelta.engine.program import Node, Program

RELU = Rectifier()
FLATTEN = Fixed(apply=partial(torch.flatten, start_dim=1), transpose=lambda delta, values: delta.reshape(values.shape))
FUNCTIONS: dict[Any, Operation] = {
    torch.relu: RELU,
    F.relu: RELU,
    torch.sigmoid: SIGMOID,
    F.sigmoid: SIGMOID,
    torch.tanh: TANH,
    F.tanh: TANH,
}
METHODS: dict[str, Operation] = {"relu": RELU, "relu_": RELU, "sigmoid": SIGMOID, "tanh": TANH}
FLATTENINGS: tuple[tuple[Any, dict[str, Any]], ...] = (((1,), {}), ((), {"start_dim": 1}))
SUMS = (operator.add, operator.iadd, torch.add)


class Untraceable(Exception):
    """This module is made of something else."""


def trace(model: nn.Module) -> Program | None:
    """The module's operations, in the mode it is in; None where it has others than those known here."""
    try:
        graph = fx.symbolic_trace(model).graph
    except Exception:  # foreign code ran on stand-ins for tensors, and may fail in any way
        return None
    try:
        return _program(model, graph)
    except Untraceable:
        return None


def _program(model: nn.Module, graph: fx.Graph) -> Program:
    modules = dict(model.named_modules())
    names = {id(tensor): name for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    places: dict[Any, int] = {}
    nodes: list[Node] = []
    norms: dict[str, int] = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            if places:
                raise Untraceable("more than one input")
            places[node] = 0
        elif node.op == "output":
            return _finished(nodes, norms, places.get(node.args[0]))
        elif node.op == "call_method" and node.target == "size":
            pass  # a flattening view may use it
        else:
            module = modules[node.target] if node.op == "call_module" else None
            if node.op == "call_module" and (node.kwargs or len(node.args) != 1 or node.args[0] not in places):
                raise Untraceable("a module called in an unusual way")
            if isinstance(module, IDENTITIES):
                places[node] = places[node.args[0]]
                continue
            operation = _of_call(node) if module is None else _of_module(module, names)
            arity = 2 if isinstance(operation, Sum) else 1
            if len(node.args) < arity or any(value not in places for value in node.args[:arity]):
                raise Untraceable("an operation on something else than values")
            sources = tuple(places[value] for value in node.args[:arity])
            if isinstance(operation, Norm):
                if node.target in norms:
                    raise Untraceable("a BatchNorm that is used twice")
                norms[node.target] = len(nodes)
            nodes.append(Node(operation, sources))
            places[node] = len(nodes)
    raise Untraceable("no output")


def _finished(nodes: list[Node], norms: dict[str, int], output: int | None) -> Program:
    if not output:
        raise Untraceable("the output is not one operation's")
    seen = {output}
    for index in reversed(range(len(nodes))):
        if index + 1 in seen:
            seen.update(nodes[index].inputs)
    if any(index + 1 not in seen for index in norms.values()):
        raise Untraceable("a BatchNorm that the output does not depend on")
    couples = any(isinstance(node.operation, BatchNorm) for node in nodes)
    return Program(tuple(nodes), output, norms, couples)


def _of_module(module: nn.Module, names: Mapping[int, str]) -> Operation:
    """A leaf module as an operation; exact types only, since a subclass may do anything."""
    if any(getattr(module, hooks) for hooks in HOOKS):
        raise Untraceable("a module with hooks")
    make = MODULES.get(type(module))
    if make is None:
        raise Untraceable(f"a {type(module).__name__}")
    return make(module, names)


def _name(tensor: Tensor, names: Mapping[int, str]) -> str:
    if id(tensor) not in names:
        raise Untraceable("a weight that is not a parameter")
    return names[id(tensor)]


def _convolution(module: Any, names: Mapping[int, str]) -> Operation:
    if isinstance(module.padding, str) or module.padding_mode != "zeros":
        raise Untraceable("padding other than zeros")
    return Convolution(
        weight=_name(module.weight, names),
        bias=None if module.bias is None else _name(module.bias, names),
        stride=module.stride,
        padding=module.padding,
        dilation=module.dilation,
        groups=module.groups,
    )


def _dense(module: Any, names: Mapping[int, str]) -> Operation:
    return Dense(weight=_name(module.weight, names), bias=None if module.bias is None else _name(module.bias, names))


def _norm(module: Any, names: Mapping[int, str]) -> Operation:
    weight = None if module.weight is None else _name(module.weight, names)
    bias = None if module.bias is None else _name(module.bias, names)
    if module.training or module.running_mean is None:
        return BatchNorm(weight=weight, bias=bias, eps=module.eps)
    mean, variance = _name(module.running_mean, names), _name(module.running_var, names)
    return FixedNorm(weight=weight, bias=bias, eps=module.eps, mean=mean, variance=variance)


def _max_pool(module: Any, names: Mapping[int, str]) -> Operation:
    if module.return_indices:
        raise Untraceable("max pooling that returns indices")
    kernel, stride, padding, dilation = (
        _pair(value) for value in (module.kernel_size, module.stride, module.padding, module.dilation)
    )
    return MaxPool(kernel=kernel, stride=stride, padding=padding, dilation=dilation, ceil=module.ceil_mode)


def _mean_pool(module: Any, names: Mapping[int, str]) -> Operation:
    arguments = (
        _pair(module.kernel_size),
        _pair(module.stride),
        _pair(module.padding),
        module.ceil_mode,
        module.count_include_pad,
        module.divisor_override,
    )
    kernel, stride, padding = arguments[:3]
    plain = kernel == stride and padding == (0, 0) and not module.ceil_mode and module.divisor_override is None
    if plain:
        return Fixed(apply=partial(_tile_means, kernel=kernel), transpose=partial(_tile_spread, kernel=kernel))
    return Fixed(
        apply=lambda values: F.avg_pool2d(values, *arguments),
        transpose=lambda delta, values: aten.avg_pool2d_backward(delta, values, *arguments),
    )


def _tile_means(values: Tensor, *, kernel: tuple[int, int]) -> Tensor:
    """Means over tiles that do not overlap, a few times as fast on the CPU as pooling in general."""
    rows, columns = (size // side * side for size, side in zip(values.shape[2:], kernel, strict=True))
    values = values[..., :rows, :columns]
    down = _sum(values[..., start :: kernel[0], :] for start in range(kernel[0]))
    return _sum(down[..., start :: kernel[1]] for start in range(kernel[1])).div_(kernel[0] * kernel[1])


def _tile_spread(delta: Tensor, values: Tensor, *, kernel: tuple[int, int]) -> Tensor:
    """The adjoint of `_tile_means`."""
    rows, columns = (count * side for count, side in zip(delta.shape[2:], kernel, strict=True))
    make = torch.empty_like if (rows, columns) == tuple(values.shape[2:]) else torch.zeros_like
    adjoint = make(values, memory_format=torch.contiguous_format)
    part = delta / (kernel[0] * kernel[1])
    for down in range(kernel[0]):
        for right in range(kernel[1]):
            adjoint[..., down : rows : kernel[0], right : columns : kernel[1]] = part
    return adjoint


def _adaptive_mean_pool(module: Any, names: Mapping[int, str]) -> Operation:
    return Fixed(
        apply=lambda values: F.adaptive_avg_pool2d(values, module.output_size),
        transpose=lambda delta, values: aten._adaptive_avg_pool2d_backward(delta, values),
    )


def _flatten(module: Any, names: Mapping[int, str]) -> Operation:
    if (module.start_dim, module.end_dim) != (1, -1):
        raise Untraceable("another way of flattening")
    return FLATTEN


def _of_call(node: fx.Node) -> Operation:
    """A function or method call as an operation."""
    if node.op == "call_function" and node.target in SUMS:
        if len(node.args) != 2 or node.kwargs:
            raise Untraceable("a sum with a factor")
        return Sum()
    if node.op == "call_function" and node.target in FUNCTIONS:
        return FUNCTIONS[node.target]
    if node.op == "call_method" and node.target in METHODS:
        return METHODS[node.target]
    if node.target in (torch.flatten, "flatten") and (node.args[1:], dict(node.kwargs)) in FLATTENINGS:
        return FLATTEN
    # view(n, -1), view(-1, features): taken for flattening; what it really does is checked by the first mini-batch.
    if node.op == "call_method" and node.target in ("view", "reshape") and len(node.args) == 3:
        return FLATTEN
    raise Untraceable(f"{node.target}")


def _sum(parts: Iterable[Tensor]) -> Tensor:
    first, *rest = parts
    total = first.clone()
    for part in rest:
        total += part
    return total


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


IDENTITIES = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
"""Modules that do nothing: the network has no dropout, see `Network`."""

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

MODULES: dict[type[nn.Module], Callable[[Any, Mapping[int, str]], Operation]] = {
    nn.Conv2d: _convolution,
    nn.Linear: _dense,
    nn.BatchNorm1d: _norm,
    nn.BatchNorm2d: _norm,
    nn.ReLU: lambda module, names: RELU,
    nn.Sigmoid: lambda module, names: SIGMOID,
    nn.Tanh: lambda module, names: TANH,
    nn.MaxPool2d: _max_pool,
    nn.AvgPool2d: _mean_pool,
    nn.AdaptiveAvgPool2d: _adaptive_mean_pool,
    nn.Flatten: _flatten,
}
