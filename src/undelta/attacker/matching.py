"""Gradient matching: move dummy images until their replay explains the observed update.

Methods are values of `GradientMatching`; they differ by fields, not by subclasses. `Phases` chains them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from undelta.attacker.canvas import Canvas, Pixels, Variables
from undelta.attacker.distances import Distance, cosine
from undelta.attacker.journal import Journal
from undelta.attacker.labels import LabelSource, disclosed
from undelta.attacker.loop import Loop
from undelta.attacker.objective import Problem
from undelta.attacker.optimizers import Adam, Optimizer, Schedule, constant
from undelta.attacker.priors import Prior
from undelta.attacker.reconstruction import Iterate, Moment, Reconstruction, Status
from undelta.attacker.replays import ReplayPart
from undelta.attacker.weights import Uniform, WeightsPart
from undelta.engine import ranks
from undelta.errors import ConfigError
from undelta.observation import Observation
from undelta.seeding import stream

RECORD_EVERY = 10  # iterations between two points of the history
ITERATES = 20  # pictures of a phase on its way
ITERATE_BYTES = 2**26  # and no more memory than this for all of them

Watch = Callable[[Moment, int], None]
"""Called with every point of the history and the number of iterations to come in all."""


class Attack(Protocol):
    """Any callable that reconstructs images from an observation alone."""

    def __call__(
        self,
        observation: Observation,
        *,
        seed: int = 0,
        watch: Watch | None = None,
        journal: Journal | None = None,
    ) -> Reconstruction:
        """The reconstruction; equal seeds give equal results on one machine."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """Where a later phase begins."""

    images: Tensor  # in the model's input space
    labels: Tensor
    variables: Variables = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class GradientMatching:
    """Minimize Dist_Q(dummy update, target) + priors over the dummy images (AWA eq_weighted_loss).

    >>> from undelta import Scenario, disclose
    >>> from undelta.attacker.priors import TotalVariation
    >>> from undelta.attacker.replays import OneStep
    >>> small = {"width": 4, "hidden": 16}
    >>> scenario = Scenario(data="digits", num_samples=2, model_arguments=small, epochs=2, batches=1)
    >>> observation = disclose(scenario.draw(seed=0), scenario, seed=0)
    >>> attack = GradientMatching(replay=OneStep(position=0.5), priors=(TotalVariation(weight=0.01),), steps=21)
    >>> first, *_, last = attack(observation, seed=0).history
    >>> last.loss < first.loss
    True
    """

    replay: ReplayPart
    distance: Distance = cosine
    weights: WeightsPart = Uniform()
    priors: tuple[Prior, ...] = ()
    labels: LabelSource = disclosed
    canvas: Canvas = Pixels()
    optimizer: Optimizer = Adam()
    schedule: Schedule = constant
    path_rate: float = 1e-3
    """Adam's rate for what the replay itself learns."""
    signed: bool = False
    """Step along the sign of the gradient only (Geiping et al. 2020)."""
    noise: float = 0.0
    """Gaussian noise on the images after every step, relative to the step length (Yin et al. 2021)."""
    box: bool = True
    """Keep the images within the range of real pixels."""
    masked: bool = False
    """Leave entries that look pruned out of the match (see `pruned`)."""
    steps: int = 10_000
    restarts: int = 1
    """Independent tries, one after the other; the smallest mismatch of its own wins. No private image is involved."""
    group: int = 1
    """Tries that run side by side and are pulled to their common mean; the smallest mismatch wins."""
    consistency: float = 0.0
    """How strongly a group's members are pulled together (Yin et al. 2021)."""

    def __post_init__(self) -> None:
        for key in ("steps", "restarts", "group"):
            if getattr(self, key) < 1:
                raise ConfigError(f"expected {key} >= 1, got {key}={getattr(self, key)}")

    @property
    def total_steps(self) -> int:
        """Iterations over all restarts."""
        return self.steps * self.restarts

    def __call__(
        self,
        observation: Observation,
        *,
        seed: int = 0,
        start: Start | None = None,
        watch: Watch | None = None,
        journal: Journal | None = None,
        label: str = "",
    ) -> Reconstruction:
        """Attack; a start given by an earlier phase takes the place of noise."""
        best: Reconstruction | None = None
        iterations, seconds = 0, 0.0
        for restart in range(self.restarts):
            result = self._run(
                observation,
                (seed, restart),
                start,
                _counting(watch, restart * self.steps, self.total_steps),
                journal,
                f"{label}restart {restart}",
            )
            iterations, seconds = iterations + result.iterations, seconds + result.seconds
            if best is None or _rank(result) < _rank(best):
                best = result
            if result.status == "interrupted":
                best = replace(best, status="interrupted")
                break
        assert best is not None  # noqa: S101
        return replace(best, iterations=iterations, seconds=seconds)

    def _run(
        self,
        observation: Observation,
        seed: tuple[int, int],
        start: Start | None,
        watch: Watch | None,
        journal: Journal | None,
        label: str,
    ) -> Reconstruction:
        """One try (of a group of runs, side by side)."""
        if journal and (done := journal.finished(label)):
            return done.to(observation.device)
        loops = [Loop(self, observation, stream("attacker", *seed, 0), start)]
        for member in range(1, self.group):
            # The same labels in the same places: a mean over different classes would be nobody's image.
            loops.append(Loop(self, observation, stream("attacker", *seed, member), start, loops[0].given_labels))
        history, iterates, iteration, elapsed = list[Moment](), list[Iterate](), 0, 0.0
        shown = _shown(self.steps, observation)
        if journal and (state := journal.current(label)):
            for loop, values in zip(loops, state["loops"], strict=True):
                loop.load(values)
            iteration, elapsed = state["iteration"], state["elapsed"]
            history = [Moment(*moment) for moment in state["history"]]
            iterates = [Iterate(*iterate) for iterate in state["iterates"]]
        began = time.perf_counter() - elapsed
        status: Status = "completed"

        def checkpoint() -> dict[str, object]:
            return {
                "loops": [loop.state() for loop in loops],
                "iteration": iteration,
                "elapsed": time.perf_counter() - began,
                "history": [tuple(moment) for moment in history],
                "iterates": [tuple(iterate) for iterate in iterates],
            }

        try:
            while iteration < self.steps:
                record = iteration % RECORD_EVERY == 0
                if iteration in shown:
                    lead = min(loops, key=lambda loop: loop.mismatch)
                    iterates.append(Iterate(iteration, time.perf_counter() - began, lead.picture()))
                if self.group > 1:
                    consensus = torch.stack([loop.images for loop in loops]).mean(0)
                    for loop in loops:
                        loop.consensus = consensus
                sound = [loop.step(iteration, record=record) for loop in loops]
                if not all(sound):
                    status = "diverged"
                    break
                if record:
                    lead = min(loops, key=lambda loop: loop.mismatch)
                    moment = Moment(iteration, time.perf_counter() - began, lead.mismatch, lead.loss)
                    history.append(moment)
                iteration += 1
                if record and watch:
                    watch(moment, self.steps)
                if journal and journal.due:
                    journal.save(label, checkpoint())
        except KeyboardInterrupt:
            if ranks.shared():  # the others may be elsewhere, so there is no common result
                raise
            # The step under way may be half done, so no checkpoint now; a resumed run repeats it from the last one.
            status = "interrupted"
        seconds = time.perf_counter() - began
        results = [loop.result(status, iteration, seconds, history) for loop in loops]
        if status == "interrupted":  # also where the images were astray by then: nothing more is to run
            results = [replace(result, status=status) for result in results]
        result = replace(min(results, key=_rank), iterates=tuple(iterates))
        if journal and status != "interrupted":
            journal.finish(label, result)
        return result


