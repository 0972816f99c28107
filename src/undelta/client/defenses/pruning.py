"""Sparsification: send the largest entries only; zeros take the place of the others."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from undelta.client.defenses.checks import check_range
from undelta.client.defenses.defense import OnUpdate
from undelta.updates import Update


@dataclass(frozen=True, kw_only=True)
class Pruning(OnUpdate):
    """Set a share ``ratio`` of the entries, the smallest of all, to zero; with ``per_tensor`` of each tensor."""

    ratio: float
    per_tensor: bool = False

    def __post_init__(self) -> None:
        check_range("ratio", self.ratio, low=0, high=1)

    def protect(self, update: Update, generator: torch.Generator) -> Update:
        parts = [{name: value} for name, value in update.items()] if self.per_tensor else [update]
        sparse: Update = {}
        for part in parts:
            total = sum(value.numel() for value in part.values())
            sparse |= largest(part, total - round(self.ratio * total))
        return sparse


@dataclass(frozen=True, kw_only=True)
class TopK(OnUpdate):
    """Send the ``count`` largest entries of the whole update."""

    count: int

    def __post_init__(self) -> None:
        check_range("count", self.count, low=1)

    def protect(self, update: Update, generator: torch.Generator) -> Update:
        return largest(update, self.count)


def largest(update: Update, count: int) -> Update:
    """The update with exactly its ``count`` largest entries; of equal ones the first are kept."""
    sizes = torch.cat([value.abs().reshape(-1) for value in update.values()])
    if count >= len(sizes):
        return update
    kept = torch.zeros(len(sizes), dtype=torch.bool, device=sizes.device)
    kept[sizes.argsort(descending=True, stable=True)[:count]] = True
    masks = kept.split([value.numel() for value in update.values()])
    return {name: _masked(value, mask) for (name, value), mask in zip(update.items(), masks, strict=True)}


def _masked(value: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask.view_as(value), value, torch.zeros_like(value))
