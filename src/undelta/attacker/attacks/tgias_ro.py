"""TGIAs-RO (Li et al. 2023): one client's gradients of several rounds, fused by a robust statistic.

Each round's gradient pulls the dummy images its own way, and a round whose update is of no use, or was spoiled, must
not mislead the others. So the images follow the median of the rounds' pulls, entry by entry. Which of the paper's
robust statistics suits which case, and its optimizer and priors, were not at hand: the rest is as in `ig`. Of one round
alone, this is `ig`.
"""

from __future__ import annotations

from undelta.attacker.labels import label_source
from undelta.attacker.method import GradientMatching
from undelta.attacker.optimizers import Adam, three_step
from undelta.attacker.priors import TotalVariation
from undelta.attacker.replays import OneStep


def tgias_ro(
    *,
    steps: int = 1_000,
    learning_rate: float = 0.1,
    tv: float = 0.01,
    labels: str = "auto",
) -> GradientMatching:
    """Match one gradient per round, at each round's own θ, and follow the median."""
    return GradientMatching(
        replay=OneStep(),
        priors=(TotalVariation(weight=tv),),
        labels=label_source(labels),
        optimizer=Adam(learning_rate=learning_rate),
        schedule=three_step,
        signed=True,
        fusion="median",
        steps=steps,
    )
