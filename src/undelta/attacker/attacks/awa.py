"""The approximate and weighted attack (Song, Wang and Zuazua, IEEE Transactions on Big Data).

Replay one interpolated epoch, weight its layers by Q, and match by cosine. The paper leaves the coefficients of
its regularizers, the box, signs and decays open; the defaults here are ours.
"""

from __future__ import annotations

from typing import Literal

from undelta.attacker.labels import label_source
from undelta.attacker.matching import GradientMatching
from undelta.attacker.optimizers import Adam, constant, three_step
from undelta.attacker.priors import BatchNormStatistics, Source, TotalVariation
from undelta.attacker.replays import InterpolatedEpoch
from undelta.attacker.weights import PAPER_Q, ErrorEnhanced, Q, Ramps, Uniform, WeightsPart
from undelta.errors import ConfigError

Form = Literal["approximation", "linear", "enhanced"]


def awa(
    *,
    form: Form = "enhanced",
    q: Q = PAPER_Q,
    position: float = 0.0,
    steps: int = 10_000,
    learning_rate: float = 0.1,
    tv: float = 0.01,
    bn: float = 0.001,
    bn_source: Source = "server",
    signed: bool = False,
    decay: bool = True,
    box: bool = True,
    restarts: int = 1,
    labels: str = "disclosed",
) -> GradientMatching:
    """The paper's attack.

    Args:
        form: The paper's three ablation forms: approximation alone, with linear ramps, with enhanced weights too.
        q: The layer weights' parameters; the default is what the paper tuned for ResNet-18.
        position: Where along the interpolated path the epoch starts: 0 as in the paper, 0.5 the midpoint.
        steps: Attack iterations.
        learning_rate: Adam's.
        tv: Weight of total variation.
        bn: Weight of the BatchNorm prior.
        bn_source: Whose statistics the prior trusts.
        signed: Step along the gradient's sign only.
        decay: Divide the rate by ten at 3/8, 5/8 and 7/8 of the iterations.
        box: Keep pixels in range.
        restarts: Independent tries, chosen by the attacker's own mismatch.
        labels: Where labels come from; the paper takes them as known.

    >>> from undelta import Scenario, disclose
    >>> small = {"width": 4, "hidden": 16}
    >>> scenario = Scenario(data="digits", num_samples=2, model_arguments=small, epochs=2, batches=1)
    >>> observation = disclose(scenario.draw(seed=0), scenario, seed=0)
    >>> reconstruction = awa(steps=12)(observation, seed=0)
    >>> reconstruction.images.shape, reconstruction.iterations, reconstruction.status
    (torch.Size([2, 1, 8, 8]), 12, 'completed')
    """
    weights: dict[str, WeightsPart] = {
        "approximation": Uniform(),
        "linear": Ramps(conv=q.conv, norm=q.norm, linear=q.linear, other=q.other),
        "enhanced": ErrorEnhanced(q=q),
    }
    if form not in weights:
        raise ConfigError(f"expected form {', '.join(weights)}, got {form!r}")
    return GradientMatching(
        replay=InterpolatedEpoch(position=position),
        weights=weights[form],
        priors=(TotalVariation(weight=tv), BatchNormStatistics(weight=bn, source=bn_source)),
        optimizer=Adam(learning_rate=learning_rate),
        labels=label_source(labels),
        schedule=three_step if decay else constant,
        signed=signed,
        box=box,
        steps=steps,
        restarts=restarts,
    )
