"""Optimizers of dummy data and their step-length schedules."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from undelta.errors import ConfigError

Schedule: TypeAlias = Callable[[float], float]
"""Progress in [0, 1) -> factor of the learning rate."""


def constant(progress: float) -> float:
    """No decay."""
    return 1.0


def three_step(progress: float) -> float:
    """×0.1 at 3/8, 5/8 and 7/8 of the iterations (Geiping et al. 2020)."""
    return 0.1 ** sum(progress >= mark for mark in (3 / 8, 5 / 8, 7 / 8))


def cosine_decay(progress: float) -> float:
    """Half a cosine from 1 to 0."""
    return 0.5 * (1 + math.cos(math.pi * progress))


class Optimizer(Protocol):
    """Any callable that makes a torch optimizer for the variables, with a base learning rate."""

    @property
    def learning_rate(self) -> float:
        """The rate that schedules scale."""

    def __call__(self, variables: list[Tensor]) -> torch.optim.Optimizer:
        """A fresh optimizer."""


@dataclass(frozen=True, kw_only=True)
class Adam:
    """Adam (Kingma and Ba 2014); the paper's choice, at 0.1."""

    learning_rate: float = 0.1

    def __post_init__(self) -> None:
        if not self.learning_rate > 0:
            raise ConfigError(f"expected learning_rate > 0, got learning_rate={self.learning_rate}")

    def __call__(self, variables: list[Tensor]) -> torch.optim.Optimizer:
        """A fresh Adam."""
        return torch.optim.Adam(variables, lr=self.learning_rate)
