"""Where workers run: processes of this machine, Ray tasks, Slurm jobs. A backend starts them and says which ended."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import re
import signal
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import torch

from undelta.errors import ConfigError, NoRoom, UndeltaError
from undelta.schema import unknown
from undelta.trials.tasks import Tasks, serve

EXTRAS = {"ray": "ray", "slurm": "submitit"}
"""Backends that need a package."""
BACKENDS = ("processes", *EXTRAS)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A worker that is no more."""

    worker: str
    problem: str | None = None
    """How it died; None if it found nothing left to do."""
    blameless: bool = False
    """Whether the trial that it worked on had nothing to do with it (preempted, out of its allotted time)."""


class Backend(Protocol):
    """Anything that can run workers."""

    def start(self, tasks: Tasks) -> None:
        """Start one worker."""

    def ended(self) -> list[Ended]:
        """The workers that ended since the last time."""

    def stop(self) -> None:
        """End all workers now; what they had not saved is lost."""


def check_backend(name: str) -> None:
    """Refuse a backend that is unknown or not installed."""
    if name not in BACKENDS:
        raise ConfigError(f"--backend: {unknown('backend', name, BACKENDS)}")
    if name in EXTRAS:
        _extra(name)


def open_backend(name: str, *, workers: int, threads: int, directory: Path, slurm: Mapping[str, Any]) -> Backend:
    """The backend of that name, which `check_backend` has let through."""
    if name == "ray":
        return Ray(cores=workers * threads, threads=threads)
    if name == "slurm":
        return Slurm(directory / "slurm", threads=threads, settings=slurm)
    return Processes()


class Here:
    """This very process: a worker that is started has ended when `start` returns."""

    def __init__(self) -> None:
        self._ended: list[Ended] = []

    def start(self, tasks: Tasks) -> None:
        threads = torch.get_num_threads()
        try:
            serve(tasks)
        finally:
            torch.set_num_threads(threads)
        self._ended.append(Ended(worker=tasks.worker))

    def ended(self) -> list[Ended]:
        ended, self._ended = self._ended, []
        return ended

    def stop(self) -> None:
        """Nothing is left to end."""


class Processes:
    """Processes of this machine, each a fresh interpreter."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._running: dict[str, SpawnProcess] = {}

    def start(self, tasks: Tasks) -> None:
        resource_tracker.ensure_running()  # starts once, and would undo the block below
        process = self._context.Process(target=_process, args=(tasks,), name=tasks.worker)
        # Ctrl-C reaches the whole group. Workers inherit the block, so that only we answer it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._running[tasks.worker] = process

    def ended(self) -> list[Ended]:
        done = []
        for worker, process in list(self._running.items()):
            code = process.exitcode
            if code is not None:
                del self._running[worker]
                process.join()
                process.close()
                done.append(Ended(worker=worker, problem=_exit_problem(code)))
        return done

    def stop(self) -> None:
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
        self._running.clear()


def _exit_problem(code: int) -> str | None:
    if code == 0:
        return None
    if code == os.EX_IOERR:
        return f"{NoRoom.__name__}: it could not write its results"
    if code < 0:
        name = signal.Signals(-code).name
        return f"killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
    return f"ended with exit code {code}"


def _process(tasks: Tasks) -> None:
    """What a worker process does; it ends with its parent, so that no one works unseen."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # noqa: S101

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
    try:
        serve(tasks)
    except UndeltaError as problem:
        sys.stderr.write(f"undelta: worker {tasks.worker}: {' '.join(str(problem).split())}\n")
        sys.exit(os.EX_IOERR if isinstance(problem, NoRoom) else 1)


