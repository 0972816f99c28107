"""Trials as tasks: run one from its last checkpoint, and write what came of it.

Results depend on a trial and on the number of threads only, not on who runs it.
"""

from __future__ import annotations

import traceback
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from undelta.attacker.attack import Run, Watch
from undelta.attacker.checkpoint import Checkpoint
from undelta.attacker.reconstruction import Moment
from undelta.errors import MissingKnowledge, NoRoom, UndeltaError
from undelta.files import write_bytes
from undelta.trials.directory import CHECKPOINT, TRIALS, RunDirectory
from undelta.trials.leases import Lease, LeaseLost
from undelta.trials.outcomes import pictures
from undelta.trials.record import FAILED, NOT_APPLICABLE
from undelta.trials.tasks import FolderTasks
from undelta.trials.trial import Outcome, Trial, run


@dataclass(kw_only=True)
class Trials(FolderTasks):
    """The trials of a run directory."""

    place = TRIALS
    checkpoint_seconds: float = 30.0

    @cached_property
    def store(self) -> RunDirectory:
        return RunDirectory(Path(self.directory))

    def status(self, key: str) -> str | None:
        return self.store.status(key)

    def attempt(self, key: str, lease: Lease) -> None:
        """Run a trial; one that fails is recorded, and the next one is taken."""
        outcome = attempt(self.store, self.store.trial(key), lease, checkpoint_seconds=self.checkpoint_seconds)
        if outcome and outcome.reconstruction.status == "interrupted":
            raise KeyboardInterrupt  # which the attack has answered already, but it was meant for us all

    def fail(self, key: str, reason: str, lease: Lease) -> None:
        self.store.finish(self.store.trial(key).unmeasured(FAILED, reason).dated(), None, lease.check)

    def tidy(self, key: str) -> None:
        self.store.tidy(key)


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

    with suppress(LeaseLost):
        try:
            outcome = run(trial, open_run=open_run)
            if outcome.reconstruction.status != "interrupted":
                store.finish(outcome.record, pictures(outcome), lease.check)
            return outcome
        except (LeaseLost, NoRoom):  # the trial is as good as before, and resumes
            raise
        except UndeltaError as problem:
            status, message = NOT_APPLICABLE if isinstance(problem, MissingKnowledge) else FAILED, str(problem)
        except Exception as problem:
            # Whatever it was, the other trials are none the worse for it.
            status, message = FAILED, f"{type(problem).__name__}: {problem}"
            lease.check()
            write_bytes(folder / "error.txt", "".join(traceback.format_exception(problem)).encode())
        store.finish(trial.unmeasured(status, " ".join(message.split())[:1000]).dated(), None, lease.check)
    return None
