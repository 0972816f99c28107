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

        ``copies`` of the parameters are held at every point that is kept. They come first, after one mini-batch in use:
        to walk to a point again takes longer than to make its tape again.
        """
        limit, count = int(network.memory * share), len(steps)
        images = max((step.images for step in steps), key=len)
        size, channels, height, width = images.shape
        shape = channels, height, width
        active = max(1, network.active(shape))
        reserve = min(size * active, limit // 2)
        copy = max(1, copies * sum(value.numel() * value.element_size() for value in network.model.parameters()))
        held = max(2, (limit - reserve) // copy)
        # With a copy at every k-th step, T/k + k copies are held at once, of which the start is none.
        least = math.isqrt(count) or 1
        points = next((k for k in range(1, least + 1) if math.ceil(count / k) + k - 2 <= held), least)
        left = limit - copy * (math.ceil(count / points) + points - 2)
        budget = left if count == 1 else min(left, reserve)
        chunk = size if network.couples(images) else max(1, min(size, budget // active))
        # All tapes but the one in use are at rest; each holds on to the point it was made at.
        rest = chunk * network.resting(shape) + (copy if points > 1 else 0)
        return Room(chunk=chunk, tapes=1 + max(0, left - chunk * active) // max(1, rest), points=points)
