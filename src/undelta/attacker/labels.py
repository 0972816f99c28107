"""Where an attack's labels come from."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from undelta.errors import MissingKnowledge
from undelta.observation import Observation


class LabelSource(Protocol):
    """Any callable that gives labels for the dummy images, (N,), in an order of the attacker's own."""

    def __call__(self, observation: Observation, generator: torch.Generator) -> Tensor:
        """The labels."""


def disclosed(observation: Observation, generator: torch.Generator) -> Tensor:
    """The granted multiset of labels, in random order: sorted ones would make mini-batches of one class."""
    if observation.labels is None:
        raise MissingKnowledge(
            "this attack takes the labels as known, but the observation grants none. Grant them in the scenario "
            "(grant_labels = true)."
        )
    order = torch.randperm(observation.num_samples, generator=generator)
    return observation.labels[order.to(observation.labels.device)]
