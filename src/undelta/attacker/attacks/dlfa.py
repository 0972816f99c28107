"""Data leakage in federated averaging (DLFA: Dimitrov et al. 2022): separate dummy images for every epoch."""

from __future__ import annotations

from undelta.attacker.canvas import Pixels
from undelta.attacker.distances import relative_l2
from undelta.attacker.labels import label_source
from undelta.attacker.method import GradientMatching
from undelta.attacker.optimizers import Adam, three_step
from undelta.attacker.priors import EpochInvariance, TotalVariation
from undelta.attacker.replays import FullRollout
from undelta.attacker.weights import Decaying


def dlfa(
    *,
    steps: int = 1_000,
    learning_rate: float = 0.1,
    tv: float = 0.01,
    invariance: float = 1.0,
    labels: str = "dlfa",
) -> GradientMatching:
    """Roll out all E·B steps on images of their own, tied together by a statistic that no order changes.

    Early layers weigh more (1, e⁻¹, …). The box takes the place of the paper's clip penalty.
    """
    return GradientMatching(
        replay=FullRollout(per_epoch=True),
        canvas=Pixels(per_epoch=True),
        distance=relative_l2,
        weights=Decaying(),
        priors=(TotalVariation(weight=tv), EpochInvariance(weight=invariance)),
        labels=label_source(labels),
        optimizer=Adam(learning_rate=learning_rate),
        schedule=three_step,
        steps=steps,
    )
