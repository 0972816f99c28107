"""Local training for real: shuffle, cut, step (AWA eq_delta_theta), and keep what the server must not see."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from undelta.client.private import Private
from undelta.errors import ConfigError
from undelta.observation import ImageSpec
from undelta.seeding import global_stream, stream
from undelta.training import LOSSES, LocalTraining
from undelta.updates import State


@dataclass(frozen=True, kw_only=True)
class LocalRun:
    """A finished round of one client."""

    state: State = field(repr=False)  # what it sends
    orders: tuple[Tensor, ...] = field(repr=False)  # the hidden permutation of every epoch
    losses: tuple[float, ...]  # of every mini-batch, in order


def train(
    model: nn.Module, private: Private, training: LocalTraining, image: ImageSpec, *, seed: tuple[object, ...]
) -> LocalRun:
    """E epochs of B reshuffled mini-batches of plain SGD, on a copy of the model."""
    model = copy.deepcopy(model)
    model.train(training.norm_mode == "train")
    parameter = next(model.parameters())
    inputs = image.normalize(private.images.to(parameter))
    labels = private.labels.to(parameter.device)
    shuffles = stream(*seed, "shuffles")
    sizes = list(training.sizes(len(private)))
    orders, losses = [], []
    with global_stream(*seed, "dropout"):
        for _ in range(training.epochs):
            order = torch.randperm(len(private), generator=shuffles)
            orders.append(order)
            for batch in order.to(parameter.device).split(sizes):
                losses.append(_step(model, inputs[batch], labels[batch], training))
    state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    return LocalRun(state=state, orders=tuple(orders), losses=tuple(losses))


def _step(model: nn.Module, images: Tensor, labels: Tensor, training: LocalTraining) -> float:
    try:
        loss = LOSSES[training.loss](model(images), labels)
    except ValueError as problem:  # BatchNorm needs more than one value per channel in train mode
        raise ConfigError(
            f"the model refuses a mini-batch of {len(images)} in norm_mode {training.norm_mode!r} ({problem}); "
            "use fewer batches, larger images, or norm_mode = 'eval'"
        ) from problem
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.sub_(gradient, alpha=training.learning_rate)
    return float(loss.detach())
