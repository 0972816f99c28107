"""Improved gradient inversion attacks (GENG: Geng et al. 2023), in three readings."""

from __future__ import annotations

from undelta.attacker.distances import Distance, cosine, relative_l2
from undelta.attacker.labels import label_source
from undelta.attacker.method import GradientMatching
from undelta.attacker.optimizers import Adam, three_step
from undelta.attacker.paths import StraightPath
from undelta.attacker.priors import BatchNormStatistics, TotalVariation
from undelta.attacker.replay import ReplayPart
from undelta.attacker.replays import OneStep


def geng_epoch(
    *,
    steps: int = 10_000,
    learning_rate: float = 0.1,
    tv: float = 0.01,
    bn: float = 0.001,
    labels: str = "geng",
) -> GradientMatching:
    """As the AWA paper runs it: the first interpolated epoch as one full-batch step, unweighted cosine.

    With a single mini-batch this is AWA's approximation without layer weights.
    """
    return _geng(OneStep(), cosine, steps, learning_rate, tv, bn, labels)


def geng_path(
    *,
    steps: int = 10_000,
    learning_rate: float = 0.1,
    tv: float = 0.01,
    bn: float = 0.001,
    nodes: int | None = None,
    labels: str = "geng",
) -> GradientMatching:
    """All epochs at once: full-batch gradients along the interpolated trajectory, unweighted l2.

    One gradient for each of the E epochs, or at ``nodes`` places, which is as good on a short path and cheaper.
    """
    return _geng(StraightPath(nodes=nodes), relative_l2, steps, learning_rate, tv, bn, labels)


def geng_gradient(
    *,
    steps: int = 10_000,
    learning_rate: float = 0.1,
    tv: float = 0.01,
    bn: float = 0.001,
    labels: str = "geng",
) -> GradientMatching:
    """The gradient estimate −u/(η·E·B) at θ, unweighted l2."""
    return _geng(OneStep(in_gradients=True), relative_l2, steps, learning_rate, tv, bn, labels)


def _geng(
    replay: ReplayPart, distance: Distance, steps: int, learning_rate: float, tv: float, bn: float, labels: str
) -> GradientMatching:
    return GradientMatching(
        replay=replay,
        distance=distance,
        priors=(TotalVariation(weight=tv), BatchNormStatistics(weight=bn)),
        labels=label_source(labels),
        optimizer=Adam(learning_rate=learning_rate),
        schedule=three_step,
        steps=steps,
    )
