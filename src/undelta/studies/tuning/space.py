"""The search space: the paper's ranges of Q, or wider ones; only what can matter for the model at hand."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from optuna.distributions import FloatDistribution

from undelta.attacker.attacks import ATTACKS
from undelta.attacker.priors import batch_norm_targets
from undelta.attacker.weights import SEARCH_RANGES, Q
from undelta.errors import ConfigError
from undelta.observation import Observation
from undelta.schema import find, unknown
from undelta.updates import layers_of, layers_within

KINDS = ("conv", "norm", "linear", "other")
ENHANCEMENT = ("enhanced", "p_mean", "p_var")


Space = Mapping[str, FloatDistribution]
"""Sides by the field of Q, or the setting of the attack, that they are for."""

PAPER: Space = {name: FloatDistribution(low, high) for name, (low, high) in SEARCH_RANGES.items()}
"""Q in [1, 1000]⁴ x [0, .5]² (AWA tab_search_ranges_BO)."""

WEIGHTS: Space = {
    # Below 1 a ramp decreases with depth. Only ratios of weights matter (Dist_Q does not change when all are scaled
    # alike), hence the logarithm.
    **dict.fromkeys((*KINDS, "enhanced"), FloatDistribution(1e-3, 1e3, log=True)),
    **dict.fromkeys(("p_mean", "p_var"), FloatDistribution(0, 0.5)),
}
"""Also ramps that decrease; the replay's place and the priors stay as they are."""

WIDE: Space = {
    **WEIGHTS,
    "position": FloatDistribution(0, 1),
    "tv": FloatDistribution(1e-6, 1e-1, log=True),
    "bn": FloatDistribution(1e-4, 1e-1, log=True),
}
"""Also the replay's place on the path, and the coefficients of the priors."""

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
    possible = (_Q_FIELDS | set(known)) - left_out
    space = {key: side for key, side in SPACES[name].items() if key in possible}
    for key in ("q", *(key for key in space if key not in _Q_FIELDS)):
        if key in arguments:
            raise ConfigError(f"--set {key}: --space {name} tunes it; leave it out, or choose another --space")
    if not _Q_FIELDS & set(space):
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
