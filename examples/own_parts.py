"""An attack, a defense and a source of images of your own, for the command line and for TOML.

cd examples
undelta audit own.toml --out own          # own.toml: see docs/adding-your-own.md
undelta attack seen.safetensors --attack own_parts:plain --out run
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from undelta import GradientMatching, priors, replays
from undelta.client.datasets import Dataset
from undelta.client.defenses import OnUpdate
from undelta.updates import Update


def plain(*, steps: int = 100, tv: float = 0.01) -> GradientMatching:
    """An attack: match one gradient at the middle of the path. Keyword arguments with types become settings."""
    return GradientMatching(
        replay=replays.OneStep(position=0.5), priors=(priors.TotalVariation(weight=tv),), steps=steps
    )


@dataclass(frozen=True, kw_only=True)
class Rounded(OnUpdate):
    """A defense: send multiples of a step only."""

    step: float

    def protect(self, update: Update, generator: torch.Generator) -> Update:
        """What is sent."""
        return {name: (value / self.step).round() * self.step for name, value in update.items()}


def stripes() -> Dataset:
    """A source of images: stripes, labeled by their direction."""

    def read(index: int, side: int) -> Tensor:
        wave = torch.sin(torch.arange(side) * (1 + index % 5) / 2) / 2 + 0.5
        rows = wave.expand(side, side)
        return (rows if index % 2 else rows.T)[None].float()

    return Dataset(
        name="stripes",
        labels=torch.arange(40) % 2,
        classes=2,
        channels=1,
        mean=(0.5,),
        std=(0.35,),
        read=read,
        native_size=8,
    )
