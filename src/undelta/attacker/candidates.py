"""What `strongest` tries first, and how it chooses: all by the attacker's own evidence (docs/strongest.md)."""

from __future__ import annotations

from dataclasses import dataclass

from undelta.attacker.priors import Prior, batch_norm_targets, untouched
from undelta.attacker.remember import network_of
from undelta.attacker.weights import PAPER_Q, Ramps, Uniform, WeightsPart
from undelta.observation import Observation
from undelta.updates import layers_of

FLAT = Uniform()
# The paper's ramps; but the last layer, which holds most of a deep network's update, says little of pixels.
RISING = Ramps(conv=PAPER_Q.conv, norm=PAPER_Q.norm, linear=PAPER_Q.linear / 100)
# Early layers see the pixels; on an exact replay their share of the update is worth more, if flat weights did well.
FALLING = Ramps(conv=0.1, norm=0.1, linear=0.1)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Layer weights, and the priors that go with them."""

    weights: WeightsPart
    priors: tuple[Prior, ...]
    then: tuple[Prior, ...] | None = None
    """Priors of the rounds after the first phase, when the large shapes are there; None: the same ones."""
    late: tuple[Prior, ...] | None = None
    """Priors of a last phase, when the images are good enough to need less of a prior; None: no such phase."""
    smoothing: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Width of the gradients' blur in the first phase, the rounds and the last phase."""
    signed: bool = False
    """Step along the gradient's sign only."""
    rate: float = 1.0
    """Adam's rate in the first phase."""
    rounds_rate: float
    """Adam's in the rounds after it."""
    trained_only: bool = False
    """Tried only where the network has seen data."""


def was_trained(observation: Observation) -> bool:
    """Whether the server's BatchNorm statistics are those of data; without BatchNorm nobody can tell."""
    return any(not untouched(*target) for target in batch_norm_targets(observation, "server").values())


def judge_for(observation: Observation) -> WeightsPart:
    """Layer weights under which candidates are compared (docs/strongest.md).

    In a network with norms, which is deep, most of the update lies in late layers that any images soon match; without,
    rising weights would favor the candidate that minimizes nothing else.
    """
    deep = any(layer.kind == "norm" for layer in layers_of(network_of(observation).model))
    return RISING if deep else FLAT
