"""Self-adaptive privacy attack from gradients (SAPAG: Wang et al. 2020): a Gaussian kernel of the difference."""

from __future__ import annotations

from undelta.attacker.distances import gaussian_kernel
from undelta.attacker.labels import label_source
from undelta.attacker.method import GradientMatching
from undelta.attacker.optimizers import AdamW, three_step
from undelta.attacker.priors import TotalVariation
from undelta.attacker.replays import OneStep
from undelta.attacker.weights import Ramps


def sapag(
    *,
    steps: int = 1_000,
    learning_rate: float = 0.1,
    tv: float = 0.01,
    labels: str = "auto",
) -> GradientMatching:
    """Match one gradient at θ through kernels as wide as each layer's own variance, late layers weighted more.

    The paper's exact layer weights are not public here: ours double from the first to the last layer of a kind.
    """
    return GradientMatching(
        replay=OneStep(),
        distance=gaussian_kernel,
        weights=Ramps(conv=2.0, norm=2.0, linear=2.0),
        priors=(TotalVariation(weight=tv),),
        labels=label_source(labels),
        optimizer=AdamW(learning_rate=learning_rate, weight_decay=0.0),
        schedule=three_step,
        steps=steps,
    )
