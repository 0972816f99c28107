"""Deep leakage from gradients (Zhu et al. 2019)."""

from __future__ import annotations

from undelta.attacker.combine import Restarts, best_of
from undelta.attacker.distances import l2
from undelta.attacker.labels import joint
from undelta.attacker.method import GradientMatching
from undelta.attacker.optimizers import LBFGS
from undelta.attacker.priors import Prior
from undelta.attacker.replays import OneStep


def dlg(*, steps: int = 300, learning_rate: float = 1.0, restarts: int = 1) -> GradientMatching | Restarts:
    """Match one gradient in l2, moving images and labels together by L-BFGS."""
    return images_and_labels((), steps=steps, learning_rate=learning_rate, restarts=restarts)


def images_and_labels(
    priors: tuple[Prior, ...], *, steps: int, learning_rate: float, restarts: int
) -> GradientMatching | Restarts:
    """DLG with priors."""
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