Next = Callable[[Reconstruction, GradientMatching], GradientMatching | None]
"""A phase that depends on what the one before found, and how (never on the truth, which is not there); None is none."""

Phase = GradientMatching | tuple[GradientMatching, ...] | Next
"""Of several, candidates, the one goes on that explains the update best."""


@dataclass(frozen=True, kw_only=True)
class Phases:
    """Attacks in a row, each starting where the one before ended.

    A phase that ends with a larger mismatch than it began with, by its own replay, is undone: it never ends worse, by
    the attacker's own evidence, than the one before.
    """

    phases: tuple[Phase, ...]
    judge: WeightsPart = Uniform()
    """Layer weights under which candidates are compared, all under the same ones."""

    def __call__(
        self,
        observation: Observation,
        *,
        seed: int = 0,
        watch: Watch | None = None,
        journal: Journal | None = None,
    ) -> Reconstruction:
        """Attack, phase by phase."""
        history: tuple[Moment, ...] = ()
        iterates: tuple[Iterate, ...] = ()
        found: list[tuple[Reconstruction, GradientMatching]] = []
        done, seconds = 0, 0.0
        for number, phase in enumerate(self.phases):
            began = time.perf_counter()
            try:
                tries = _tries(phase, found[-1] if found else None)
            except KeyboardInterrupt:
                if not found or ranks.shared():
                    raise
                found[-1] = (replace(found[-1][0], status="interrupted"), found[-1][1])
                break
            seconds += time.perf_counter() - began
            start = _start(observation, found[-1][0]) if found else None
            results: list[tuple[Reconstruction, GradientMatching]] = []
            shown = iterates
            for index, attack in enumerate(tries):
                counting = _counting(watch, done, done + sum(one.total_steps for one in tries[index:]))
                label = f"phase {number}, " if len(tries) == 1 else f"phase {number}, try {index}, "
                result = attack(observation, seed=seed, start=start, watch=counting, journal=journal, label=label)
                history += tuple(
                    moment._replace(iteration=moment.iteration + done, seconds=moment.seconds + seconds)
                    for moment in result.history
                )
                iterates += tuple(
                    iterate._replace(iteration=iterate.iteration + done, seconds=iterate.seconds + seconds)
                    for iterate in result.iterates
                )
                done, seconds = done + result.iterations, seconds + result.seconds
                results.append((result, attack))
                if result.status == "interrupted":
                    break
            if not results:
                continue
            best, attack = self._best(observation, results)
            if results[-1][0].status == "interrupted":
                best = replace(best, status="interrupted")
            if found and _lost(best):
                kept = found[-1][0]
                history += (Moment(done, seconds, kept.mismatch, kept.history[-1].loss),)
                iterates = shown
                continue
            found.append((best, attack))
            if best.status != "completed":
                break
        if not found:
            raise ConfigError("expected at least one phase, got none")
        return replace(found[-1][0], iterations=done, seconds=seconds, history=history, iterates=iterates)

    def _best(
        self, observation: Observation, results: list[tuple[Reconstruction, GradientMatching]]
    ) -> tuple[Reconstruction, GradientMatching]:
        """The candidate whose dummy update is closest to the target, by the judge's layer weights."""

        def rank(pair: tuple[Reconstruction, GradientMatching]) -> tuple[bool, float]:
            result, attack = pair
            problem = Problem(replace(attack, weights=self.judge, priors=()), observation, stream("attacker", "judge"))
            value, _ = problem.value(observation.image.normalize(result.images), result.labels)
            distance = value.terms["distance"]
            return result.status == "diverged", distance if math.isfinite(distance) else math.inf

        return min(results, key=rank) if len(results) > 1 else results[0]


