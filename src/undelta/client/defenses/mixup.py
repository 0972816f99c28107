"""Mixup (Zhang et al. 2018): train on convex combinations of images and of their labels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from undelta.client.defenses.checks import check_range
from undelta.client.defenses.defense import OnData


@dataclass(frozen=True, kw_only=True)
class Mixup(OnData):
    """Every epoch each image is mixed with another one of the client's: λ x + (1 − λ) x′, λ ~ Beta(alpha, alpha).

    Labels are mixed likewise and are soft in the loss. Partners are drawn among all of the client's images rather than
    within a mini-batch, which may hold a single one. Zero for ``alpha`` mixes nothing.
    """

    alpha: float

    def __post_init__(self) -> None:
        check_range("alpha", self.alpha, low=0)

    def mix(self, images: Tensor, labels: Tensor, classes: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        if self.alpha == 0:
            return images, labels
        count = len(images)
        # In float64 and by gamma variables: Beta(a, a) = G₁ / (G₁ + G₂).
        shape = torch.full((2, count), self.alpha, dtype=torch.float64)
        first, second = torch._standard_gamma(shape, generator=generator)
        share = (first / (first + second)).nan_to_num(0.5).to(images)
        partners = torch.randperm(count, generator=generator).to(images.device)
        soft = F.one_hot(labels, classes).to(images) if labels.dim() == 1 else labels
        column, plane = share.view(-1, 1), share.view(-1, 1, 1, 1)
        return plane * images + (1 - plane) * images[partners], column * soft + (1 - column) * soft[partners]
