"""A sweep: keeps workers at an audit's trials until each has a result, whatever happens to the workers.

Several sweeps may share one directory, also on several machines: leases keep them apart, and each goes on until all is
done, taking over what others left behind.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from undelta.errors import UndeltaError
from undelta.trials.backends import Backend, Ended
from undelta.trials.directory import RunDirectory
from undelta.trials.leases import Leases, Owner, scan
from undelta.trials.record import FAILED, NOT_APPLICABLE
from undelta.trials.worker import Job

POLL_SECONDS = 0.25
MOST_DEATHS = 2  # of workers on one trial: once may be an accident, twice is the trial's doing
MOST_FRUITLESS = 3  # workers that die in a row before they get anywhere


class PoolError(UndeltaError):
    """Workers cannot even begin."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a sweep is."""

    total: int
    done: int
    not_applicable: int
    failed: int
    running: Mapping[str, Owner]
    """Who works on which trial, by key."""

    @property
    def left(self) -> int:
        """Trials that nobody has begun, or that wait to be resumed."""
        return self.total - self.done - self.not_applicable - self.failed - len(self.running)


class Pool:
    """One command's share in an audit."""

    def __init__(self, store: RunDirectory, backend: Backend, job: Job, *, workers: int) -> None:
        """Prepare; nothing is started yet.

        Args:
            store: The audit's directory.
            backend: Where workers run.
            job: What each worker is told; its name is a stem for theirs.
            workers: How many run at most at a time.
        """
        self.store, self.backend, self.job, self.workers = store, backend, job, workers
        self.leases = Leases(worker=job.worker)
        self._names = f"{job.worker} {secrets.token_hex(3)}"
        self._started = 0
        self._running: set[str] = set()
        self._last: dict[str, str] = {}  # the trial on which a worker was seen last
        self._deaths: Counter[str] = Counter()
        self._fruitless = 0
        self._left = len(job.keys)

    def run(self, show: Callable[[Progress], None] | None = None) -> None:
        """Work until every trial has a result."""
        try:
            self._clean()
            while True:
                began = time.monotonic()
                progress = self._look()
                if show:
                    show(progress)
                for ended in self.backend.ended():
                    self._bury(ended)
                left = self.store.unfinished(self.job.keys)
                if not left and not self._running:
                    if show:
                        show(self._look())
                    break
                self._hire(left)
                # To look at thousands of trials takes a while; do not let it become the work.
                time.sleep(max(POLL_SECONDS, 10 * (time.monotonic() - began)))
        finally:
            self.backend.stop()
            self._clean()

    def _clean(self) -> None:
        """Remove what killed workers left, also beside results that they had just written."""
        for key in self.job.keys:
            if self.leases.is_free(self.store.folder(key)) and self.store.status(key) is not None:
                self.store.tidy(key)

    def _look(self) -> Progress:
        left = self.store.unfinished(self.job.keys)
        holders = {key: self.leases.holder(self.store.folder(key)) for key in left}
        running = {key: owner for key, owner in holders.items() if owner}
        self._last.update({owner.worker: key for key, owner in running.items()})
        ends = Counter(self.store.status(key) for key in self.job.keys)
        if len(left) < self._left:
            self._left, self._fruitless = len(left), 0
        return Progress(
            total=len(self.job.keys),
            done=ends.total() - ends[None] - ends[FAILED] - ends[NOT_APPLICABLE],
            not_applicable=ends[NOT_APPLICABLE],
            failed=ends[FAILED],
            running=running,
        )

    def _hire(self, left: Sequence[str]) -> None:
        places = self.workers - len(self._running)
        if not places:
            return
        free = sum(self.leases.is_free(self.store.folder(key)) for key in left)
        # Workers that were started a moment ago have leased nothing yet; leave them a trial each.
        idle = sum(self._last.get(worker) is None for worker in self._running)
        for _ in range(min(places, free - idle)):
            self._started += 1
            worker = f"{self._names}-{self._started}"
            self.backend.start(replace(self.job, worker=worker))
            self._running.add(worker)

    def _bury(self, ended: Ended) -> None:
        self._running.discard(ended.worker)
        key = self._last_trial(ended.worker)
        if ended.problem is None or ended.blameless:
            return
        if key is None:
            self._fruitless += 1
            if self._fruitless >= MOST_FRUITLESS:
                raise PoolError(f"{self._fruitless} workers in a row died before they got anywhere: {ended.problem}")
            return
        self._deaths[key] += 1
        if self._deaths[key] >= MOST_DEATHS:
            self._give_up(key, ended.problem)

    def _last_trial(self, worker: str) -> str | None:
        """The unfinished trial that a worker was at: by its lease, or where that was taken over, as we saw it last."""
        last = self._last.pop(worker, None)
        for key in self.store.unfinished(self.job.keys):
            if any(found.owner and found.owner.worker == worker for found in scan(self.store.folder(key))):
                return key
        return last if last is not None and self.store.status(last) is None else None

    def _give_up(self, key: str, problem: str) -> None:
        lease = self.leases.acquire(self.store.folder(key))
        if lease is None:
            return  # another worker tries it already; should it die, too, we are back here
        with lease:
            if self.store.status(key) is None:
                message = f"the worker died {self._deaths[key]} times on this trial: {problem}"
                self.store.finish(self.store.trial(key).unmeasured(FAILED, message).dated(), None, lease.check)
