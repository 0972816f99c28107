"""The pool: keeps workers at shared tasks until each has a result, whatever happens to the workers.

Several pools may share one directory, also on several machines: leases keep them apart, and each continues until all is
done, taking over what others left behind.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from undelta.errors import ConfigError, NoRoom, UndeltaError
from undelta.trials.backends import Backend, Ended, Here, check_backend, open_backend
from undelta.trials.tasks import Progress, Tasks

POLL_SECONDS = 0.25
MOST_DEATHS = 2  # of workers on one task: once may be an accident, twice is the task's doing
MOST_FRUITLESS = 3  # workers that die in a row before they get anywhere


class PoolError(UndeltaError):
    """Workers cannot do their work."""


@dataclass(frozen=True, kw_only=True)
class Workers:
    """Who shall do some work: what ``--backend``, ``--workers`` and ``--threads`` say."""

    backend: str = "processes"
    count: int | None = None
    """None: as many as there are cores."""
    threads: int | None = 1
    """Of each worker; None leaves torch's number as it is."""
    slurm: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_backend(self.backend)
        if (self.threads is not None and self.threads < 1) or (self.count is not None and self.count < 1):
            raise ConfigError(f"expected --workers >= 1 and --threads >= 1, got {self.count} and {self.threads}")

    @property
    def here(self) -> bool:
        """Whether this process is worker enough."""
        return self.count == 1 and self.backend == "processes"

    def number(self, tasks: int) -> int:
        return max(1, min(self.count or available_cores() // (self.threads or 1), tasks))

    def crowding(self, tasks: int) -> str | None:
        """Says that there are more threads than cores, if so."""
        cores, count, threads = available_cores(), self.number(tasks), self.threads or 1
        if self.backend != "processes" or count * threads <= cores:
            return None
        return f"{count} x {threads} threads share {cores} cores; they will wait for each other"

    def work_off(
        self, tasks: Tasks, directory: Path, *, show: Callable[[Progress], None] | None = None, apart: bool = True
    ) -> None:
        """Work until every task has a result; a backend writes what it has of its own to the directory.

        With ``apart`` even a single worker is a process of its own, which may die without harm.
        """
        count = self.number(len(tasks.unfinished()))
        tasks = replace(tasks, worker=socket.gethostname(), threads=self.threads, home=str(Path.cwd()))
        backend: Backend = Here()
        if apart or not self.here:
            backend = open_backend(
                self.backend, workers=count, threads=self.threads or 1, directory=directory.resolve(), slurm=self.slurm
            )
        Pool(tasks, backend, workers=count).run(show)


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Pool:
    """One command's share in the work: at most so many workers at a time, named after the one in ``tasks``."""

    def __init__(self, tasks: Tasks, backend: Backend, *, workers: int) -> None:
        self.tasks, self.backend, self.workers = tasks, backend, workers
        self._names = f"{tasks.worker} {secrets.token_hex(3)}"
        self._started = 0
        self._running: set[str] = set()
        self._last: dict[str, str] = {}  # the task on which a worker was seen last
        self._deaths: Counter[str] = Counter()
        self._fruitless = 0
        self._left: int | None = None

    def run(self, show: Callable[[Progress], None] | None = None) -> None:
        try:
            with _ended_by_sigterm():
                self.tasks.clean()
                while True:
                    began = time.monotonic()
                    self._look(show)
                    for ended in self.backend.ended():
                        self._bury(ended)
                    left = self.tasks.unfinished()
                    if not left and not self._running:
                        self._look(show)
                        break
                    looking = time.monotonic() - began
                    self._hire()
                    # To look at thousands of tasks takes a while; do not let it become the work.
                    time.sleep(max(POLL_SECONDS, 10 * looking))
        finally:
            self.backend.stop()
            self.tasks.clean()

    def _look(self, show: Callable[[Progress], None] | None) -> None:
        progress = self.tasks.look()
        self._last.update({owner.worker: task for task, owner in progress.running.items()})
        left = progress.left + len(progress.running)
        if self._left is None or left < self._left:
            self._left, self._fruitless = left, 0
        if show:
            show(progress)

    def _hire(self) -> None:
        places = self.workers - len(self._running)
        if not places:
            return
        # Workers that were started a moment ago have taken nothing yet; leave them a task each.
        idle = sum(self._last.get(worker) is None for worker in self._running)
        for _ in range(min(places, self.tasks.free() - idle)):
            self._started += 1
            worker = f"{self._names}-{self._started}"
            self._running.add(worker)
            self.backend.start(replace(self.tasks, worker=worker))

    def _bury(self, ended: Ended) -> None:
        self._running.discard(ended.worker)
        last = self._last.pop(ended.worker, None)
        if ended.problem is None or ended.blameless:
            return
        if NoRoom.__name__ in ended.problem:
            raise PoolError("no room to write; make some, and the same command resumes from the last checkpoints")
        task = self.tasks.task_of(ended.worker)
        if task is None and last in self.tasks.unfinished():
            task = last  # its lease was taken over before we looked
        if task is None:
            self._fruitless += 1
            if self._fruitless >= MOST_FRUITLESS:
                raise PoolError(f"{self._fruitless} workers in a row died before they got anywhere: {ended.problem}")
            return
        self._deaths[task] += 1
        if self._deaths[task] >= MOST_DEATHS:
            self.tasks.give_up(task, f"the worker died {self._deaths[task]} times on it: {ended.problem}")


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let a polite request to end do what Ctrl-C does, within the block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
