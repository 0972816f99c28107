"""Our own composite: the worst case that an auditor should report."""

from __future__ import annotations

from undelta.attacker.matching import GradientMatching, Phases
from undelta.attacker.optimizers import Adam, three_step
from undelta.attacker.priors import BatchNormStatistics, Source, TotalVariation
from undelta.attacker.replays import CoarseRollout, OneStep


def strongest(
    *,
    steps: int = 200,
    rollout_steps: int = 60,
    macro_steps: int = 5,
    tv: float = 0.01,
    bn: float = 0.001,
    bn_source: Source = "server",
    restarts: int = 1,
) -> Phases:
    """Match the mean gradient at the path's midpoint, then roll the whole path out coarsely.

    Args:
        steps: Iterations of the midpoint phase.
        rollout_steps: Iterations of the rollout phase.
        macro_steps: Full-batch steps that stand for the client's whole path.
        tv: Weight of total variation.
        bn: Weight of the BatchNorm prior.
        bn_source: Whose statistics the prior trusts.
        restarts: Independent tries of the first phase, chosen by the attacker's own mismatch.
    """
    priors = (TotalVariation(weight=tv), BatchNormStatistics(weight=bn, source=bn_source))
    midpoint = GradientMatching(
        replay=OneStep(position=0.5),
        priors=priors,
        optimizer=Adam(learning_rate=1.0),
        schedule=three_step,
        steps=steps,
        restarts=restarts,
    )
    rollout = GradientMatching(
        replay=CoarseRollout(steps=macro_steps),
        priors=priors,
        optimizer=Adam(learning_rate=0.1),
        schedule=three_step,
        steps=rollout_steps,
    )
    return Phases(phases=(midpoint, rollout))
