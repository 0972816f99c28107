"""What an attack makes of an update without information: a baseline, measured cheaply, once per scenario and attack."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from undelta.assignment import match
from undelta.attacker.attacks import ATTACKS
from undelta.client.private import Private
from undelta.errors import ConfigError, MissingKnowledge
from undelta.evaluation.baselines import Baseline, baseline
from undelta.observation import Observation
from undelta.observation.withhold import pure_noise
from undelta.schema import find
from undelta.seeding import stream
from undelta.trials.config import make_attack

MOST = {"steps": 25, "rollout_steps": 4, "restarts": 1}
"""What is enough to see what an attack's priors draw where the update says nothing."""


def noise_baseline(
    observation: Observation, private: Private, *, attack: str, arguments: Mapping[str, Any], seed: int
) -> Baseline | None:
    """The same attack on noise as long as the update, with few iterations; None where it does not apply."""
    known = inspect.signature(find("attack", attack, ATTACKS)).parameters
    cheap = dict(arguments)
    for key, most in MOST.items():
        given = arguments.get(key, known[key].default if key in known else None)
        if isinstance(given, int):
            cheap[key] = min(given, most)
    try:
        noise = pure_noise(observation, stream("trials", seed, "noise"))
        found = make_attack(attack, cheap)(noise, seed=seed)
    except (ConfigError, MissingKnowledge):
        return None
    if found.status == "interrupted":
        raise KeyboardInterrupt  # what was found by then would depend on when it was
    truth, guesses = private.images, found.images.detach().cpu().to(private.images.dtype)
    return baseline(guesses[match(guesses, truth, found.labels.cpu(), private.labels)], truth)
