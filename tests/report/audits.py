"""A small real audit, as `undelta audit` leaves it behind: 24 trials, of which some failed or were not applicable."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from undelta.files import to_json
from undelta.studies.audit import judge_job
from undelta.trials.directory import RunDirectory
from undelta.trials.leases import Leases
from undelta.trials.plan import load_plan
from undelta.trials.worker import attempt

TOML = """
name = "Faces of a small clinic"
seeds = [0, 1]

[scenario]
data = "faces"
image_size = 12
num_samples = 3
model = "cnn"
model_arguments = { width = 2, hidden = 4 }
batches = 1
learning_rate = 0.05

[vary]
epochs = [1, 2]

[[attacks]]
attack = "awa"
steps = 25

[[attacks]]
attack = "ig"
steps = 15

[[attacks]]
attack = "analytic"

[[defenses]]
name = "smaller steps"
learning_rate = 0.001
"""
TRIALS = 24


def run_audit(directory: Path, toml: str) -> Path:
    """All trials of a configuration, one after the other in this process."""
    directory.mkdir()
    configuration = directory / "audit.toml"
    configuration.write_text(toml)
    plan, store, leases = load_plan(configuration), RunDirectory(directory), Leases(worker="test")
    store.prepare(plan.text, plan.trials, leases, title=plan.name)
    for trial in plan.trials:
        lease = leases.acquire(store.folder(trial.key))
        assert lease is not None
        with lease:
            attempt(store, trial, lease)
    judge_job(plan, store)
    return directory


@dataclass(frozen=True, kw_only=True)
class AuditCopy:
    """An audit's directory that a test may change."""

    path: Path

    def records(self, **fields: Any) -> list[Path]:
        """The records with these fields, in the order of their keys."""
        found = {path: json.loads(path.read_text()) for path in sorted(self.path.glob("trials/*/record.json"))}
        return [path for path, values in found.items() if all(values[key] == fields[key] for key in fields)]

    def change(self, path: Path, **fields: Any) -> None:
        """Change fields of a JSON file."""
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    def rename(self, name: str) -> None:
        """Call every scenario so, as a configuration could."""
        for path in self.path.glob("trials/*/*.json"):
            self.change(path, name=name)
        (self.path / "verdict.json").unlink()

    def fail(self, path: Path, error: str) -> None:
        """Make a finished trial one that failed, as the audit itself would record it."""
        trial = RunDirectory(self.path).trial(path.parent.name)
        path.write_bytes(to_json(trial.unmeasured("failed", error)))
        (path.parent / "pictures.safetensors").unlink()

    def forget(self, path: Path) -> None:
        """Make a finished trial one that nobody has finished."""
        path.unlink()
        (path.parent / "pictures.safetensors").unlink()
