"""The client's local steps: E epochs of B reshuffled mini-batches (AWA eq_delta_theta), by any optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from undelta.errors import ConfigError
from undelta.seeding import global_stream, stream
from undelta.stepping import Place, Stepping
from undelta.training import LocalTraining

Prepare: TypeAlias = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""What an epoch's inputs and labels become before they are cut into mini-batches."""

Gradients: TypeAlias = Callable[[nn.Module, Tensor, Tensor, LocalTraining], tuple[Tensor, Sequence[Tensor]]]
"""The loss of a mini-batch, and the gradients of the parameters that training moves."""


class Walk(NamedTuple):
    """What stays with the client of its local steps."""

    orders: tuple[Tensor, ...]  # of every epoch
    losses: tuple[float, ...]  # of every mini-batch, in order


def gradients_of(
    model: nn.Module, images: Tensor, labels: Tensor, training: LocalTraining
) -> tuple[Tensor, Sequence[Tensor]]:
    """The plain ones."""
    loss = loss_of(model, images, labels, training)
    return loss, torch.autograd.grad(loss, trained(model), allow_unused=True, materialize_grads=True)


def sgd(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    training: LocalTraining,
    *,
    seed: tuple[object, ...],
    prepare: Prepare,
    gradients: Gradients = gradients_of,
) -> Walk:
    """Train the model in place."""
    shuffles = stream(*seed, "shuffles")
    sizes = list(training.sizes(len(inputs)))
    rates = iter(replace(training, batches=len(sizes)).rates)
    descend = _descent(trained(model), training)
    orders, losses = [], []
    with global_stream(*seed, "dropout"):
        for _ in range(training.epochs):
            order = torch.randperm(len(inputs), generator=shuffles)[: sum(sizes)]
            orders.append(order)
            images, targets = prepare(inputs, labels)
            for batch in order.to(inputs.device).split(sizes):
                loss, slopes = gradients(model, images[batch], targets[batch], training)
                with torch.no_grad():
                    descend(slopes, next(rates))
                losses.append(float(loss.detach()))
    return Walk(tuple(orders), tuple(losses))


def _descent(parameters: list[nn.Parameter], training: LocalTraining) -> Callable[[Sequence[Tensor], float], None]:
    """What moves the parameters along the gradients of one mini-batch after the other, at given learning rates."""
    stepping = Stepping.of(training)

    def plain(slopes: Sequence[Tensor], rate: float) -> None:
        for parameter, slope in zip(parameters, slopes, strict=True):
            parameter.sub_(slope, alpha=rate)

    if stepping is None:
        return plain
    start = {str(index): parameter.detach().clone() for index, parameter in enumerate(parameters)}
    place = stepping.start(start)

    def descend(slopes: Sequence[Tensor], rate: float) -> None:
        nonlocal place
        gradient = dict(zip(start, slopes, strict=True))
        memory, change = stepping.step(place, gradient, (rate,))
        for parameter, step in zip(parameters, change.values(), strict=True):
            parameter.add_(step)
        point = dict(zip(start, (parameter.detach() for parameter in parameters), strict=True))
        moved = {name: value - start[name] for name, value in point.items()} if stepping.proximal else place.moved
        place = Place(point, moved, memory, place.taken + 1)

    return descend


def trained(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that training moves."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def loss_of(model: nn.Module, images: Tensor, labels: Tensor, training: LocalTraining) -> Tensor:
    """The loss of a mini-batch."""
    try:
        return training.criterion(model(images), labels)
    except ValueError as problem:  # BatchNorm needs more than one value per channel in train mode
        raise ConfigError(
            f"the model refuses a mini-batch of {len(images)} in norm_mode {training.norm_mode!r} ({problem}); "
            "use fewer batches, larger images, or norm_mode = 'eval'"
        ) from problem
