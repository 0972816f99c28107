"""What an attack returns: its guess, and how well that guess explains the update by the attacker's own measure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

Status: TypeAlias = Literal["completed", "interrupted", "diverged"]


class Moment(NamedTuple):
    """One point of an attack's history."""

    iteration: int
    seconds: float
    mismatch: float
    loss: float


class Iterate(NamedTuple):
    """The dummy images on the way, for whoever wants to watch; no attack reads them again."""

    iteration: int
    seconds: float
    images: Tensor  # (N, C, H, W) uint8, on the CPU


@dataclass(frozen=True, kw_only=True)
class Reconstruction:
    """An attack's result; failure is a status, not an exception."""

    images: Tensor = field(repr=False)  # (N, C, H, W), pixels in [0, 1]
    labels: Tensor  # (N,)
    mismatch: float
    iterations: int
    seconds: float
    status: Status
    history: tuple[Moment, ...] = field(default=(), repr=False)
    iterates: tuple[Iterate, ...] = field(default=(), repr=False)
    learned: dict[str, Any] = field(default_factory=dict)
    """What the replay learned of the client's path, such as SME's position."""
    layer_weights: dict[str, float] = field(default_factory=dict, repr=False)
    """Of each layer in the distance at the end; empty where an attack has no layers to weigh."""
    terms: dict[str, float] = field(default_factory=dict, repr=False)
    """What the loss at these images is made of: the weighted distance, and each prior."""
    objective: dict[str, Any] | None = field(default=None, repr=False)
    """What was minimized at the end, as plain values (`objective.encode`); None where it cannot be written down."""
    notes: tuple[str, ...] = ()
    """What the user should know, such as a prior that was switched off."""
    variables: dict[str, Tensor] = field(default_factory=dict, repr=False)
    """What a later phase continues from, other than images: latents, label logits."""

    @property
    def rank(self) -> tuple[bool, float]:
        """Orders tries by the attacker's own measure, the best one first; those that diverged come last."""
        return self.status == "diverged", self.mismatch if math.isfinite(self.mismatch) else math.inf

    def to(self, device: torch.device) -> Reconstruction:
        """The same on another device; pictures on the way stay where they are."""
        return replace(
            self,
            images=self.images.to(device),
            labels=self.labels.to(device),
            variables={name: value.to(device) for name, value in self.variables.items()},
        )
