"""Local training: what a client is told to do, and how its epochs are cut into mini-batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from undelta.errors import ConfigError

LossName: TypeAlias = Literal["cross_entropy", "l2"]
NormMode: TypeAlias = Literal["train", "eval"]


def l2(outputs: Tensor, labels: Tensor) -> Tensor:
    """Squared distance of the outputs to the one-hot (or soft) labels, averaged over the samples."""
    targets = F.one_hot(labels, outputs.shape[1]).to(outputs) if labels.dim() == 1 else labels
    return (outputs - targets).square().sum(1).mean()


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"cross_entropy": F.cross_entropy, "l2": l2}


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """What the server assigns to a client for one round (AWA rem_attacker, items 4 and 6)."""

    epochs: int
    batches: int
    learning_rate: float
    loss: LossName = "cross_entropy"
    norm_mode: NormMode = "train"

    def __post_init__(self) -> None:
        for key in ("epochs", "batches"):
            if getattr(self, key) < 1:
                raise ConfigError(f"expected {key} >= 1, got {key}={getattr(self, key)}")
        if not 0 < self.learning_rate < float("inf"):
            raise ConfigError(f"expected learning_rate > 0, got learning_rate={self.learning_rate}")
        if self.loss not in LOSSES:
            raise ConfigError(f"unknown loss {self.loss!r}; choose from {', '.join(LOSSES)}")
        if self.norm_mode not in ("train", "eval"):
            raise ConfigError(f"expected norm_mode 'train' or 'eval', got {self.norm_mode!r}")

    def sizes(self, num_samples: int) -> tuple[int, ...]:
        """The sizes of an epoch's mini-batches: equal ones, the last one takes what is left.

        Mini-batches hold ceil(N/B) samples, as a data loader cuts them; where that would leave fewer
        than B mini-batches (N=9, B=4), they hold floor(N/B) and the last one is larger.
        """
        if num_samples < self.batches:
            raise ConfigError(
                f"{num_samples} samples cannot fill {self.batches} mini-batches; lower batches or raise num_samples"
            )
        size = -(-num_samples // self.batches)
        if size * (self.batches - 1) >= num_samples:
            size = num_samples // self.batches
        return (*[size] * (self.batches - 1), num_samples - size * (self.batches - 1))
