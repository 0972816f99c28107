"""Whether an update looks like the training that it is said to come from: what a server can tell without any image.

With a softmax and cross-entropy, the gradients of the last layer's rows sum to zero over the classes, for any images,
labels and parameters. SGD keeps that, with momentum, clipping and a proximal term, too. Weight decay adds a multiple of
the parameters' own sums; Adam, noise, pruning and quantization break it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from undelta.observation.checkpoint import Notes
from undelta.observation.observation import Observation
from undelta.updates import layers_of

ROUNDING = 5.0  # times the precision of the parameters: what is left of a sum of differences that is zero
EXPLAINED = 0.98  # of the sums' energy, if they are those of decaying parameters
ALIKE = 0.1  # root mean square over maximum of a tensor's changes: Adam moves most entries about as far
SAME = 3.0  # between the largest changes of different tensors
LEAST = 16  # entries of a tensor that are enough to look at


class _Sums(NamedTuple):
    """Of the last linear layer, over the classes."""

    update: Tensor
    start: Tensor
    rounding: float  # of the update's sums, as a norm


def consistency(observation: Observation) -> Notes:
    """What in the update speaks against the training that the observation states; empty if nothing does.

    It is empty, too, where nobody can tell: without a softmax, or without the last layer.

    Examples:
        >>> from undelta import Scenario, disclose
        >>> from dataclasses import replace
        >>> small = {"width": 4, "hidden": 16}
        >>> scenario = Scenario(data="digits", num_samples=4, model_arguments=small, epochs=5, batches=2)
        >>> private = scenario.draw(seed=0)
        >>> consistency(disclose(private, scenario))
        []
        >>> adam = disclose(private, replace(scenario, optimizer="adam"))
        >>> consistency(replace(adam, training=scenario.training))[0].partition(":")[0]
        'this update does not look like sgd with these settings'
    """
    sums = _last_sums(observation)
    if sums is None or observation.training.loss != "cross_entropy":
        return []
    training = observation.training
    head = f"this update does not look like {training.optimizer} with these settings"
    left, whole = float(sums.update.norm()), float(_told_decay(observation) * sums.start.norm())
    if training.adaptive:
        if left <= sums.rounding + 2 * abs(whole):
            return [f"{head}: the last layer's rows sum to zero, as they do with sgd, but not with Adam"]
        return _too_far(observation, head)
    rest = sums.update - _told_decay(observation) * sums.start
    if float(rest.norm()) <= sums.rounding:
        return _too_long(observation, head)
    decay = float(torch.dot(sums.update, sums.start) / sums.start.square().sum().clamp_min(1e-30))
    if float((sums.update - decay * sums.start).norm()) <= (1 - EXPLAINED) ** 0.5 * left and decay < 0:
        if training.weight_decay and observation.unknown:  # what it amounts to depends on these
            return []
        told = "" if observation.unknown else f" of about {-decay / observation.reach:.2g}"
        return [f"{head}: it holds a share of the parameters themselves, as a weight_decay{told} makes it"]
    if looks_adaptive(observation):
        return [f"{head}: every layer moved about as far as the others, as Adam or noise makes it"]
    return [
        f"{head}: the last layer's rows do not sum to zero; noise, pruning, quantization or another optimizer do that"
    ]


def _too_long(observation: Observation, head: str) -> Notes:
    """The last bias' gradient is that of mean outputs less mean labels, so SGD moves it no farther than its rates."""
    bias = observation.received.get(f"{_last_layer(observation)}bias")
    if observation.unknown or bias is None:
        return []
    change = bias.double() - observation.initial[f"{_last_layer(observation)}bias"].double()
    moved, reach = float(change.clamp_min(0).sum()), observation.reach
    if moved <= 1.01 * reach:
        return []
    return [
        f"{head}: the last bias moved by {moved:.3g}, farther than the {reach:.3g} that all steps together allow; "
        "momentum, a larger learning rate or more steps do that"
    ]


def looks_adaptive(observation: Observation) -> bool:
    """Whether most entries of most tensors moved about as far as the farthest, in all tensors, as Adam moves them."""
    changes = [value for value in _changes(observation).values() if value.numel() >= LEAST]
    tops = [float(value.abs().max()) for value in changes]
    if not tops or min(tops) == 0:
        return False
    alike = [float(value.square().mean().sqrt()) / top for value, top in zip(changes, tops, strict=True)]
    return sorted(alike)[len(alike) // 2] > ALIKE and max(tops) <= SAME * min(tops)


def _too_far(observation: Observation, head: str) -> Notes:
    """Adam moves no entry much farther than the sum of its rates, decay apart."""
    if observation.unknown:
        return []
    reach = sum(observation.rates)
    moved = max(float(value.abs().max()) for value in _changes(observation).values())
    if moved <= 2 * reach:
        return []
    return [f"{head}: an entry moved by {moved:.3g}, but all learning rates together are {reach:.3g}"]


def _told_decay(observation: Observation) -> float:
    """What the stated weight decay makes of the parameters alone."""
    return 0.0 if observation.unknown or not observation.training.weight_decay else observation.response.decay


def _changes(observation: Observation) -> dict[str, Tensor]:
    moved = [name for name, value in observation.model().named_parameters() if value.requires_grad]
    seen = [name for name in moved if name in observation.received]
    return {name: observation.received[name].double() - observation.initial[name].double() for name in seen}


def _last_layer(observation: Observation) -> str | None:
    """What the names of the last linear layer's parameters begin with, if it gives the classes' outputs."""
    classes = observation.image.classes
    for layer in reversed(layers_of(observation.model())):
        prefix = f"{layer.name}." if layer.name else ""
        if layer.kind == "linear" and f"{prefix}weight" in layer.parameters:
            return prefix if observation.initial[f"{prefix}weight"].shape[0] == classes > 1 else None
    return None


def _last_sums(observation: Observation) -> _Sums | None:
    prefix = _last_layer(observation)
    if prefix is None or f"{prefix}weight" not in observation.received:
        return None
    start, end = observation.initial[f"{prefix}weight"].double(), observation.received[f"{prefix}weight"]
    change = end.double() - start
    steps = max(1.0, float(observation.training.epochs * observation.training.batches) ** 0.5)
    rounding = ROUNDING * _precision(end) * steps * float(start.norm() + change.norm())
    return _Sums(change.sum(0).reshape(-1), start.sum(0).reshape(-1), rounding)


def _precision(values: Tensor) -> float:
    """Of the numbers that a state was sent in, whatever they are in now."""
    for coarse in (torch.bfloat16, torch.float16):
        if torch.equal(values.to(coarse).to(values.dtype), values):
            return torch.finfo(coarse).eps
    return torch.finfo(values.dtype).eps
