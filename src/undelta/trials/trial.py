"""One trial: a scenario, an attack, a seed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from undelta.attacker.attack import UNWATCHED, Run
from undelta.attacker.reconstruction import Reconstruction
from undelta.client.disclose import disclose_with_secrets
from undelta.client.private import Private
from undelta.client.scenario import Scenario
from undelta.engine.devices import device_of
from undelta.errors import ConfigError
from undelta.evaluation.metrics import psnr, ssim
from undelta.evaluation.score import Score, score
from undelta.observation import Observation
from undelta.observation.file import digest_of
from undelta.trials.config import make_attack
from undelta.trials.record import (
    UNDEFENDED,
    UNFINISHED,
    Quality,
    Record,
    describe_scenario,
    finite,
    reset_peak_memory,
    versions,
    with_result,
    with_score,
)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What to run; equal trials give equal records on one machine, but for the clock.

    >>> trial = Trial(scenario=Scenario(data="digits"), attack="awa", arguments={"steps": 100})
    >>> len(trial.key)
    16
    >>> trial.key == Trial(scenario=Scenario(data="digits"), attack="awa", arguments={"steps": 100}, name="mine").key
    True
    """

    scenario: Scenario
    attack: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    name: str = "base"
    """Of the scenario, for people; it changes nothing."""
    defense: str = UNDEFENDED
    """Of the fields that were added to the scenario to protect it; it changes nothing, either."""

    @property
    def key(self) -> str:
        """Names a trial by its content: 16 hex digits that do not depend on what people call it."""
        content = {
            "scenario": asdict(self.scenario),
            "attack": self.attack,
            "arguments": dict(self.arguments),
            "seed": self.seed,
        }
        try:
            text = json.dumps(content, sort_keys=True, allow_nan=False)
        except (TypeError, ValueError) as problem:
            raise ConfigError(f"a setting of scenario or attack is no plain value ({problem})") from problem
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def as_json(self) -> dict[str, Any]:
        """The fields as plain values."""
        return asdict(self)

    def unmeasured(self, status: str = UNFINISHED, error: str | None = None) -> Record:
        """The record of this trial while there is no result: all numbers are None."""
        return Record(
            key=self.key,
            name=self.name,
            defense=self.defense,
            scenario=describe_scenario(self.scenario),
            attack=self.attack,
            arguments=dict(self.arguments),
            seed=self.seed,
            status=status,
            error=error,
        )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A trial's record, and what is behind it."""

    record: Record
    private: Private
    observation: Observation = field(repr=False)
    reconstruction: Reconstruction
    score: Score


def run(trial: Trial, *, open_run: Callable[[str], Run] | None = None) -> Outcome:
    """One trial; the only place where all stages meet.

    Args:
        trial: What to run.
        open_run: Gives the attack's run, for a key that says what its checkpoints belong to.

    >>> small = {"width": 4, "hidden": 16}
    >>> scenario = Scenario(data="digits", num_samples=2, model_arguments=small, epochs=2, batches=1)
    >>> outcome = run(Trial(scenario=scenario, attack="sme", arguments={"steps": 5}))
    >>> outcome.record.attack, outcome.record.iterations, outcome.record.status
    ('sme', 5, 'completed')
    >>> outcome.score.psnr == outcome.record.psnr
    True
    """
    attack = make_attack(trial.attack, trial.arguments)
    reset_peak_memory()
    private = trial.scenario.draw(trial.seed)
    observation, secrets = disclose_with_secrets(private, trial.scenario, seed=trial.seed)  # train, defend, reveal
    observation = observation.to(device_of("auto"))
    key = partial(checkpoint_key, observation, trial.attack, trial.arguments, trial.seed)
    reconstruction = attack(observation, seed=trial.seed, run=open_run(key()) if open_run else UNWATCHED)
    order = secrets[0].orders[0] if len(secrets) == 1 else None  # for the evaluation; the attack is over
    result = score(reconstruction, private, observation=observation, first_order=order)
    record = with_score(with_result(trial.unmeasured(), reconstruction, observation), result)
    epsilon, delta = trial.scenario.privacy() or (None, None)
    return Outcome(
        record=replace(record, epsilon=epsilon, delta=delta, curve=_curve(reconstruction, private, result)),
        private=private,
        observation=observation,
        reconstruction=reconstruction,
        score=result,
    )


def _curve(reconstruction: Reconstruction, private: Private, result: Score) -> tuple[Quality, ...]:
    """Means over images of each saved iterate, matched with the originals as the final images are."""
    order, truth = list(result.order), private.images
    curve = []
    for iterate in reconstruction.iterates:
        images = iterate.images[order].to(truth.dtype) / 255
        means = {"psnr": psnr(images, truth).mean().item(), "ssim": ssim(images, truth).mean().item()}
        known = {name: finite(value) for name, value in means.items()}
        curve.append(Quality(iteration=iterate.iteration, seconds=iterate.seconds, **known))
    return tuple(curve)


def checkpoint_key(observation: Observation, attack: str, arguments: Mapping[str, Any], seed: int) -> str:
    """What a checkpoint belongs to; other versions might go on differently."""
    return json.dumps([digest_of(observation), attack, dict(arguments), seed, versions()], sort_keys=True)
