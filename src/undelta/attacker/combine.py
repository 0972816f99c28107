"""Attacks made of attacks: the best of several tries, tries that are pulled together, and phases in a row.

What they choose by is the attacker's own evidence, how well images explain the update; no private image is involved.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from undelta.attacker.attack import UNWATCHED, Run
from undelta.attacker.descent import Descent
from undelta.attacker.method import GradientMatching
from undelta.attacker.objective import Problem
from undelta.attacker.priors import total_variation
from undelta.attacker.reconstruction import Iterate, Moment, Reconstruction
from undelta.attacker.run import optimize
from undelta.attacker.weights import Uniform, WeightsPart
from undelta.engine import ranks
from undelta.errors import ConfigError, MissingKnowledge
from undelta.observation import Observation
from undelta.seeding import stream

LOST = 2.0  # times the mismatch that a phase began with: then it is lost, however smooth its images are


@dataclass(frozen=True, kw_only=True)
class Consensus:
    """Tries that run side by side and are pulled to their mean; the smallest mismatch wins (Yin et al. 2021)."""

    attack: GradientMatching
    group: int
    consistency: float = 0.0
    """How strongly the members of the group are pulled together."""

    def __post_init__(self) -> None:
        _check_count("group", self.group)

    @property
    def steps(self) -> int:
        """Iterations; one moves every member."""
        return self.attack.steps

    def __call__(
        self,
        observation: Observation,
        *,
        seed: int = 0,
        attempt: int = 0,
        start: Reconstruction | None = None,
        run: Run = UNWATCHED,
    ) -> Reconstruction:
        if done := run.finished():
            return done.to(observation.device)
        descents: list[Descent] = []
        for member in range(self.group):
            # The same labels in the same places: a mean over different classes would be nobody's image.
            labels = descents[0].given_labels if descents else None
            generator = stream("attacker", seed, attempt, member)
            descents.append(Descent(self.attack, observation, generator, start, labels, memory=run.memory))

        def pull_together() -> None:
            mean = torch.stack([descent.images for descent in descents]).mean(0)

            def pull(images: Tensor) -> Tensor:
                return self.consistency * (images - mean).square().mean()

            for descent in descents:
                descent.pull = pull

        return optimize(descents, run, before_step=pull_together)


@dataclass(frozen=True, kw_only=True)
class Restarts:
    """Independent tries, one after the other; the smallest mismatch wins."""

    attack: GradientMatching | Consensus
    restarts: int

    def __post_init__(self) -> None:
        _check_count("restarts", self.restarts)

    @property
    def steps(self) -> int:
        """Iterations over all tries."""
        return self.attack.steps * self.restarts

    def __call__(
        self, observation: Observation, *, seed: int = 0, start: Reconstruction | None = None, run: Run = UNWATCHED
    ) -> Reconstruction:
        results: list[Reconstruction] = []
        for attempt in range(self.restarts):
            part = run.within(f"restart {attempt}", done=attempt * self.attack.steps, total=self.steps)
            results.append(self.attack(observation, seed=seed, attempt=attempt, start=start, run=part))
            if results[-1].status == "interrupted":
                break
        best = _ended_as(results[-1], min(results, key=lambda result: result.rank))
        iterations, seconds = (sum(getattr(result, key) for result in results) for key in ("iterations", "seconds"))
        return replace(best, iterations=iterations, seconds=seconds)


Matching: TypeAlias = GradientMatching | Consensus | Restarts
"""Gradient matching, tried in one way or another."""

Next: TypeAlias = Callable[[Reconstruction, GradientMatching], Matching | None]
"""A phase that depends on what the one before found, and how (never on the truth, which is not there); None is none."""

Phase: TypeAlias = Matching | tuple[Matching, ...] | Next
"""Of several, candidates, the one that explains the update best is kept."""


def best_of(restarts: int, attack: GradientMatching) -> GradientMatching | Restarts:
    """The best of so many tries; one is the attack itself."""
    return attack if restarts == 1 else Restarts(attack=attack, restarts=restarts)


def method_of(attack: Matching) -> GradientMatching:
    """The method that all its tries have in common."""
    return attack if isinstance(attack, GradientMatching) else method_of(attack.attack)


def altered(attack: Matching, **fields: Any) -> Matching:
    """The same tries of a method with other fields."""
    if isinstance(attack, GradientMatching):
        return replace(attack, **fields)
    return replace(attack, attack=altered(attack.attack, **fields))  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Phases:
    """Attacks in a row, each starting where the one before ended.

    A phase that ends with a larger mismatch than it began with, by its own replay, is undone, unless its images are
    smoother and the mismatch is still of the same size: near a replay's own error, the smoother images are better.
    """

    phases: tuple[Phase, ...]
    judge: WeightsPart = Uniform()
    """Layer weights under which candidates are compared, all under the same ones."""

    def __call__(self, observation: Observation, *, seed: int = 0, run: Run = UNWATCHED) -> Reconstruction:
        history: tuple[Moment, ...] = ()
        iterates: tuple[Iterate, ...] = ()
        found: Reconstruction | None = None
        method: GradientMatching | None = None
        done, seconds, total = 0, 0.0, self._total()
        for number, phase in enumerate(self.phases):
            began = time.perf_counter()
            try:
                tries = _tries(phase, found, method)
            except KeyboardInterrupt:
                if found is None or ranks.shared():
                    raise
                found = replace(found, status="interrupted")
                break
            seconds += time.perf_counter() - began
            results: list[Reconstruction] = []
            shown = iterates
            for index, attack in enumerate(tries):
                name = f"phase {number}" if len(tries) == 1 else f"phase {number}, try {index}"
                part = run.within(name, done=done, total=total)
                result = attack(observation, seed=seed, start=found, run=part)
                history += _later(result.history, done, seconds)
                iterates += _later(result.iterates, done, seconds)
                done, seconds = done + result.iterations, seconds + result.seconds
                results.append(result)
                if result.status == "interrupted":
                    break
            if not results:
                continue
            began = time.perf_counter()
            try:
                chosen = self._best(observation, results, tries, run)
            except KeyboardInterrupt:
                if ranks.shared():
                    raise
                chosen = min(range(len(results)), key=lambda index: results[index].rank)
                results[-1] = replace(results[-1], status="interrupted")
            seconds += time.perf_counter() - began
            best = _ended_as(results[-1], results[chosen])
            if found and _lost(best, found):
                history += (Moment(done, seconds, found.mismatch, found.history[-1].loss),)
                iterates = shown
                continue
            found, method = best, method_of(tries[chosen])
            if best.status != "completed":
                break
        if found is None:
            raise ConfigError("expected at least one phase, got none")
        return replace(found, iterations=done, seconds=seconds, history=history, iterates=iterates)

    def _total(self) -> int:
        """Iterations in all; 0 if a phase depends on what is found until then, so that nobody knows."""
        total = 0
        for phase in self.phases:
            if not isinstance(phase, Matching | tuple):
                return 0
            total += sum(one.steps for one in (phase if isinstance(phase, tuple) else (phase,)))
        return total

    def _best(
        self, observation: Observation, results: list[Reconstruction], tries: tuple[Matching, ...], run: Run
    ) -> int:
        """The candidate whose dummy update is closest to the target, by the judge's layer weights.

        Where one has no canvas that pictures can be carried to, all are ranked by their own mismatch.
        """

        def rank(index: int) -> tuple[bool, float]:
            result, method = results[index], replace(method_of(tries[index]), weights=self.judge, priors=())
            problem = Problem(method, observation, stream("attacker", "judge"), memory=run.memory)
            distance = problem.at(result.images, result.labels, result.learned).terms["distance"]
            return result.status == "diverged", distance if math.isfinite(distance) else math.inf

        if len(results) == 1:
            return 0
        try:
            return min(range(len(results)), key=rank)
        except (ConfigError, MissingKnowledge):
            return min(range(len(results)), key=lambda index: results[index].rank)


def _tries(phase: Phase, found: Reconstruction | None, method: GradientMatching | None) -> tuple[Matching, ...]:
    if isinstance(phase, Matching):
        return (phase,)
    if isinstance(phase, tuple):
        return phase
    if found is None or method is None:
        raise ConfigError("the first phase has nothing before it to depend on")
    following = phase(found, method)
    return () if following is None else (following,)


def _ended_as(last: Reconstruction, best: Reconstruction) -> Reconstruction:
    """The best of some tries; where the last of them was interrupted, so were all."""
    return replace(best, status="interrupted") if last.status == "interrupted" else best


def _lost(result: Reconstruction, before: Reconstruction) -> bool:
    """Whether a phase ended worse than it began: with a larger mismatch, and with images that do not make up for it."""
    if result.status != "completed" or not result.history:
        return False
    began = result.history[0].mismatch
    smoother = total_variation(result.images) < total_variation(before.images)
    return result.mismatch > (LOST * began if smoother else began)


Entry = TypeVar("Entry", Moment, Iterate)


def _later(entries: tuple[Entry, ...], iterations: int, seconds: float) -> tuple[Entry, ...]:
    """A part's history or pictures, counted from when the whole began."""
    return tuple(
        entry._replace(iteration=entry.iteration + iterations, seconds=entry.seconds + seconds) for entry in entries
    )


def _check_count(name: str, count: int) -> None:
    if count < 1:
        raise ConfigError(f"expected {name} >= 1, got {name}={count}")
