"""A whole audit: check the configuration, run what has no result yet, judge all that has."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from undelta.errors import ConfigError
from undelta.evaluation.lpips import load_lpips
from undelta.evaluation.metrics import WINDOW
from undelta.files import write_bytes
from undelta.studies.overview import overview
from undelta.trials.backends import check_backend, open_backend
from undelta.trials.directory import RunDirectory
from undelta.trials.leases import Leases
from undelta.trials.plan import Plan
from undelta.trials.pool import Pool
from undelta.trials.record import FAILED, Record
from undelta.trials.verdict import Gate, Verdict, judge, offenses
from undelta.trials.worker import Job


@dataclass(frozen=True, kw_only=True)
class Audited:
    """What came of an audit."""

    verdicts: tuple[Verdict, ...]
    offenses: tuple[str, ...]
    """A line for each gate that a scenario did not pass."""
    failed: tuple[Record, ...]


def run_plan(
    plan: Plan,
    *,
    out: Path,
    backend: str = "processes",
    workers: int | None = None,
    threads: int = 1,
    checkpoint_seconds: float = 30.0,
    retry_failed: bool = False,
    gates: Sequence[Gate] = (),
    say: Callable[[str], None] = lambda _: None,
) -> Audited:
    """Run all trials of a plan that have no result yet, and judge all that have.

    The same call after a crash or Ctrl-C goes on from the last checkpoints and ends with the same results.
    """
    check_backend(backend)
    check_metrics(plan, gates)
    keys = plan.keys
    cores = available_cores()
    if threads < 1 or (workers is not None and workers < 1):
        raise ConfigError(f"expected --workers >= 1 and --threads >= 1, got {workers} and {threads}")
    workers = min(workers or max(1, cores // threads), len(keys))
    for line in plan.repeats():
        say(f"Note: {line}.")
    if backend == "processes" and workers * threads > cores:
        say(f"Note: {workers} x {threads} threads share {cores} cores; they will wait for each other.")
    store = RunDirectory(out)
    leases = Leases(worker="start")
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file; choose a directory for --out")
    store.prepare(plan.text, plan.trials, leases, title=plan.name)
    if retry_failed:
        store.forget_failed(keys, leases)
    if store.unfinished(keys):
        job = Job(
            directory=str(out.resolve()),
            keys=keys,
            worker=socket.gethostname(),
            threads=threads,
            checkpoint_seconds=checkpoint_seconds,
            home=str(Path.cwd()),
        )
        opened = open_backend(backend, workers=workers, threads=threads, directory=out.resolve(), slurm=plan.slurm)
        with overview({trial.key: trial for trial in plan.trials}) as show, ended_by_sigterm():
            Pool(store, opened, job, workers=workers).run(show)
    return judge_job(plan, store, gates)


def check_metrics(plan: Plan, gates: Sequence[Gate]) -> None:
    """Refuse a metric that cannot be measured, and a gate that needs one, before hours of work."""
    lpips = load_lpips()  # a damaged file would otherwise be found after the first trial
    if any(gate.metric == "lpips" for gate in gates) and lpips is None:
        raise ConfigError(
            "--fail-below lpips needs LPIPS, whose weights are missing; fetch them: undelta weights lpips"
        )
    if any(gate.metric == "ssim" for gate in gates):
        pictures = {(trial.scenario.data, trial.scenario.image_size): trial.scenario for trial in plan.trials}
        for scenario in pictures.values():
            side = min(scenario.image_spec().shape[1:])
            if side < WINDOW:
                raise ConfigError(
                    f"--fail-above ssim: SSIM needs images of {WINDOW} pixels a side, got {side} ({scenario.data}); "
                    "use psnr"
                )


def judge_job(plan: Plan, store: RunDirectory, gates: Sequence[Gate] = ()) -> Audited:
    """Judge what is there, and write it to ``verdict.json``."""
    found = {key: store.record(key) for key in plan.keys}
    records = {key: record for key, record in found.items() if record}
    verdicts = judge(plan.trials, records, plan.thresholds)
    content = json.dumps([verdict.as_json() for verdict in verdicts], indent=1, allow_nan=False)
    write_bytes(store.directory / "verdict.json", content.encode())
    return Audited(
        verdicts=tuple(verdicts),
        offenses=tuple(offenses(verdicts, gates)),
        failed=tuple(record for record in records.values() if record.status == FAILED),
    )


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Let a polite request to end do what Ctrl-C does, within the block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
