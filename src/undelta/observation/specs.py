"""What the server knows of its own model: what goes into it, and how to rebuild it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from undelta.errors import ConfigError, ObservationError
from undelta.models import build
from undelta.models.checks import MOST_CLASSES

Builder = Callable[..., nn.Module]
"""Any function that makes a model; it is called with the architecture's arguments."""

MOST_PIXELS = 2**31  # of one client's images together; more is a mistake or a trap, not a client


@dataclass(frozen=True, kw_only=True)
class ImageSpec:
    """What the model's inputs look like: public, since the server chose the model."""

    shape: tuple[int, int, int]  # (C, H, W)
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: int

    def __post_init__(self) -> None:
        if min(self.shape) < 1 or self.classes < 1:
            raise ObservationError(f"expected a positive shape and classes, got {self.shape}, {self.classes}")
        if self.classes > MOST_CLASSES or math.prod(self.shape) > MOST_PIXELS:
            raise ObservationError(
                f"expected at most {MOST_CLASSES:,} classes and {MOST_PIXELS:,} pixels, "
                f"got {self.classes} and shape {self.shape}"
            )
        if len(self.mean) != self.shape[0] or len(self.std) != self.shape[0]:
            raise ObservationError(
                f"expected a mean and a std for each of {self.shape[0]} channels, "
                f"got {len(self.mean)} and {len(self.std)}"
            )
        if not all(map(math.isfinite, (*self.mean, *self.std))) or min(self.std) <= 0:
            raise ObservationError(f"expected finite means and positive stds, got {self.mean}, {self.std}")

    def normalize(self, pixels: Tensor) -> Tensor:
        """Pixels in [0, 1] to model inputs."""
        return (pixels - _channels(self.mean, pixels)) / _channels(self.std, pixels)

    def denormalize(self, inputs: Tensor) -> Tensor:
        """Model inputs to pixels."""
        return inputs * _channels(self.std, inputs) + _channels(self.mean, inputs)


def _channels(values: tuple[float, ...], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device).view(-1, 1, 1)


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """How to rebuild the model: a built-in name, or ``package.module:function``, with its arguments."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def custom(self) -> bool:
        """Whether rebuilding it means importing somebody's code."""
        return ":" in self.name

    def build(self, builder: Builder | None, *, shape: tuple[int, int, int], classes: int) -> nn.Module:
        """A model with fresh weights, by its builder if it is custom."""
        if builder is None:
            return build(self.name, self.arguments, shape=shape, classes=classes)
        try:
            model = builder(**self.arguments)
        except TypeError as problem:
            raise ConfigError(f"the model {self.name!r} refuses its arguments: {problem}") from problem
        if _logits not in model._forward_hooks.values():
            model.register_forward_hook(_logits)
        return model


def _logits(model: nn.Module, inputs: object, output: object) -> Tensor | None:
    """The logits of a model that returns them among other things, as those of transformers do; else no change."""
    found = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    return found if isinstance(found, Tensor) else None
