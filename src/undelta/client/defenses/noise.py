"""Gaussian noise on the update, and an update of nothing else, to compare with."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from undelta.client.defenses.checks import check_range
from undelta.client.defenses.defense import OnUpdate
from undelta.updates import Update, gaussian, noise_like


@dataclass(frozen=True, kw_only=True)
class Noise(OnUpdate):
    """Add Gaussian noise of standard deviation ``scale``, or ``scale`` times ``bound`` where a bound is given.

    Give the norm of a clipping before it as the bound, and ``scale`` is the Gaussian mechanism's multiplier. No epsilon
    is claimed for it: that is what `DpSgd` is for.
    """

    scale: float
    bound: float | None = None

    def __post_init__(self) -> None:
        check_range("scale", self.scale, low=0)
        if self.bound is not None:
            check_range("bound", self.bound, low=0, open_low=True)

    def protect(self, update: Update, generator: torch.Generator) -> Update:
        deviation = self.scale * (1.0 if self.bound is None else self.bound)
        if deviation == 0:
            return update
        return {name: value + deviation * gaussian(value, generator) for name, value in update.items()}


@dataclass(frozen=True, kw_only=True)
class PureNoise(OnUpdate):
    """Send Gaussian noise as long as the update, tensor by tensor, and nothing else; no BatchNorm statistics.

    No defense, since nothing can be learned from it: what an attack makes of it is what an attack makes of nothing.
    """

    sends_buffers = False

    def protect(self, update: Update, generator: torch.Generator) -> Update:
        return noise_like(update, generator)