class Ray:
    """Ray tasks: on a Ray of our own on this machine, or on the cluster that RAY_ADDRESS names."""

    def __init__(self, *, cores: int, threads: int) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # an audit of private data phones nobody
        os.environ.setdefault("RAY_worker_niceness", "0")  # its workers are the work, not something beside it
        self._ray = _extra("ray")
        self._ours = not self._ray.is_initialized()
        if self._ours:
            own = {} if os.environ.get("RAY_ADDRESS") else {"num_cpus": cores, "include_dashboard": False}
            try:
                self._ray.init(log_to_driver=False, logging_level="error", **own)
            except (ConnectionError, RuntimeError, ValueError) as problem:
                raise ConfigError(f"Ray does not start: {problem}; check RAY_ADDRESS, or unset it") from problem
        # Ray would repeat a task that died by itself; we want to know of it.
        self._work = self._ray.remote(num_cpus=threads, max_retries=0)(serve)
        self._running: dict[Any, str] = {}

    def start(self, tasks: Tasks) -> None:
        self._running[self._work.remote(tasks)] = tasks.worker

    def ended(self) -> list[Ended]:
        done = []
        tasks = list(self._running)
        ready = self._ray.wait(tasks, num_returns=len(tasks), timeout=0)[0] if tasks else []
        for task in ready:
            problem = None
            try:
                self._ray.get(task)
            except self._ray.exceptions.RayError as error:
                problem = _last_line(str(error)) or type(error).__name__
            done.append(Ended(worker=self._running.pop(task), problem=problem))
        return done

    def stop(self) -> None:
        for task in self._running:
            self._ray.cancel(task, force=True)
        self._running.clear()
        if self._ours:
            self._ray.shutdown()


class Slurm:
    """Slurm jobs, by way of submitit. ``cluster = "local"`` in [slurm] runs them here, to try a configuration out."""

    BLAMELESS = ("TIMEOUT", "PREEMPTED", "NODE_FAIL", "CANCELLED", "BOOT_FAIL")

    def __init__(self, folder: Path, *, threads: int, settings: Mapping[str, Any]) -> None:
        submitit = _extra("slurm")
        parameters = {"name": "undelta", "cpus_per_task": threads, "timeout_min": 24 * 60, **settings}
        cluster = parameters.pop("cluster", "slurm")
        if cluster not in ("slurm", "local"):
            raise ConfigError(f"[slurm]: {unknown('cluster', cluster, ['slurm', 'local'])}")
        try:
            self._executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
            self._executor.update_parameters(**parameters)
        except (AssertionError, NameError, RuntimeError, TypeError, ValueError) as problem:
            raise ConfigError(f"[slurm]: submitit refuses it: {str(problem).splitlines()[0]}") from problem
        self._running: dict[str, Any] = {}

    def start(self, tasks: Tasks) -> None:
        try:
            self._running[tasks.worker] = self._executor.submit(serve, tasks)
        except (OSError, RuntimeError) as problem:
            raise ConfigError(f"submitit cannot start a job: {_last_line(str(problem))}") from problem

    def ended(self) -> list[Ended]:
        done = []
        for worker, job in list(self._running.items()):
            if job.done():
                del self._running[worker]
                error = job.exception()
                problem = None
                if error is not None:
                    # submitit puts the worker's traceback between rules of dashes, if there is one.
                    parts = re.split(r"^-{5,}$", str(error), flags=re.MULTILINE)
                    raised = type(error).__name__ == "FailedJobError" and len(parts) == 3
                    reason = _last_line(parts[1]) if raised else "it left no result"
                    problem = f"job {job.job_id}, state {job.state}: {reason}"
                blameless = job.state.split()[0] in self.BLAMELESS
                done.append(Ended(worker=worker, problem=problem, blameless=blameless))
        return done

    def stop(self) -> None:
        for job in self._running.values():
            job.cancel()
        self._running.clear()


def _extra(backend: str) -> ModuleType:
    module = EXTRAS[backend]
    try:
        return importlib.import_module(module)
    except ImportError as problem:
        raise ConfigError(f'--backend {backend} needs {module}: pip install "undelta[{backend}]"') from problem


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
