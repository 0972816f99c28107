"""Surrogate model extension (SME: Zhu, Yao and Blaschko 2023): one gradient at a learned point of the line θ–θ⁺.

Two details of its authors' code are left out: there, the position's rate falls as that of the images does, and images
are clamped before the first iteration, too. On three clients they made no difference beyond rounding (docs/attacks.md).
"""

from __future__ import annotations

from undelta.attacker.labels import label_source
from undelta.attacker.method import GradientMatching
from undelta.attacker.optimizers import Adam, three_step
from undelta.attacker.paths import LearnedPosition
from undelta.attacker.priors import TotalVariation
from undelta.attacker.replay import ReplayPart


def sme(
    *,
    steps: int = 1_000,
    learning_rate: float = 1.0,
    tv: float = 0.01,
    position: float = 0.5,
    position_rate: float = 1e-3,
    labels: str = "auto",
) -> GradientMatching:
    """Match the update's direction with one gradient of a surrogate model, whose position is learned."""
    line = LearnedPosition(position=position)
    return surrogate(line, steps=steps, learning_rate=learning_rate, tv=tv, path_rate=position_rate, labels=labels)


def surrogate(
    path: ReplayPart, *, steps: int, learning_rate: float, tv: float, path_rate: float, labels: str
) -> GradientMatching:
    """SME with gradients along another path; all that is learned of it moves at one rate by default."""
    return GradientMatching(
        replay=path,
        # Their total variation is the mean of both directions; ours is the sum.
        priors=(TotalVariation(weight=tv / 2),),
        labels=label_source(labels),
        optimizer=Adam(learning_rate=learning_rate),
        schedule=three_step,
        path_rate=path_rate,
        steps=steps,
    )
