"""AGIC (Xu et al. 2022): one gradient step on a combined dummy batch that stands for all mini-batches.

Neither the numeric layer weights nor how N·E dummy images become N are public; here convolutions and linear
layers rise from 1 to ``depth_weight``, and every epoch's images are matched with the first epoch's and averaged. That
average is ours and worth several decibels; without it, the first epoch's images are the result.
"""

from __future__ import annotations

from undelta.attacker.canvas import Pixels
from undelta.attacker.labels import label_source
from undelta.attacker.method import GradientMatching
from undelta.attacker.optimizers import Adam, three_step
from undelta.attacker.priors import BatchNormStatistics, TotalVariation
from undelta.attacker.replays import OneStep
from undelta.attacker.weights import Ramps


def agic(
    *,
    steps: int = 10_000,
    learning_rate: float = 0.1,
    depth_weight: float = 10.0,
    tv: float = 0.01,
    bn: float = 0.001,
    average: bool = True,
    labels: str = "auto",
) -> GradientMatching:
    """Match one step on a combined batch of N·E dummy images, deeper layers weighted more.

    The result is the average over the E images that stand for each private one, or the first of them.
    """
    return GradientMatching(
        replay=OneStep(per_epoch=True),
        canvas=Pixels(per_epoch=True, average=average),
        weights=Ramps(conv=depth_weight, norm=1.0, linear=depth_weight),
        priors=(TotalVariation(weight=tv), BatchNormStatistics(weight=bn)),
        labels=label_source(labels),
        optimizer=Adam(learning_rate=learning_rate),
        schedule=three_step,
        steps=steps,
    )