def _tries(phase: Phase, before: tuple[Reconstruction, GradientMatching] | None) -> tuple[GradientMatching, ...]:
    if isinstance(phase, GradientMatching):
        return (phase,)
    if isinstance(phase, tuple):
        return phase
    if before is None:
        raise ConfigError("the first phase has nothing before it to depend on")
    following = phase(*before)
    return () if following is None else (following,)


def _lost(result: Reconstruction) -> bool:
    """Whether a phase ended worse than it began."""
    return result.status == "completed" and bool(result.history) and result.mismatch > result.history[0].mismatch


def _start(observation: Observation, result: Reconstruction) -> Start:
    return Start(images=observation.image.normalize(result.images), labels=result.labels, variables=result.variables)


def _shown(steps: int, observation: Observation) -> set[int]:
    """The iterations of which a picture is kept: many early ones, where most happens."""
    size = observation.num_samples * math.prod(observation.image.shape)
    count = min(ITERATES, ITERATE_BYTES // size)
    return {round(steps * (index / count) ** 2) for index in range(count)}


def _rank(result: Reconstruction) -> tuple[bool, float]:
    return result.status == "diverged", result.mismatch if math.isfinite(result.mismatch) else math.inf


def _counting(watch: Watch | None, done: int, total: int) -> Watch | None:
    """The same watch, told of iterations as counted over all restarts and phases."""
    if watch is None:
        return None
    return lambda moment, _: watch(moment._replace(iteration=moment.iteration + done), total)
