"""Tasks that workers share: an audit's trials, measurements of utility, evaluations of Q.

A `Tasks` object is plain values, so that any backend can send it anywhere; who is at which task is kept where all
workers see it: in lease files (`FolderTasks`), or in a database (`undelta.studies.tuning`).
"""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import torch

from undelta.trials.leases import Lease, LeaseLost, Leases, Owner, scan
from undelta.trials.record import FAILED, NOT_APPLICABLE


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far the work is."""

    total: int
    done: int
    not_applicable: int = 0
    failed: int = 0
    running: Mapping[str, Owner]
    """Who works on which task."""

    @property
    def left(self) -> int:
        """Tasks that nobody has begun, or that wait to be resumed."""
        return self.total - self.done - self.not_applicable - self.failed - len(self.running)


@dataclass(kw_only=True)
class Tasks(ABC):
    """Shared work, as one worker sees it."""

    worker: str = "start"
    threads: int | None = 1
    """Of each task; None leaves torch's number as it is."""
    home: str = ""
    """The directory from which relative paths of data and models count."""

    @abstractmethod
    def look(self) -> Progress:
        """How far all workers together are."""

    @abstractmethod
    def free(self) -> int:
        """How many unfinished tasks nobody works on."""

    @abstractmethod
    def unfinished(self) -> list[str]:
        """The tasks without a result, in order."""

    @abstractmethod
    def task_of(self, worker: str) -> str | None:
        """The unfinished task that a worker holds, or held when it died."""

    @abstractmethod
    def work(self) -> None:
        """Take one task after the other until none is left that nobody else works on."""

    @abstractmethod
    def give_up(self, task: str, reason: str) -> None:
        """Finish a task that cannot be done, unless somebody works on it."""

    @abstractmethod
    def clean(self) -> None:
        """Remove what killed workers left."""


def serve(tasks: Tasks) -> None:
    """What every backend's workers do."""
    if tasks.home and Path(tasks.home).is_dir():
        os.chdir(tasks.home)
    if tasks.threads is not None:
        torch.set_num_threads(tasks.threads)  # sums over another number of threads round differently
    tasks.work()


@dataclass(kw_only=True)
class FolderTasks(Tasks):
    """Tasks with a folder each, which holds the lease of whoever works on it, and the result."""

    place: ClassVar[str]
    """The part of the directory that holds the folders."""
    directory: str
    keys: tuple[str, ...]

    def folder(self, key: str) -> Path:
        """Where a task's files lie."""
        return Path(self.directory) / self.place / key

    @abstractmethod
    def status(self, key: str) -> str | None:
        """How a task ended, or None."""

    @abstractmethod
    def attempt(self, key: str, lease: Lease) -> None:
        """Do a task and write its result, while the lease lasts."""

    @abstractmethod
    def fail(self, key: str, reason: str, lease: Lease) -> None:
        """Write that a task cannot be done."""

    @abstractmethod
    def tidy(self, key: str) -> None:
        """Remove what a finished task no longer needs."""

    @cached_property
    def leases(self) -> Leases:
        return Leases(worker=self.worker)

    def unfinished(self) -> list[str]:
        return [key for key in self.keys if self.status(key) is None]

    def look(self) -> Progress:
        holders = {key: self.leases.holder(self.folder(key)) for key in self.unfinished()}
        ends = Counter(self.status(key) for key in self.keys)
        return Progress(
            total=len(self.keys),
            done=ends.total() - ends[None] - ends[FAILED] - ends[NOT_APPLICABLE],
            not_applicable=ends[NOT_APPLICABLE],
            failed=ends[FAILED],
            running={key: owner for key, owner in holders.items() if owner},
        )

    def free(self) -> int:
        return sum(self.leases.is_free(self.folder(key)) for key in self.unfinished())

    def task_of(self, worker: str) -> str | None:
        for key in self.unfinished():
            if any(found.owner and found.owner.worker == worker for found in scan(self.folder(key))):
                return key
        return None

    def work(self) -> None:
        progress = True
        while progress:
            progress = False
            for key in self.unfinished():
                lease = self.leases.acquire(self.folder(key))
                if lease is None:
                    continue
                with lease:
                    if self.status(key) is None:  # or somebody has finished it since we looked
                        progress = True
                        with contextlib.suppress(LeaseLost):  # others took us for dead, and do it again
                            self.attempt(key, lease)

    def give_up(self, task: str, reason: str) -> None:
        lease = self.leases.acquire(self.folder(task))
        if lease is None:
            return  # another worker tries it already; should it die, too, we are back here
        with lease:
            if self.status(task) is None:
                self.fail(task, reason, lease)

    def clean(self) -> None:
        """Remove what killed workers left, also beside results that they had just written."""
        for key in self.keys:
            if self.leases.is_free(self.folder(key)) and self.status(key) is not None:
                self.tidy(key)
