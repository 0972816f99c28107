"""One trial: a scenario, an attack, a seed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from undelta.attacker.attack import UNWATCHED, Run
from undelta.attacker.reconstruction import Reconstruction
from undelta.attacker.resolution import fit_of
from undelta.client.disclose import disclose_with_secrets
from undelta.client.private import UNKNOWN, Private, load_private, private_pictures
from undelta.client.scenario import Scenario
from undelta.engine.devices import device_of
from undelta.errors import ConfigError, DataError, UndeltaError
from undelta.evaluation.baselines import NOISE
from undelta.evaluation.metrics import psnr, ssim
from undelta.evaluation.score import Score, score
from undelta.observation import Observation
from undelta.observation.file import digest_of, digests_of, load_observation
from undelta.schema import parse
from undelta.training import spelled
from undelta.trials.config import make_attack
from undelta.trials.noise import noise_baseline
from undelta.trials.record import (
    UNDEFENDED,
    UNFINISHED,
    Quality,
    Record,
    check_scenario,
    describe_observation,
    describe_scenario,
    finite,
    of_all_rounds,
    reset_peak_memory,
    summary,
    versions,
    with_result,
    with_score,
)


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A recorded update to attack, instead of a scenario to simulate."""

    observation: str
    """The file."""
    digest: str
    model: str | None = None
    """A custom model's function, which the user trusts."""
    about: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """What the update alone says of its scenario."""
    truth: str | None = None
    """The private images, for the score alone: what `undelta simulate` wrote, or a folder of pictures."""

    @staticmethod
    def of(path: Path, *, model: str | None = None, truth: Path | None = None) -> Recorded:
        observation = load_observation(path, model=model)
        about = describe_observation(observation)
        found = Recorded(
            observation=str(path.resolve()),
            digest=digest_of(observation),
            model=model,
            about=about,
            truth=str(truth.resolve()) if truth else None,
        )
        private, scenario = found.private(observation)  # complains before hours of work
        return replace(found, about=scenario or about) if private else found

    def private(self, observation: Observation) -> tuple[Private | None, dict[str, Any]]:
        """The truth where it is known, and the scenario that was simulated, if one was."""
        if self.truth is None:
            return None, {}
        if Path(self.truth).is_dir():
            return private_pictures(self.truth, observation), {}
        private, scenario, digest = load_private(self.truth)
        if digest not in digests_of(observation):
            raise DataError(f"{self.truth} is the truth of another observation than {self.observation}")
        check_scenario(scenario, self.truth)
        return private, of_all_rounds(scenario, observation)

    @property
    def identity(self) -> str:
        """What a result depends on: the update, and what it is compared with."""
        return self.digest if self.truth is None else f"{self.digest} and {self.truth}"

    def load(self) -> Observation:
        observation = load_observation(self.observation, model=self.model)
        if digest_of(observation) != self.digest:
            raise DataError(f"{self.observation} is another observation than the one that was to be attacked")
        return observation


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What to run; equal trials give equal records on one machine, but for the clock.

    Examples:
        >>> trial = Trial(scenario=Scenario(data="digits"), attack="awa", arguments={"steps": 100})
        >>> len(trial.key)
        16
        >>> trial.key == replace(trial, name="mine").key
        True
    """

    scenario: Scenario | Recorded
    attack: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    name: str = ""
    """Of the scenario, for people; it changes nothing. By default, what it is made of."""
    defense: str = UNDEFENDED
    """Of the fields that were added to the scenario to protect it; it changes nothing, either."""
    noise: bool = False
    """Whether to see, cheaply, what the attack makes of pure noise, too; the trial's own result does not change."""

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", summary(self._about()))

    def _about(self) -> dict[str, Any]:
        source = self.scenario
        return dict(source.about) if isinstance(source, Recorded) else describe_scenario(source)

    @property
    def key(self) -> str:
        """Names a trial by its content: 16 hex digits that do not depend on what people call it."""
        source = self.scenario
        content = {
            "scenario": source.identity if isinstance(source, Recorded) else spelled(source),
            "attack": self.attack,
            "arguments": dict(self.arguments),
            "seed": self.seed,
        }
        try:
            text = json.dumps(content, sort_keys=True, allow_nan=False)
        except (TypeError, ValueError) as problem:
            raise ConfigError(f"a setting of scenario or attack is not a plain value ({problem})") from problem
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def unmeasured(self, status: str = UNFINISHED, error: str | None = None) -> Record:
        """The record of this trial while there is no result: all numbers are None."""
        recorded = self.scenario if isinstance(self.scenario, Recorded) else None
        return Record(
            key=self.key,
            name=self.name,
            defense=self.defense,
            scenario=self._about(),
            attack=self.attack,
            arguments=dict(self.arguments),
            seed=self.seed,
            status=status,
            error=error,
            observation=recorded.digest if recorded else None,
            observation_file=recorded.observation if recorded else None,
        )

    @property
    def simulated(self) -> Scenario:
        """The scenario; a recorded update has none."""
        if isinstance(self.scenario, Recorded):
            raise ConfigError(f"expected a scenario, got the recorded update {self.scenario.observation}")
        return self.scenario


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A trial's record, and what is behind it; the truth of a recorded update is not known."""

    record: Record
    observation: Observation = field(repr=False)
    reconstruction: Reconstruction
    private: Private | None = None
    score: Score | None = None

    @property
    def images(self) -> Tensor:
        """The reconstruction, in the order of the originals where they are known."""
        return self.reconstruction.images[list(self.score.order)] if self.score else self.reconstruction.images


