"""`undelta demo`: an audit of two trials, in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from undelta.attacker.attack import Watch
from undelta.errors import ConfigError, DataError
from undelta.files import make_folder, write_bytes
from undelta.studies.audit import judge_job
from undelta.studies.single import SHEET
from undelta.trials.directory import CONFIGURATION, RECORD, RunDirectory
from undelta.trials.leases import Leases
from undelta.trials.pictures import write_sheet
from undelta.trials.plan import load_plan
from undelta.trials.record import Record
from undelta.trials.worker import attempt

DEMO_TOML = """# What `undelta demo` runs; `undelta audit` takes files like this one.
name = "Eight photographs, one update"
seeds = [{seed}]

[scenario]
data = "photos"
image_size = 32
num_samples = 8
model = "cnn"
epochs = 10
batches = 4
learning_rate = 0.004

[[attacks]]
attack = "awa"
steps = 120

[[attacks]]
attack = "strongest"
rollout_steps = 100
"""


def demo_job(out: Path, *, seed: int = 0, watch: Callable[[str], Watch] | None = None) -> list[Record]:
    """Eight private photographs, one update, two attacks side by side: an audit of two trials, in this process.

    An interrupted demo resumes; a finished one runs again.
    """
    RunDirectory(out).check_kind("demo")
    make_folder(out)
    configuration = out / CONFIGURATION
    write_bytes(configuration, DEMO_TOML.format(seed=seed).encode())
    plan, store, leases = load_plan(configuration), RunDirectory(out), Leases(worker="demo")
    if not all(leases.is_free(store.folder(key)) for key in plan.keys if store.folder(key).exists()):
        raise ConfigError(f"another demo is running in {out}; choose another --out")
    for key in plan.keys:
        (store.folder(key) / RECORD).unlink(missing_ok=True)  # a finished demo runs again
    store.prepare(plan.text, plan.trials, leases, title=plan.name, kind="demo")
    records: list[Record] = []
    rows: list[tuple[str, Tensor]] = []
    for trial in plan.trials:
        lease = leases.acquire(store.folder(trial.key))
        if lease is None:
            raise ConfigError(f"another demo is running in {out}; choose another --out")
        with lease:
            outcome = attempt(store, trial, lease, watch=watch(trial.attack) if watch else None)
        if outcome is None:
            record = store.record(trial.key)
            raise DataError(f"the demo's attack {trial.attack} failed: {record.error if record else 'no result'}")
        assert outcome.private is not None  # noqa: S101
        if not rows:
            rows.append(("private originals, which the attacks never see", outcome.private.images))
        caption = f"{trial.attack}: reconstructed from the shared update, PSNR {outcome.record.psnr:.1f} dB"
        rows.append((caption, outcome.images))
        records.append(outcome.record)
        if outcome.reconstruction.status == "interrupted":
            break
    write_sheet(out / SHEET, rows)
    judge_job(plan, store)
    return records
