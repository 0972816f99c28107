"""Clipping: bound the length of what is sent."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from undelta.client.defenses.checks import check_range
from undelta.client.defenses.defense import OnUpdate
from undelta.updates import Update, inner


@dataclass(frozen=True, kw_only=True)
class Clipping(OnUpdate):
    """Scale the update down to an L2 norm of at most ``norm``; with ``per_tensor`` each tensor by itself.

    A shorter update keeps its direction, so nothing of it is lost to an attacker who matches directions.
    """

    norm: float
    per_tensor: bool = False

    def __post_init__(self) -> None:
        check_range("norm", self.norm, low=0, open_low=True)

    def protect(self, update: Update, generator: torch.Generator) -> Update:
        """The clipped update; one within the bound stays as it is."""
        if self.per_tensor:
            return {name: value * self._factor(value.norm()) for name, value in update.items()}
        factor = self._factor(inner(update, update).sqrt())
        return {name: value * factor for name, value in update.items()}

    def _factor(self, size: Tensor) -> Tensor:
        return torch.where(size > self.norm, self.norm / size, torch.ones_like(size))