def run(trial: Trial, *, open_run: Callable[[str], Run] | None = None, device: str = "auto") -> Outcome:
    """One trial; the only place where all stages meet.

    ``open_run`` gives the attack's run, for a key that says what its checkpoints belong to.

    Examples:
        >>> small = {"width": 4, "hidden": 16}
        >>> scenario = Scenario(data="digits", num_samples=2, model_arguments=small, epochs=2, batches=1)
        >>> outcome = run(Trial(scenario=scenario, attack="sme", arguments={"steps": 5}))
        >>> outcome.record.attack, outcome.record.iterations, outcome.record.status
        ('sme', 5, 'completed')
        >>> outcome.score is not None and outcome.score.psnr == outcome.record.psnr
        True
    """
    attack = make_attack(trial.attack, trial.arguments)
    reset_peak_memory()
    private, order, epsilon, delta = None, None, None, None
    if isinstance(trial.scenario, Recorded):
        observation = trial.scenario.load()
    else:
        private = trial.scenario.draw(trial.seed)
        observation, secrets = disclose_with_secrets(private, trial.scenario, seed=trial.seed)  # train, defend, reveal
        order = secrets[0].orders[0] if len(secrets) == 1 else None  # for the evaluation, after the attack
        epsilon, delta = trial.scenario.privacy() or (None, None)
    observation = observation.to(device_of(device))
    watched = UNWATCHED
    if open_run:
        watched = open_run(checkpoint_key(observation, trial.attack, trial.arguments, trial.seed))
    reconstruction = attack(observation, seed=trial.seed, run=watched)
    record = with_result(
        trial.unmeasured(), reconstruction, observation, fit_of(reconstruction, observation, watched.memory)
    )
    outcome = Outcome(record=record, observation=observation, reconstruction=reconstruction)
    if isinstance(trial.scenario, Recorded):
        private, simulated = trial.scenario.private(observation)
        epsilon, delta = promised(simulated)
    if private is None:
        return outcome
    result = evaluate(reconstruction, private, observation, first_order=order)
    record = scored(record, reconstruction, private, result)
    if trial.noise and reconstruction.status != "interrupted":
        record = with_noise(record, private, observation)
    return replace(outcome, record=replace(record, epsilon=epsilon, delta=delta), private=private, score=result)


def promised(scenario: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """(ε, δ) of the client whose simulation a truth file tells of; nothing where it tells of none.

    Other defenses change no promise, and are left out: a file may name code of somebody else's.
    """
    tables = [table for table in scenario.get("defenses") or () if isinstance(table, Mapping)]
    private = [table for table in tables if table.get("defense") == "dp_sgd"]
    if not private:
        return None, None
    fields = {key: value for key, value in scenario.items() if key != "seed"} | {"defenses": private}
    try:
        return parse(Scenario, fields, where="truth", error=DataError).privacy() or (None, None)
    except UndeltaError:
        return None, None


def evaluate(
    reconstruction: Reconstruction,
    private: Private,
    observation: Observation | None,
    *,
    first_order: Tensor | None = None,
) -> Score:
    """The score; the floor needs the observation, and labels."""
    known = observation if int(private.labels.min()) != UNKNOWN else None
    return score(reconstruction, private, observation=known, first_order=first_order)


def scored(record: Record, reconstruction: Reconstruction, private: Private, result: Score) -> Record:
    """The record with its metrics, and those on the way."""
    return replace(with_score(record, result), curve=_curve(reconstruction, private, result))


def with_noise(record: Record, private: Private, observation: Observation) -> Record:
    """The record with one more baseline: what its attack makes of pure noise."""
    try:
        found = noise_baseline(observation, private, attack=record.attack, arguments=record.arguments, seed=record.seed)
    except (UndeltaError, RuntimeError, ValueError, ArithmeticError):
        found = None  # the trial itself is finished, and must not be lost
    return replace(record, baselines=record.baselines | ({NOISE: found} if found else {}))


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
    """What a checkpoint belongs to; other versions might continue differently."""
    return json.dumps([digest_of(observation), attack, dict(arguments), seed, versions()], sort_keys=True)
