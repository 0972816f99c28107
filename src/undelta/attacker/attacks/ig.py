"""Inverting gradients (Geiping et al. 2020): cosine distance, total variation, signed Adam."""

from __future__ import annotations

from undelta.attacker.combine import Restarts, best_of
from undelta.attacker.labels import label_source
from undelta.attacker.method import GradientMatching
from undelta.attacker.optimizers import Adam, three_step
from undelta.attacker.priors import TotalVariation
from undelta.attacker.replays import FullRollout, OneStep


def ig(
    *,
    steps: int = 4_800,
    learning_rate: float = 0.1,
    tv: float = 0.01,
    unroll: bool = False,
    labels: str = "auto",
    restarts: int = 1,
) -> GradientMatching | Restarts:
    """Match the update's direction with the gradient at θ, or with all local steps unrolled."""
    method = GradientMatching(
        replay=FullRollout() if unroll else OneStep(),
        priors=(TotalVariation(weight=tv),),
        labels=label_source(labels),
        optimizer=Adam(learning_rate=learning_rate),
        schedule=three_step,
        signed=True,
        steps=steps,
    )
    return best_of(restarts, method)
