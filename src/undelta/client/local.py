"""Local training for real: shuffle, cut, step, defend, and keep what the server must not see."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from undelta.client.augment import augmented
from undelta.client.defenses import Defense, InTraining, OnData, OnUpdate
from undelta.client.private import Private
from undelta.client.sgd import sgd
from undelta.observation import ImageSpec
from undelta.seeding import stream
from undelta.training import LocalTraining
from undelta.updates import State, difference, freeze, parameters_of


@dataclass(frozen=True, kw_only=True)
class LocalRun:
    """A finished round of one client."""

    state: State = field(repr=False)  # what it sends
    orders: tuple[Tensor, ...] = field(repr=False)  # the hidden order of every epoch
    losses: tuple[float, ...]  # of every mini-batch, in order


def train(
    model: nn.Module,
    private: Private,
    training: LocalTraining,
    image: ImageSpec,
    *,
    seed: tuple[object, ...],
    defenses: Sequence[Defense] = (),
) -> LocalRun:
    """E epochs of B reshuffled mini-batches, on a copy of the model, under the client's defenses.

    Where only some parameters are trained, the others are not sent.
    """
    before = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    model = copy.deepcopy(model)
    freeze(model, training.trained)
    model.train(training.norm_mode == "train")
    parameter = next(model.parameters())
    inputs = image.normalize(private.images.to(parameter))
    labels = private.labels.to(parameter.device)
    changes = stream(*seed, "augmentation")
    streams = [stream(*seed, "defense", number) for number in range(len(defenses))]

    def prepare(images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        if training.augments:
            images = augmented(images, training, image, changes)
        for defense, generator in zip(defenses, streams, strict=True):
            if isinstance(defense, OnData):
                images, targets = defense.mix(images, targets, image.classes, generator)
        return images, targets

    walk = next((defense.walk for defense in defenses if isinstance(defense, InTraining)), sgd)
    orders, losses = walk(model, inputs, labels, training, seed=seed, prepare=prepare)
    frozen = {name for name, value in model.named_parameters() if training.trained and not value.requires_grad}
    state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items() if name not in frozen}
    for defense, generator in zip(defenses, streams, strict=True):
        if isinstance(defense, OnUpdate):
            state = _protected(defense, state, before, list(parameters_of(model)), generator)
    return LocalRun(state=state, orders=orders, losses=losses)


def _protected(
    defense: OnUpdate, state: State, before: State, names: Sequence[str], generator: torch.Generator
) -> State:
    """The state with its update changed; entries that the defense leaves alone stay as they are, bit by bit."""
    update = difference(state, before, names)
    changed = defense.protect(update, generator)
    sent = {
        name: torch.where(changed[name] == update[name], state[name], before[name] + changed[name]) for name in names
    }
    return {name: sent.get(name, tensor) for name, tensor in state.items() if name in sent or defense.sends_buffers}
