"""Client privacy leakage (CPL: Wei et al. 2020): DLG with a regularizer of the labels.

The geometric initial patterns of that paper are not used; images start from noise.
"""

from __future__ import annotations

from undelta.attacker.attacks.dlg import images_and_labels
from undelta.attacker.combine import Restarts
from undelta.attacker.method import GradientMatching
from undelta.attacker.priors import LabelConsistency


def cpl(
    *, steps: int = 300, learning_rate: float = 1.0, label_weight: float = 0.01, restarts: int = 1
) -> GradientMatching | Restarts:
    """DLG with a regularizer that ties dummy labels to the model's own view of the dummy images."""
    prior = LabelConsistency(weight=label_weight)
    return images_and_labels((prior,), steps=steps, learning_rate=learning_rate, restarts=restarts)
