"""The pictures that an audit keeps of a trial: worked out after the attack; nothing here reaches an attack."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from undelta.trials.trial import Outcome


def pictures(outcome: Outcome) -> dict[str, Tensor]:
    """Originals, reconstruction and iterates in eight bits, all in the order of the originals."""
    order = list(outcome.score.order)
    originals = _bytes(outcome.private.images)  # (N, C, H, W)
    iterates = outcome.reconstruction.iterates
    shape = (len(iterates), *originals.shape)
    return {
        "originals": originals,
        "reconstruction": _bytes(outcome.reconstruction.images[order]),
        "iterates": _stack([iterate.images[order] for iterate in iterates], shape),
        "iterations": torch.tensor([iterate.iteration for iterate in iterates], dtype=torch.int64),
    }


def _stack(parts: list[Tensor], shape: Sequence[int]) -> Tensor:
    return torch.stack(parts) if parts else torch.empty(*shape, dtype=torch.uint8)


def _bytes(images: Tensor) -> Tensor:
    return (images.detach().cpu().nan_to_num().clamp(0, 1) * 255).round().to(torch.uint8)
