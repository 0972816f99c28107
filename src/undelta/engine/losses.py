"""The losses' derivatives by outputs and labels, first and second order, as means over the samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from undelta.training import LocalTraining


class Loss(Protocol):
    """Derivatives of a mean loss; labels are classes (n,) or soft (n, classes)."""

    def delta(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """∂L/∂z."""

    def delta_dot(self, outputs: Tensor, labels: Tensor, tangent: Tensor) -> Tensor:
        """The tangent of `delta` as the outputs move."""

    def label_gradient(self, outputs: Tensor, tangent: Tensor) -> Tensor:
        """∂/∂y of the loss's tangent ⟨∂L/∂z, ż⟩, for soft labels."""


def _soft(labels: Tensor, outputs: Tensor) -> Tensor:
    return labels if labels.dim() == 2 else F.one_hot(labels, outputs.shape[1]).to(outputs)


@dataclass(frozen=True, kw_only=True)
class CrossEntropy:
    """L = −Σ_k y_k log softmax(z)_k; soft labels need not sum to one. Smoothing mixes them with equal shares."""

    smoothing: float = 0.0

    def _labels(self, labels: Tensor, outputs: Tensor) -> Tensor:
        soft = _soft(labels, outputs)
        return soft * (1 - self.smoothing) + self.smoothing / outputs.shape[1] if self.smoothing else soft

    def delta(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """(p Σy − y)/n."""
        soft = self._labels(labels, outputs)
        return (outputs.softmax(1) * soft.sum(1, keepdim=True) - soft) / len(outputs)

    def delta_dot(self, outputs: Tensor, labels: Tensor, tangent: Tensor) -> Tensor:
        """Σy p (ż − ⟨p, ż⟩)/n."""
        soft = self._labels(labels, outputs)
        return soft.sum(1, keepdim=True) * outputs.softmax(1) * -self._deviation(outputs, tangent)

    def label_gradient(self, outputs: Tensor, tangent: Tensor) -> Tensor:
        """(⟨p, ż⟩ − ż)/n, less what smoothing takes from the labels."""
        deviation = self._deviation(outputs, tangent)
        return deviation * (1 - self.smoothing) if self.smoothing else deviation

    def _deviation(self, outputs: Tensor, tangent: Tensor) -> Tensor:
        return ((outputs.softmax(1) * tangent).sum(1, keepdim=True) - tangent) / len(outputs)


class Squares:
    """L = Σ_k (z_k − y_k)²."""

    def delta(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """2(z − y)/n."""
        return 2 * (outputs - _soft(labels, outputs)) / len(outputs)

    def delta_dot(self, outputs: Tensor, labels: Tensor, tangent: Tensor) -> Tensor:
        """2ż/n."""
        return 2 * tangent / len(outputs)

    def label_gradient(self, outputs: Tensor, tangent: Tensor) -> Tensor:
        """−2ż/n."""
        return -2 * tangent / len(outputs)


def derivatives_of(training: LocalTraining) -> Loss:
    """Of the loss of a client's training."""
    return Squares() if training.loss == "l2" else CrossEntropy(smoothing=training.label_smoothing)
