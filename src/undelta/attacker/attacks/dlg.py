"""Deep leakage from gradients (Zhu et al. 2019), and CPL's label regularizer on top of it (Wei et al. 2020)."""

from __future__ import annotations

from undelta.attacker.combine import Restarts, best_of
from undelta.attacker.distances import l2
from undelta.attacker.labels import joint
from undelta.attacker.method import GradientMatching
from undelta.attacker.optimizers import LBFGS
from undelta.attacker.priors import LabelConsistency, Prior
from undelta.attacker.replays import OneStep


def dlg(*, steps: int = 300, learning_rate: float = 1.0, restarts: int = 1) -> GradientMatching | Restarts:
    """Match one gradient in l2, moving images and labels together by L-BFGS."""
    return _joint((), steps, learning_rate, restarts)


def cpl(
    *, steps: int = 300, learning_rate: float = 1.0, label_weight: float = 0.01, restarts: int = 1
) -> GradientMatching | Restarts:
    """DLG with a regularizer that ties dummy labels to the model's own view of the dummy images.

    The geometric initial patterns of that paper are not used; images start from noise.
    """
    return _joint((LabelConsistency(weight=label_weight),), steps, learning_rate, restarts)


def _joint(priors: tuple[Prior, ...], steps: int, learning_rate: float, restarts: int) -> GradientMatching | Restarts:
    method = GradientMatching(
        replay=OneStep(in_gradients=True),
        distance=l2,
        priors=priors,
        labels=joint,
        optimizer=LBFGS(learning_rate=learning_rate),
        box=False,
        steps=steps,
    )
    return best_of(restarts, method)
