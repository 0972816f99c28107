"""What is optimized: a number for a point of the search space, from public knowledge only."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, Protocol

from undelta.attacker.attack import Run
from undelta.attacker.reconstruction import Moment, Reconstruction
from undelta.attacker.run import RECORD_EVERY
from undelta.observation import Observation
from undelta.trials.config import make_attack
from undelta.trials.trial import checkpoint_key

Direction = Literal["minimize", "maximize"]
Report = Callable[[int, float], None]
"""Called with a step and the value there; raises if the evaluation is to end."""

OpenRun = Callable[[str, str], Run]
"""The run of a part of the evaluation, by its name and the key that says what its checkpoints belong to."""

RUNGS = 10  # parts of the way; after each but the last an attack is compared with the others


class Diverged(Exception):
    """The attack ended with no number."""


class Objective(Protocol):
    """Anything that gives a number for the attack's settings."""

    direction: Direction

    def __call__(self, settings: Mapping[str, Any], *, report: Report, open_run: OpenRun) -> float:
        """The value; equal settings give equal values.

        Args:
            settings: Of the attack.
            report: Is told of values on the way, so that hopeless evaluations end early.
            open_run: Gives what watches an attack, which raises if the evaluation is no longer ours, and checkpoints.
        """


class Mismatch:
    """f(Q): the unweighted cosine distance of the final replay to its target (AWA eq_obj_func_BO_f_Q).

    All evaluations begin with the same noise, so that f is a function of Q alone.
    """

    direction: Direction = "minimize"

    def __init__(self, observation: Observation, *, attack: str, arguments: Mapping[str, Any], seed: int) -> None:
        self.observation, self.attack, self.arguments, self.seed = observation, attack, dict(arguments), seed

    def __call__(self, settings: Mapping[str, Any], *, report: Report, open_run: OpenRun) -> float:
        """The mismatch at these settings."""

        def open_looking(part: str, key: str) -> Run:
            run = open_run(part, key)

            def look(moment: Moment, total: int) -> None:
                run.tell(moment, total)
                if _rung(moment.iteration, total) > _rung(max(moment.iteration - RECORD_EVERY, 0), total):
                    report(moment.iteration, moment.mismatch)

            return replace(run, watch=look)

        arguments = {**self.arguments, **settings}
        result = run_attack(self.observation, self.attack, arguments, self.seed, "attack", open_looking)
        return finite(result.mismatch)


def _rung(iteration: int, total: int) -> int:
    return iteration * RUNGS // total


def run_attack(
    observation: Observation,
    attack: str,
    arguments: Mapping[str, Any],
    seed: int,
    part: str,
    open_run: OpenRun,
) -> Reconstruction:
    """One attack with its checkpoints; Ctrl-C ends the whole tuning, not only the attack."""
    run = open_run(part, checkpoint_key(observation, attack, arguments, seed))
    result = make_attack(attack, arguments)(observation, seed=seed, run=run)
    if result.status == "interrupted":
        raise KeyboardInterrupt
    return result


def finite(value: float | None) -> float:
    """The value, if it is a number."""
    if value is None or not math.isfinite(value):
        raise Diverged
    return value
