"""See through gradients (GradInversion: Yin et al. 2021): BatchNorm prior and consistency over a group of seeds.

The group's members are pulled to their pixelwise mean; the paper's registration between them is left out.
"""

from __future__ import annotations

from undelta.attacker.combine import Consensus
from undelta.attacker.distances import l2_norms
from undelta.attacker.labels import label_source
from undelta.attacker.method import GradientMatching
from undelta.attacker.optimizers import Adam, warm_up_cosine
from undelta.attacker.priors import BatchNormStatistics, Source, SquareNorm, TotalVariation
from undelta.attacker.replays import OneStep


def gradinversion(
    *,
    steps: int = 20_000,
    learning_rate: float = 0.1,
    tv: float = 1e-4,
    square: float = 1e-6,
    bn: float = 0.1,
    bn_source: Source = "server",
    group: int = 8,
    consistency: float = 0.01,
    noise: float = 0.2,
    labels: str = "yin",
) -> GradientMatching | Consensus:
    """Match one gradient's layers in l2, several seeds side by side."""
    method = GradientMatching(
        replay=OneStep(),
        distance=l2_norms,
        priors=(
            TotalVariation(weight=tv),
            SquareNorm(weight=square),
            BatchNormStatistics(weight=bn, source=bn_source),
        ),
        labels=label_source(labels),
        optimizer=Adam(learning_rate=learning_rate),
        schedule=warm_up_cosine,
        noise=noise,
        steps=steps,
    )
    return method if group == 1 else Consensus(attack=method, group=group, consistency=consistency)
