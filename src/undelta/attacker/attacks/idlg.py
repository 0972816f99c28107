"""Improved deep leakage from gradients (Zhao et al. 2020): the label first, then the image."""

from __future__ import annotations

from undelta.attacker.combine import Restarts, best_of
from undelta.attacker.distances import l2
from undelta.attacker.labels import label_source
from undelta.attacker.method import GradientMatching
from undelta.attacker.optimizers import LBFGS, Adam, three_step
from undelta.attacker.priors import BatchNormStatistics, TotalVariation
from undelta.attacker.replays import FullRollout, OneStep


def idlg(
    *, steps: int = 300, learning_rate: float = 1.0, labels: str = "idlg", restarts: int = 1
) -> GradientMatching | Restarts:
    """Infer the single label, then match one gradient in l2 by L-BFGS."""
    method = GradientMatching(
        replay=OneStep(in_gradients=True),
        distance=l2,
        labels=label_source(labels),
        optimizer=LBFGS(learning_rate=learning_rate),
        box=False,
        steps=steps,
    )
    return best_of(restarts, method)


def idlg_fedavg(
    *,
    steps: int = 10_000,
    learning_rate: float = 0.1,
    tv: float = 0.01,
    bn: float = 0.001,
    labels: str = "auto",
) -> GradientMatching:
    """IDLG as the AWA paper runs it on FedAvg: all E epochs unrolled with random mini-batch orders, unweighted."""
    return GradientMatching(
        replay=FullRollout(),
        priors=(TotalVariation(weight=tv), BatchNormStatistics(weight=bn)),
        labels=label_source(labels),
        optimizer=Adam(learning_rate=learning_rate),
        schedule=three_step,
        steps=steps,
    )
