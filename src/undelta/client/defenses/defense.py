"""Where a client's defense may act: on the data, in the training, or on the update before it is sent.

A defense is a frozen value that derives from one of the three. Everything here is on the client's side; the server
sees what comes out, and knows no more of the defense than that shows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, TypeAlias

import torch
from torch import Tensor, nn

from undelta.client.sgd import Prepare, Walk, gradients_of, sgd
from undelta.training import LocalTraining
from undelta.updates import Update


class Part:
    """What all defenses have in common."""

    def check(self, model: nn.Module) -> None:
        """Raise ConfigError if the model cannot be protected so."""


class OnData(Part, ABC):
    """Changes images and labels before every epoch."""

    @abstractmethod
    def mix(self, images: Tensor, labels: Tensor, classes: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """New images and (soft) labels, as many as before; (N, C, H, W) normalized, and (N,) or (N, classes)."""


class InTraining(Part):
    """Takes the place of plain SGD (`walk`), or of the gradients that it steps along."""

    def __init_subclass__(cls) -> None:
        # A misspelled method would train without any defense, and be reported as one.
        if (cls.walk, cls.gradients) == (InTraining.walk, InTraining.gradients):
            raise TypeError(f"{cls.__name__} trains as without a defense: define walk or gradients")

    def gradients(
        self, model: nn.Module, images: Tensor, labels: Tensor, training: LocalTraining
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """The loss of a mini-batch, and the gradients of the parameters that training moves."""
        return gradients_of(model, images, labels, training)

    def walk(
        self,
        model: nn.Module,
        inputs: Tensor,
        labels: Tensor,
        training: LocalTraining,
        *,
        seed: tuple[object, ...],
        prepare: Prepare,
    ) -> Walk:
        """Train the model in place."""
        return sgd(model, inputs, labels, training, seed=seed, prepare=prepare, gradients=self.gradients)


class OnUpdate(Part, ABC):
    """Changes the update before it is sent."""

    sends_buffers: ClassVar[bool] = True
    """Whether BatchNorm statistics go with it."""

    @abstractmethod
    def protect(self, update: Update, generator: torch.Generator) -> Update:
        """What is sent in its place, of the same shapes; buffers are not part of it."""


Defense: TypeAlias = OnData | InTraining | OnUpdate
