"""One trial: a scenario, an attack, a seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from undelta.attacker.matching import Watch
from undelta.attacker.reconstruction import Reconstruction
from undelta.audit.config import make_attack
from undelta.audit.record import Record, describe_scenario, make_record, reset_peak_memory, with_score
from undelta.client.disclose import disclose
from undelta.client.private import Private
from undelta.client.scenario import Scenario
from undelta.evaluation.score import Score, score


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What to run; equal trials give equal records on one machine, but for the clock."""

    scenario: Scenario
    attack: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A trial's record, and the pictures behind it."""

    record: Record
    private: Private
    reconstruction: Reconstruction
    score: Score


def run(trial: Trial, *, watch: Watch | None = None) -> Outcome:
    """One trial; the only place where all stages meet."""
    attack = make_attack(trial.attack, trial.arguments)
    reset_peak_memory()
    private = trial.scenario.draw(trial.seed)
    observation = disclose(private, trial.scenario, seed=trial.seed)  # train, reveal
    reconstruction = attack(observation, seed=trial.seed, watch=watch)
    result = score(reconstruction, private)
    record = make_record(
        attack=trial.attack,
        arguments=trial.arguments,
        scenario=describe_scenario(trial.scenario),
        seed=trial.seed,
        reconstruction=reconstruction,
        observation=observation,
    )
    return Outcome(record=with_score(record, result), private=private, reconstruction=reconstruction, score=result)
