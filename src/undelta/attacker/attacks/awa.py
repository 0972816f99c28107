"""The approximate and weighted attack (Song, Wang and Zuazua, IEEE Transactions on Big Data).

Replay one interpolated epoch, weight its layers by Q, and match by cosine. The paper leaves the coefficients of its
regularizers, the box, signs and decays open, and tunes Q for one network. Two settings: "measured", what works on many
networks (docs/deep-networks.md), and "paper", the paper's first epoch, optimizer, iterations and Q.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from undelta.attacker.combine import Restarts, best_of
from undelta.attacker.labels import label_source
from undelta.attacker.method import GradientMatching
from undelta.attacker.optimizers import Adam, Schedule, cosine_decay, three_step
from undelta.attacker.priors import BatchNormStatistics, Source, TotalVariation
from undelta.attacker.replays import InterpolatedEpoch
from undelta.attacker.weights import PAPER_Q, ByFamily, ErrorEnhanced, Q, Ramps, Uniform, WeightsPart
from undelta.errors import ConfigError

Form = Literal["approximation", "linear", "enhanced"]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What the paper leaves open, or fixes."""

    q: Literal["family", "paper"]
    position: float | Literal["middle"]
    steps: int
    learning_rate: float
    schedule: Schedule
    tv: float
    labels: str


SETTINGS: dict[str, Setting] = {
    "measured": Setting(
        q="family", position="middle", steps=1000, learning_rate=1.0, schedule=cosine_decay, tv=0.03, labels="auto"
    ),
    "paper": Setting(
        q="paper", position=0.0, steps=10_000, learning_rate=0.1, schedule=three_step, tv=0.01, labels="auto"
    ),
}


def awa(
    *,
    setting: Literal["measured", "paper"] = "measured",
    form: Form = "enhanced",
    q: Q | Literal["family", "paper"] | None = None,
    position: float | None = None,
    steps: int | None = None,
    learning_rate: float | None = None,
    tv: float | None = None,
    bn: float = 0.001,
    bn_source: Source = "server",
    signed: bool = False,
    box: bool = True,
    restarts: int = 1,
    labels: str | None = None,
) -> GradientMatching | Restarts:
    """The paper's attack: replay one epoch along the straight path, layers weighted by Q.

    What is None takes the setting's value.

    Args:
        setting: "measured": the epoch in the middle of the path, a large rate with cosine decay, and the Q of the
            network's family. "paper": the first epoch, Adam at 0.1 for 10 000 iterations and the paper's Q; its
            coefficients and decay are ours, since the paper gives none.
        form: The paper's three ablation forms: approximation alone, with linear ramps, with enhanced weights too.
        q: The layer weights' parameters: values of your own, "family", or "paper", tuned there for ResNet-18.
        position: Where along the interpolated path the epoch starts, from 0, the paper's first epoch, to 1.
        steps: Attack iterations.
        learning_rate: Adam's.
        tv: Weight of total variation.
        bn: Weight of the BatchNorm prior.
        bn_source: Whose statistics the prior trusts.
        signed: Step along the gradient's sign only.
        box: Keep pixels in range.
        restarts: Independent tries, chosen by the attacker's own mismatch.
        labels: Where labels come from. The paper takes them as known; "auto" infers them where none are granted.

    Examples:
        >>> from undelta import Scenario, disclose
        >>> small = {"width": 4, "hidden": 16}
        >>> scenario = Scenario(data="digits", num_samples=2, model_arguments=small, epochs=2, batches=1)
        >>> observation = disclose(scenario.draw(seed=0), scenario, seed=0)
        >>> reconstruction = awa(steps=12)(observation, seed=0)
        >>> reconstruction.images.shape, reconstruction.iterations, reconstruction.status
        (torch.Size([2, 1, 8, 8]), 12, 'completed')
    """
    if setting not in SETTINGS:
        raise ConfigError(f"expected setting {', '.join(SETTINGS)}, got {setting!r}")
    chosen = SETTINGS[setting]
    method = GradientMatching(
        replay=InterpolatedEpoch(position=chosen.position if position is None else position),
        weights=_weights(form, chosen.q if q is None else q),
        priors=(
            TotalVariation(weight=chosen.tv if tv is None else tv),
            BatchNormStatistics(weight=bn, source=bn_source),
        ),
        optimizer=Adam(learning_rate=chosen.learning_rate if learning_rate is None else learning_rate),
        labels=label_source(chosen.labels if labels is None else labels),
        schedule=chosen.schedule,
        signed=signed,
        box=box,
        steps=chosen.steps if steps is None else steps,
    )
    return best_of(restarts, method)


def _weights(form: Form, q: Q | Literal["family", "paper"]) -> WeightsPart:
    if form not in ("approximation", "linear", "enhanced"):
        raise ConfigError(f"expected form approximation, linear or enhanced, got {form!r}")
    if form == "approximation":
        return Uniform()
    if q == "family":
        return ByFamily(enhanced=form == "enhanced")
    values = PAPER_Q if q == "paper" else q
    if not isinstance(values, Q):
        raise ConfigError(f"expected q family, paper or a table of weights, got {q!r}")
    if form == "enhanced":
        return ErrorEnhanced(q=values)
    return Ramps(conv=values.conv, norm=values.norm, linear=values.linear, other=values.other)
