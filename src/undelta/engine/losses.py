"""The losses' derivatives by outputs and labels, first and second order, as means over the samples."""

from __future__ import annotations

from typing import Protocol

import torch.nn.functional as F  # noqa: N812
from torch import Tensor


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


class CrossEntropy:
    """L = −Σ_k y_k log softmax(z)_k; soft labels need not sum to one."""

    def delta(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """(p Σy − y)/n."""
        soft = _soft(labels, outputs)
        return (outputs.softmax(1) * soft.sum(1, keepdim=True) - soft) / len(outputs)

    def delta_dot(self, outputs: Tensor, labels: Tensor, tangent: Tensor) -> Tensor:
        """Σy p (ż − ⟨p, ż⟩)/n."""
        soft = _soft(labels, outputs)
        return soft.sum(1, keepdim=True) * outputs.softmax(1) * -self.label_gradient(outputs, tangent)

    def label_gradient(self, outputs: Tensor, tangent: Tensor) -> Tensor:
        """(⟨p, ż⟩ − ż)/n."""
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


LOSSES: dict[str, Loss] = {"cross_entropy": CrossEntropy(), "l2": Squares()}
