"""The steps of a rollout, and how much of it is kept in memory for its way back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from undelta.engine.network import Network


class Step(NamedTuple):
    """One step: a mini-batch and its learning rate."""

    images: Tensor  # (n, C, H, W), normalized
    labels: Tensor  # (n,) classes, or (n, classes) probabilities
    learning_rate: float
    held: tuple[float, ...] = ()
    """The rates of several steps of an optimizer along the one gradient; empty: one step."""

    @property
    def rates(self) -> tuple[float, ...]:
        return self.held or (self.learning_rate,)


@dataclass(frozen=True, kw_only=True)
class Room:
    """How much of a rollout is kept for its way back, and how much is computed again."""

    chunk: int  # samples on one tape
    tapes: int  # tapes kept
    points: int  # steps between two parameter copies that are kept

    @staticmethod
    def of(network: Network, steps: Sequence[Step], *, share: float = 1.0, copies: int = 1) -> Room:
        """What fits into this share of the network's memory; never less than one sample needs.

        ``copies`` of the parameters are held at every point that is kept.
        """
        limit = int(network.memory * share)
        images = max((step.images for step in steps), key=len)
        size, channels, height, width = images.shape
        shape = channels, height, width
        active = max(1, network.active(shape))
        chunk = size if network.couples(images) else max(1, min(size, limit // active))
        # All tapes but the one in use are at rest.
        resting = max(0, limit - chunk * active) // max(1, chunk * network.resting(shape))
        copy = copies * sum(value.numel() * value.element_size() for value in network.model.parameters())
        held = max(2, limit // max(1, copy))
        # With a copy at every k-th step, T/k + k copies are held at once.
        least = math.isqrt(len(steps)) or 1
        points = next((k for k in range(1, least + 1) if len(steps) / k + k <= held + 1), least)
        return Room(chunk=chunk, tapes=1 + resting, points=points)
