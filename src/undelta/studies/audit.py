"""A whole audit: check the configuration, run what has no result yet, judge all that has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from undelta.errors import ConfigError
from undelta.evaluation.lpips import load_lpips
from undelta.evaluation.metrics import WINDOW
from undelta.files import to_json, write_bytes
from undelta.studies.screen import SILENT, Screen
from undelta.trials.directory import RunDirectory
from undelta.trials.leases import Leases
from undelta.trials.plan import Plan
from undelta.trials.pool import Workers
from undelta.trials.record import FAILED, Record
from undelta.trials.verdict import Gate, Verdict, judge, offenses
from undelta.trials.worker import Trials


@dataclass(frozen=True, kw_only=True)
class Audited:
    """What came of an audit."""

    verdicts: tuple[Verdict, ...]
    offenses: tuple[str, ...]
    """A line for each gate that a scenario did not pass."""
    records: Mapping[str, Record]
    """Of the trials that have one, by key."""

    @property
    def failed(self) -> tuple[Record, ...]:
        return tuple(record for record in self.records.values() if record.status == FAILED)


def run_plan(
    plan: Plan,
    *,
    out: Path,
    workers: Workers | None = None,
    checkpoint_seconds: float = 30.0,
    retry_failed: bool = False,
    gates: Sequence[Gate] = (),
    say: Callable[[str], None] = lambda _: None,
    screen: Screen = SILENT,
) -> Audited:
    """Run all trials of a plan that have no result yet, and judge all that have.

    The same call after a crash or Ctrl-C resumes from the last checkpoints and ends with the same results.
    """
    check_metrics(plan, gates)
    workers = replace(workers or Workers(), slurm=plan.slurm)
    for line in (*plan.repeats(), workers.crowding(len(plan.keys))):
        if line:
            say(f"Note: {line}.")
    store, leases = RunDirectory(out), Leases(worker="start")
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file; choose a directory for --out")
    store.prepare(plan.text, plan.trials, leases, title=plan.name)
    if retry_failed:
        store.forget_failed(plan.keys, leases)
    if store.unfinished(plan.keys):
        trials = Trials(directory=str(out.resolve()), keys=plan.keys, checkpoint_seconds=checkpoint_seconds)
        with screen.trials({trial.key: trial for trial in plan.trials}) as show:
            workers.work_off(trials, out, show=show)
    return judge_job(plan, store, gates)


def check_metrics(plan: Plan, gates: Sequence[Gate]) -> None:
    """Refuse a metric that cannot be measured, and a gate that needs one, before hours of work."""
    lpips = load_lpips()  # a damaged file would otherwise be found after the first trial
    if any(gate.metric == "lpips" for gate in gates) and lpips is None:
        raise ConfigError("--fail-below lpips needs LPIPS, whose weights are missing; fetch them: undelta fetch lpips")
    if any(gate.metric == "ssim" for gate in gates):
        simulated = [trial.simulated for trial in plan.trials]
        for scenario in {(one.data, one.image_size): one for one in simulated}.values():
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
    write_bytes(store.directory / "verdict.json", to_json(verdicts))
    return Audited(verdicts=tuple(verdicts), offenses=tuple(offenses(verdicts, gates)), records=records)
