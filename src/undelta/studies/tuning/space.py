"""The search space: the paper's ranges of Q, or wider ones; only what can matter for the model at hand."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from optuna.distributions import BaseDistribution, FloatDistribution

from undelta.attacker.attacks import ATTACKS
from undelta.attacker.priors import batch_norm_targets
from undelta.attacker.weights import Q
from undelta.errors import ConfigError
from undelta.observation import Observation
from undelta.schema import find, unknown
from undelta.updates import layers_of, layers_within

KINDS = ("conv", "norm", "linear", "other")
ENHANCEMENT = ("enhanced", "p_mean", "p_var")


@dataclass(frozen=True, kw_only=True)
class Range:
    """One side of the search space: the field of Q, or the setting of the attack, that it is for."""

    name: str
    low: float
    high: float
    log: bool = False


Space = tuple[Range, ...]

PAPER: Space = (
    Range(name="conv", low=1, high=1000),
    Range(name="norm", low=1, high=1000),
    Range(name="linear", low=1, high=1000),
    Range(name="enhanced", low=1, high=1000),
    Range(name="p_mean", low=0, high=0.5),
    Range(name="p_var", low=0, high=0.5),
)
"""Q in [1, 1000]⁴ x [0, .5]² (AWA tab_search_ranges_BO)."""

WIDE: Space = (
    # Below 1 a ramp decreases with depth. Only ratios of weights matter (Dist_Q does not change when all are scaled
    # alike), hence the logarithm.
    *(Range(name=name, low=1e-3, high=1e3, log=True) for name in (*KINDS, "enhanced")),
    Range(name="p_mean", low=0, high=0.5),
    Range(name="p_var", low=0, high=0.5),
    Range(name="position", low=0, high=1),
    Range(name="tv", low=1e-6, high=1e-1, log=True),
    Range(name="bn", low=1e-4, high=1e-1, log=True),
)
"""Also ramps that decrease, the replay's place on the path, and the coefficients of the priors."""

WEIGHTS: Space = WIDE[: len(KINDS) + len(ENHANCEMENT)]
"""Of the wide one, the sides of Q alone: the replay's place and the priors stay as they are."""

SPACES: dict[str, Space] = {"paper": PAPER, "weights": WEIGHTS, "wide": WIDE}

_Q_FIELDS = {field.name for field in fields(Q)}


def choose_space(name: str, observation: Observation, attack: str, arguments: Mapping[str, Any]) -> Space:
    """The sides of a search space that can change this attack on this update.

    A network without norms has no ramp for them, one without BatchNorm nothing for ``bn`` to weigh, and the form
    "linear" enhances nothing.

    Args:
        name: "paper", "weights" or "wide".
        observation: The update; only its layers count.
        attack: The name of an attack that weighs layers by a Q.
        arguments: Settings that stay as they are; one that the search space would tune is refused.
    """
    if name not in SPACES:
        raise ConfigError(f"--space: {unknown('search space', name, SPACES)}")
    known = inspect.signature(find("attack", attack, ATTACKS)).parameters
    if "q" not in known:
        having = [other for other, function in ATTACKS.items() if "q" in inspect.signature(function).parameters]
        raise ConfigError(f"attack {attack} has no layer weights Q to tune; choose from {', '.join(having)}")
    left_out = _without_effect(observation, str(arguments.get("form", "enhanced")))
    space = tuple(side for side in SPACES[name] if side.name not in left_out)
    space = tuple(side for side in space if side.name in _Q_FIELDS or side.name in known)
    for key in ("q", *(side.name for side in space if side.name not in _Q_FIELDS)):
        if key in arguments:
            raise ConfigError(f"--set {key}: --space {name} tunes it; leave it out, or choose another --space")
    if not any(side.name in _Q_FIELDS for side in space):
        raise ConfigError("form = 'approximation' weighs no layers; tune form = 'linear' or 'enhanced'")
    return space


def _without_effect(observation: Observation, form: str) -> set[str]:
    layers = layers_within(layers_of(observation.model()), observation.received)
    left_out: set[str] = set(KINDS) - {layer.kind for layer in layers}
    if not batch_norm_targets(observation, "server"):
        left_out.add("bn")
    if form == "linear":
        left_out.update(ENHANCEMENT)
    if form == "approximation":
        left_out.update(_Q_FIELDS)
    return left_out


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """The search space as Optuna knows it."""
    return {side.name: FloatDistribution(side.low, side.high, log=side.log) for side in space}


def settings_of(point: Mapping[str, float]) -> dict[str, Any]:
    """A point of the search space as settings of the attack.

    Examples:
        >>> settings_of({"conv": 10.0, "linear": 5.0, "position": 0.5})["position"]
        0.5
        >>> settings_of({"conv": 10.0, "linear": 5.0, "position": 0.5})["q"]["norm"]  # not searched: a flat ramp
        1.0
    """
    # Where nothing is enhanced the shares are zero, so that the weight below is never used.
    q = {**dict.fromkeys((*KINDS, "enhanced"), 1.0), "p_mean": 0.0, "p_var": 0.0}
    q |= {name: value for name, value in point.items() if name in _Q_FIELDS}
    others = {name: value for name, value in point.items() if name not in _Q_FIELDS}
    return {"q": q, **others}


def names(space: Iterable[Range]) -> tuple[str, ...]:
    """The names of a search space's sides."""
    return tuple(side.name for side in space)
