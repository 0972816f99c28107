"""Quantization: few bits per entry, as compression sends them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from undelta.client.defenses.defense import OnUpdate
from undelta.errors import ConfigError
from undelta.updates import Update, in_levels

EXACT = 32


@dataclass(frozen=True, kw_only=True)
class Quantization(OnUpdate):
    """Send ``bits`` per entry: uniform levels between each tensor's extremes; with one bit, its sign.

    Signs come with the tensor's mean magnitude, as in signSGD with a scale (Karimireddy et al. 2019, without its error
    feedback). 32 bits are the floats themselves.
    """

    bits: int

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 16 and self.bits != EXACT:
            raise ConfigError(f"expected 1 <= bits <= 16, or bits = {EXACT} for none, got bits={self.bits}")

    def protect(self, update: Update, generator: torch.Generator) -> Update:
        if self.bits == EXACT:
            return update
        return {
            name: _signs(value) if self.bits == 1 else in_levels(value, self.bits) for name, value in update.items()
        }


def _signs(value: Tensor) -> Tensor:
    """±mean|v|: two values, so that one bit tells them apart; an exact zero counts as positive."""
    size = value.abs().mean()
    return torch.where(value < 0, -size, size)
