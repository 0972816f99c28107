"""The floor: what an attack's objective is worth at the private images themselves.

It needs the truth, so it belongs to evaluation; no attack sees it. An attack that ends below it minimizes the wrong
thing, one that ends far above it needs iterations, and the replays' floors say which of them fits a client's path.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from undelta.attacker.objective import Objective, Problem, Value, decode
from undelta.attacker.paths import StraightPath
from undelta.attacker.reconstruction import Reconstruction
from undelta.attacker.replay import ReplayPart
from undelta.attacker.replays import CoarseRollout, FullRollout, InterpolatedEpoch, OneStep
from undelta.client.private import Private
from undelta.errors import ConfigError, MissingKnowledge
from undelta.observation import Observation
from undelta.seeding import stream

REPLAYS: dict[str, ReplayPart] = {
    "one epoch from the start (AWA in the paper)": InterpolatedEpoch(),
    "one epoch around the midpoint (awa)": InterpolatedEpoch(position="middle"),
    "one gradient at the start": OneStep(),
    "one gradient at the midpoint": OneStep(position=0.5),
    "straight line, 4 gradients": StraightPath(nodes=4, middle=True),
    "rollout, 5 macro-steps": CoarseRollout(steps=5),
    "rollout, 10 macro-steps": CoarseRollout(steps=10),
    "rollout, 20 macro-steps": CoarseRollout(steps=20),
    "full rollout": FullRollout(),
}
"""The replays among which users choose; the first is the paper's."""

BELOW = 0.8  # times the truth's loss; smoother images than the truth, or a replay's own error, explain a little less
FAR = 3.0  # times the mismatch at the truth
RESOLVED = 1e-3  # a mismatch below which float32 and mini-batch orders decide, whatever the floor

Level = Literal["below", "near", "far above"]
SAYS: dict[Level, str] = {
    "below": "ended below the truth's loss: this objective prefers wrong images, so a poor result is no evidence",
    "near": "ended near the truth's loss: more iterations of this attack would not help",
    "far above": "ended far above the floor: more iterations, or another optimizer, would help",
}


@dataclass(frozen=True, kw_only=True)
class Floor:
    """An attack's end beside the truth, by the attack's own objective."""

    mismatch: float
    """Unweighted cosine distance at the private images."""
    terms: dict[str, float]
    """The loss at the private images, term by term."""
    level: Level
    """Where the attack ended."""

    @property
    def loss(self) -> float:
        return sum(self.terms.values())

    @property
    def text(self) -> str:
        return SAYS[self.level]


def floor(
    reconstruction: Reconstruction, private: Private, observation: Observation, *, order: Tensor | None = None
) -> Floor | None:
    """The reconstruction's own objective at the truth; None where it has none that can be evaluated there.

    ``order`` is the client's in its first epoch, where it is known: an exact replay of one epoch of mini-batches needs
    it.

    Examples:
        >>> from undelta import Scenario, awa, disclose
        >>> small = {"width": 4, "hidden": 16}
        >>> scenario = Scenario(data="digits", num_samples=2, model_arguments=small, epochs=2, batches=1)
        >>> private = scenario.draw(seed=0)
        >>> observation = disclose(private, scenario, seed=0)
        >>> found = floor(awa(steps=5)(observation), private, observation)
        >>> found.level, sorted(found.terms)
        ('far above', ['distance', 'total_variation'])
    """
    if reconstruction.objective is None:
        return None
    try:
        objective = decode(reconstruction.objective)
        truth = value_at_truth(objective, private, observation, order=order, learned=reconstruction.learned)
    except (ConfigError, MissingKnowledge):
        return None
    if not math.isfinite(truth.loss):
        return None
    return Floor(mismatch=truth.mismatch, terms=truth.terms, level=_level(reconstruction, truth))


def _level(reconstruction: Reconstruction, truth: Value) -> Level:
    loss = sum(reconstruction.terms.values()) if reconstruction.terms else math.inf
    if loss < BELOW * truth.loss:
        return "below"
    far = reconstruction.mismatch > max(FAR * truth.mismatch, RESOLVED)
    return "far above" if far or not math.isfinite(loss) else "near"


def value_at_truth(
    objective: Objective,
    private: Private,
    observation: Observation,
    *,
    order: Tensor | None = None,
    learned: Mapping[str, Any] | None = None,
) -> Value:
    """An objective at the private images."""
    problem = Problem(objective, observation, stream("evaluation", "floor"))
    # The order is that of the first round; others were shuffled anew.
    places = torch.arange(len(private)) if order is None or observation.further else order.cpu()
    return problem.at(private.images[places], private.labels[places], learned)


def floors(
    private: Private,
    observation: Observation,
    *,
    order: Tensor | None = None,
    replays: Mapping[str, ReplayPart] = REPLAYS,
) -> dict[str, float | None]:
    """The unweighted mismatch of each replay at the private images; None where a replay does not apply."""
    found: dict[str, float | None] = {}
    for name, replay in replays.items():
        try:
            value = value_at_truth(Objective(replay=replay), private, observation, order=order)
        except (ConfigError, MissingKnowledge):
            found[name] = None
            continue
        found[name] = value.mismatch if math.isfinite(value.mismatch) else None
    return found
