"""Evaluations of Q as tasks: take the next place in line, evaluate its point, until nothing is left to take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import optuna
import torch
from optuna.exceptions import UpdateFinishedTrialError

from undelta.attacker.attack import Run, Watch
from undelta.attacker.checkpoint import Checkpoint
from undelta.attacker.reconstruction import Moment
from undelta.engine import MEMORY
from undelta.engine.devices import device_of
from undelta.files import make_folder
from undelta.observation import Observation
from undelta.observation.file import load_observation
from undelta.studies.tuning.objective import Diverged, Mismatch, Objective
from undelta.studies.tuning.plan import OBSERVATION, Plan, read_plan
from undelta.studies.tuning.proposals import DIVERGED, Proposals, slot_of
from undelta.studies.tuning.shadow import ShadowQuality, cast_shadow
from undelta.studies.tuning.space import settings_of
from undelta.studies.tuning.storage import open_storage
from undelta.studies.tuning.study import Running, Slots, TrialLost
from undelta.trials.pool import PoolError
from undelta.trials.tasks import Progress, Tasks

CHECKPOINTS = "checkpoints"

ShowTrial = Callable[[int], Watch]
"""Something to show a trial's progress with, by its place in line."""


@dataclass(kw_only=True)
class Evaluations(Tasks):
    """The places in line of a tuning's study; who is at which is in its database."""

    directory: str
    storage: str | None
    total: int
    checkpoint_seconds: float = 30.0
    model: str | None = None
    device: str = "auto"
    memory: int = MEMORY
    show: ShowTrial | None = field(default=None, repr=False)
    """For a worker in this process."""

    @cached_property
    def slots(self) -> Slots:
        """The places, as this worker sees them."""
        plan = read_plan(Path(self.directory))
        return Slots(
            open_storage(self.storage, Path(self.directory)),
            Proposals(plan.sides, seed=plan.seed, random=plan.random, kernel=plan.kernel),
            name=plan.name,
            direction=plan.direction,
            prune=plan.prune,
            warmup=plan.warmup,
            total=self.total,
            worker=self.worker,
        )

    def unfinished(self) -> list[str]:
        done = set(map(slot_of, self.slots.finished()))
        return [str(slot) for slot in range(self.total) if slot not in done]

    def look(self) -> Progress:
        running = {str(slot): owner for slot, owner in self.slots.running().items()}
        return Progress(total=self.total, done=len(self.slots.finished()), running=running)

    def free(self) -> int:
        return len(self.slots.waiting())

    def task_of(self, worker: str) -> str | None:
        return next((str(slot) for slot, owner in self.slots.running().items() if owner.worker == worker), None)

    def give_up(self, task: str, reason: str) -> None:
        """A point that kills its workers would leave the study without an answer."""
        raise PoolError(f"evaluation {task}: {reason}")

    def clean(self) -> None:
        """Dead workers leave nothing but checkpoints, which whoever repeats their trials needs."""

    def work(self) -> None:
        directory = Path(self.directory)
        observation = load_observation(directory / OBSERVATION, model=self.model).to(device_of(self.device))
        objective = make_objective(read_plan(directory), observation)
        evaluate(self.slots, objective, directory, self.checkpoint_seconds, self.memory, self.show)


def make_objective(plan: Plan, observation: Observation) -> Objective:
    """What the plan asks for."""
    tried: dict[str, Any] = {"attack": plan.attack, "arguments": {**plan.arguments, "steps": plan.steps}}
    if plan.objective == "mismatch":
        return Mismatch(observation=observation, seed=plan.seed, **tried)
    assert plan.public is not None  # noqa: S101
    draws = range(plan.shadow_draws)
    shadows = [cast_shadow(observation, plan.public, seed=plan.seed, draw=draw) for draw in draws]
    return ShadowQuality(shadows=shadows, seed=plan.seed, **tried)


def evaluate(
    slots: Slots,
    objective: Objective,
    directory: Path,
    checkpoint_seconds: float = 30.0,
    memory: int = MEMORY,
    show: ShowTrial | None = None,
) -> None:
    """Evaluate one point after the other until there is nothing left to take."""
    folder = directory / CHECKPOINTS

    def attempt(running: Running) -> None:
        make_folder(folder)
        opened: list[Path] = []
        shown = show(running.slot) if show else None

        def watch(moment: Moment, total: int) -> None:
            running.check()
            if shown:
                shown(moment, total)

        def open_run(part: str, key: str) -> Run:
            opened.append(folder / f"{running.slot}-{part}.pt")
            key = f"{key} threads={torch.get_num_threads()}"
            checkpoint = Checkpoint(opened[-1], key=key, seconds=checkpoint_seconds, replace=True)
            return Run(watch=watch, checkpoint=checkpoint, memory=memory)

        try:
            try:
                settings = settings_of(running.point())
                running.complete(objective(settings, report=running.report, open_run=open_run))
            except optuna.TrialPruned:
                running.prune()
            except Diverged:
                running.prune(DIVERGED)
        except (TrialLost, UpdateFinishedTrialError):
            return  # whoever repeats the trial resumes from its checkpoint
        for path in opened:
            path.unlink(missing_ok=True)

    while running := slots.take():
        with running:
            attempt(running)
