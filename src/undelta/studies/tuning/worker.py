"""A worker of a tuning: take the next place in line, evaluate its point, until nothing is left to take."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import optuna
import torch
from optuna.exceptions import UpdateFinishedTrialError

from undelta.attacker.attack import Run, Watch
from undelta.attacker.checkpoint import Checkpoint
from undelta.attacker.reconstruction import Moment
from undelta.engine import MEMORY
from undelta.engine.devices import device_of
from undelta.observation import Observation
from undelta.observation.file import load_observation
from undelta.studies.tuning.objective import Diverged, Mismatch, Objective
from undelta.studies.tuning.plan import OBSERVATION, Plan, read_plan
from undelta.studies.tuning.proposals import DIVERGED, Proposals
from undelta.studies.tuning.shadow import ShadowQuality
from undelta.studies.tuning.space import settings_of
from undelta.studies.tuning.study import Running, Slots, TrialLost, make_pruner, open_storage, open_study
from undelta.trials.leases import STALE_SECONDS, Leases

CHECKPOINTS = "checkpoints"
HEARTBEAT_SECONDS = 20.0  # each is a line in the journal

ShowTrial = Callable[[int], Watch]
"""Something to show a trial's progress with, by its place in line."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a worker is told; plain values, so that a process can be given it."""

    directory: str
    storage: str | None
    worker: str
    total: int
    threads: int | None = None
    """None leaves torch's number as it is."""
    checkpoint_seconds: float = 30.0
    model: str | None = None
    device: str = "auto"
    memory: int = MEMORY
    home: str = ""
    """The directory from which relative paths of data and models count."""


def work(job: Job) -> None:
    """What a worker process does."""
    if job.home:
        os.chdir(job.home)
    if job.threads is not None:
        torch.set_num_threads(job.threads)  # sums over another number of threads round differently
    directory = Path(job.directory)
    plan = read_plan(directory)
    observation = load_observation(directory / OBSERVATION, model=job.model).to(device_of(job.device))
    slots, objective = join(job, plan), make_objective(plan, observation)
    evaluate(slots, objective, directory, checkpoint_seconds=job.checkpoint_seconds, memory=job.memory)


def join(job: Job, plan: Plan) -> Slots:
    """The study's places in line, as this worker sees them."""
    storage = open_storage(job.storage, Path(job.directory))
    study = open_study(
        storage,
        plan.name,
        sampler=Proposals(plan.sides, seed=plan.seed, random=plan.random),
        pruner=make_pruner(prune=plan.prune, random=plan.random, warmup=plan.warmup),
        direction=plan.direction,
    )
    leases = Leases(worker=job.worker, stale_seconds=STALE_SECONDS, heartbeat_seconds=HEARTBEAT_SECONDS)
    return Slots(study, storage, total=job.total, worker=job.worker, leases=leases)


def make_objective(plan: Plan, observation: Observation) -> Objective:
    """What the plan asks for."""
    arguments = {**plan.arguments, "steps": plan.steps}
    if plan.objective == "mismatch":
        return Mismatch(observation, attack=plan.attack, arguments=arguments, seed=plan.seed)
    assert plan.public is not None  # noqa: S101
    return ShadowQuality(
        observation,
        public=plan.public,
        draws=plan.shadow_draws,
        attack=plan.attack,
        arguments=arguments,
        seed=plan.seed,
    )


def evaluate(
    slots: Slots,
    objective: Objective,
    directory: Path,
    *,
    checkpoint_seconds: float = 30.0,
    memory: int = MEMORY,
    show: ShowTrial | None = None,
) -> None:
    """Evaluate one point after the other until there is nothing left to take."""
    while running := slots.take():
        with running:
            _attempt(running, objective, directory, checkpoint_seconds, memory, show(running.slot) if show else None)


def _attempt(
    running: Running,
    objective: Objective,
    directory: Path,
    checkpoint_seconds: float,
    memory: int,
    show: Watch | None,
) -> None:
    folder = directory / CHECKPOINTS
    folder.mkdir(exist_ok=True)
    opened: list[Path] = []

    def watch(moment: Moment, total: int) -> None:
        running.check()
        if show:
            show(moment, total)

    def open_run(part: str, key: str) -> Run:
        opened.append(folder / f"{running.slot}-{part}.pt")
        key = f"{key} threads={torch.get_num_threads()}"
        checkpoint = Checkpoint(opened[-1], key=key, seconds=checkpoint_seconds, replace=True)
        return Run(watch=watch, checkpoint=checkpoint, memory=memory)

    try:
        settings = settings_of(running.point())
        running.complete(objective(settings, report=running.report, open_run=open_run))
    except optuna.TrialPruned:
        running.prune()
    except Diverged:
        running.prune(DIVERGED)
    except (TrialLost, UpdateFinishedTrialError):
        return  # whoever repeats the trial goes on from its checkpoint
    for path in opened:
        path.unlink(missing_ok=True)
