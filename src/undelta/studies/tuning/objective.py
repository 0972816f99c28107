"""What is optimized: a number for a point of the search space, from public knowledge only."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from undelta.attacker.attack import Run
from undelta.attacker.reconstruction import Moment, Reconstruction
from undelta.attacker.run import RECORD_EVERY
from undelta.observation import Observation
from undelta.trials.config import make_attack
from undelta.trials.trial import checkpoint_key

Report = Callable[[int, float], None]
"""Called with a step and the value there; raises if the evaluation is to end."""

OpenRun = Callable[[str, str], Run]
"""The run of a part of the evaluation, by its name and the key that says what its checkpoints belong to."""

RUNGS = 10  # parts of the way; after each but the last an attack is compared with the others


class Diverged(Exception):
    """The attack ended with no number."""


class Objective(Protocol):
    """Anything that gives a number for the attack's settings."""

    def __call__(self, settings: Mapping[str, Any], *, report: Report, open_run: OpenRun) -> float:
        """The value; equal settings give equal values.

        Args:
            settings: Of the attack.
            report: Is told of values on the way, so that hopeless evaluations end early.
            open_run: Gives what watches an attack, which raises if the evaluation is no longer ours, and checkpoints.
        """


@dataclass(frozen=True, kw_only=True)
class Tried:
    """The attack that is tuned, with what stays as it is."""

    attack: str
    arguments: Mapping[str, Any]
    seed: int

    def run(
        self, observation: Observation, settings: Mapping[str, Any], part: str, open_run: OpenRun
    ) -> Reconstruction:
        """One attack with its checkpoints; Ctrl-C ends the whole tuning, not only the attack."""
        arguments = {**self.arguments, **settings}
        run = open_run(part, checkpoint_key(observation, self.attack, arguments, self.seed))
        result = make_attack(self.attack, arguments)(observation, seed=self.seed, run=run)
        if result.status == "interrupted":
            raise KeyboardInterrupt
        return result


@dataclass(frozen=True, kw_only=True)
class Mismatch(Tried):
    """f(Q): the unweighted cosine distance of the final replay to its target (AWA eq_obj_func_BO_f_Q).

    All evaluations begin with the same noise, so that f is a function of Q alone.
    """

    observation: Observation

    def __call__(self, settings: Mapping[str, Any], *, report: Report, open_run: OpenRun) -> float:
        def open_looking(part: str, key: str) -> Run:
            run = open_run(part, key)

            def look(moment: Moment, total: int) -> None:
                run.tell(moment, total)
                if _rung(moment.iteration, total) > _rung(max(moment.iteration - RECORD_EVERY, 0), total):
                    report(moment.iteration, moment.mismatch)

            return replace(run, watch=look)

        return finite(self.run(self.observation, settings, "attack", open_looking).mismatch)


def _rung(iteration: int, total: int) -> int:
    return iteration * RUNGS // total


def finite(value: float | None) -> float:
    """The value, if it is a number."""
    if value is None or not math.isfinite(value):
        raise Diverged
    return value
