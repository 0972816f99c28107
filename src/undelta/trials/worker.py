"""A worker: lease the next unfinished trial, run it, until none is left that nobody else works on.

Every backend runs this same loop, in processes of its own kind; results depend on a trial and on the number of threads
only, not on who runs it.
"""

from __future__ import annotations

import os
import traceback
from dataclasses import dataclass
from pathlib import Path

import torch

from undelta.attacker.attack import Run, Watch
from undelta.attacker.checkpoint import Checkpoint
from undelta.attacker.reconstruction import Moment
from undelta.errors import MissingKnowledge, UndeltaError
from undelta.files import write_bytes
from undelta.trials.directory import CHECKPOINT, RunDirectory
from undelta.trials.leases import Lease, LeaseLost, Leases
from undelta.trials.outcomes import pictures
from undelta.trials.record import FAILED, NOT_APPLICABLE
from undelta.trials.trial import Outcome, Trial, run


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a worker is told; plain values, so that any backend can send it anywhere."""

    directory: str
    keys: tuple[str, ...]
    """The trials in the order in which to try them."""
    worker: str
    threads: int | None = 1
    """None leaves torch's number as it is."""
    checkpoint_seconds: float = 30.0
    home: str = ""
    """The directory from which relative paths of data and models count."""


def work(job: Job) -> None:
    """Work until nothing is left to lease; a trial that fails is recorded, and the next one is taken."""
    if job.home and Path(job.home).is_dir():
        os.chdir(job.home)
    if job.threads is not None:
        torch.set_num_threads(job.threads)  # sums over another number of threads round differently
    store, leases = RunDirectory(Path(job.directory)), Leases(worker=job.worker)
    progress = True
    while progress:
        progress = False
        for key in store.unfinished(job.keys):
            lease = leases.acquire(store.folder(key))
            if lease is None:
                continue
            with lease:
                if store.status(key) is not None:  # somebody has finished it since we looked
                    continue
                progress = True
                outcome = attempt(store, store.trial(key), lease, checkpoint_seconds=job.checkpoint_seconds)
                if outcome and outcome.reconstruction.status == "interrupted":
                    raise KeyboardInterrupt  # which the attack has answered already, but it was meant for us all


def attempt(
    store: RunDirectory,
    trial: Trial,
    lease: Lease,
    *,
    checkpoint_seconds: float = 30.0,
    watch: Watch | None = None,
) -> Outcome | None:
    """Run one trial from its last checkpoint and write what came of it.

    Returns:
        The outcome; None if there is none, since the trial failed or is another worker's by now. That of an
        interrupted attack is returned, but not written: the trial stays unfinished.
    """
    folder = store.folder(trial.key)

    def watch_lease(moment: Moment, total: int) -> None:
        if lease.lost:
            raise LeaseLost
        if watch:
            watch(moment, total)

    def open_run(key: str) -> Run:
        # Sums over another number of threads round differently.
        key = f"{key} threads={torch.get_num_threads()}"
        path = folder / CHECKPOINT
        checkpoint = Checkpoint(path, key=key, seconds=checkpoint_seconds, replace=True, check=lease.check)
        return Run(watch=watch_lease, checkpoint=checkpoint)

    outcome = None
    try:
        outcome = run(trial, open_run=open_run)
        if outcome.reconstruction.status == "interrupted":
            return outcome
        store.finish(outcome.record, pictures(outcome), lease.check)
    except LeaseLost:
        return None
    except MissingKnowledge as problem:
        _give_up(store, trial, lease, NOT_APPLICABLE, problem)
    except Exception as problem:
        # Whatever it was, the other trials are none the worse for it.
        _give_up(store, trial, lease, FAILED, problem)
        return None
    return outcome


def _give_up(store: RunDirectory, trial: Trial, lease: Lease, status: str, problem: Exception) -> None:
    name = "" if isinstance(problem, UndeltaError) else f"{type(problem).__name__}: "
    message = " ".join(f"{name}{problem}".split())[:1000]
    try:
        if not isinstance(problem, UndeltaError):
            lease.check()
            trace = "".join(traceback.format_exception(problem))
            write_bytes(store.folder(trial.key) / "error.txt", trace.encode())
        store.finish(trial.unmeasured(status, message).dated(), None, lease.check)
    except LeaseLost:
        return
