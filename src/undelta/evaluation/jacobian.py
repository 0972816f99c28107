"""The derivative of a client's update by its own pixels, J = ∂u/∂x, at the truth: its products, never the matrix.

It needs the private images and the client's hidden mini-batches, so it belongs to evaluation; no attack sees it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from undelta.client.private import Private
from undelta.engine import MEMORY, Network, Rollout, Step, rollout
from undelta.engine.pushforward import pushforward
from undelta.errors import ConfigError
from undelta.observation import Observation
from undelta.stepping import Stepping
from undelta.updates import Update

DOUBLE = torch.float64


@dataclass(frozen=True, kw_only=True, eq=False)
class Jacobian:
    """J = ∂u/∂x of one client's round in float64: pixels (N, C, H, W) in [0, 1] to the update that it would send."""

    network: Network = field(repr=False)
    steps: tuple[Step, ...] = field(repr=False)
    batches: tuple[Tensor, ...] = field(repr=False)  # which images each step takes
    std: Tensor = field(repr=False)  # (C, 1, 1): pixels are divided by it on their way in
    stepping: Stepping | None
    shape: tuple[int, ...]  # (N, C, H, W)
    path: Rollout = field(repr=False)

    @staticmethod
    def at(private: Private, observation: Observation, batches: Sequence[Tensor], *, memory: int = MEMORY) -> Jacobian:
        """At the private images.

        Args:
            private: The truth.
            observation: One round, whose start and training are used; what was received is not.
            batches: The client's mini-batches, step by step, as indices of its images.
            memory: Bytes that may be kept to save time.
        """
        training, device = observation.training, observation.device
        if training.augments:
            raise ConfigError("expected images that stay the same from epoch to epoch, got flip or crop")
        network = Network(observation.model().double(), training)
        network.memory = memory
        inputs = observation.image.normalize(private.images.to(device, DOUBLE))
        labels, batches = private.labels.to(device), tuple(batch.to(device) for batch in batches)
        steps = tuple(
            Step(inputs[batch], labels[batch], rate) for batch, rate in zip(batches, training.rates, strict=True)
        )
        stepping = Stepping.of(training)
        return Jacobian(
            network=network,
            steps=steps,
            batches=batches,
            std=torch.tensor(observation.image.std, dtype=DOUBLE, device=device).view(-1, 1, 1),
            stepping=stepping,
            shape=tuple(inputs.shape),
            path=rollout(network, network.start, steps, stepping=stepping),
        )

    @property
    def update(self) -> Update:
        """The update u itself, replayed."""
        return self.path.update

    def push(self, pixels: Tensor) -> Update:
        """J·w for w of shape (N, C, H, W)."""
        inputs = pixels / self.std
        tangents = [inputs[batch] for batch in self.batches]
        return pushforward(self.network, self.network.start, self.steps, tangents, stepping=self.stepping)

    def pull(self, cotangent: Update) -> Tensor:
        """Jᵀ·v, (N, C, H, W)."""
        total = self.std.new_zeros(self.shape)
        for batch, part in zip(self.batches, self.path.pullback(cotangent).images, strict=True):
            total.index_add_(0, batch, part)
        return total / self.std


def batches_of(orders: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
    """Mini-batches, step by step, from the order of every epoch."""
    return [batch for order in orders for batch in order.split(list(sizes))]
