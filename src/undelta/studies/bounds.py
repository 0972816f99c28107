"""The bounds of an audit's updates, as tasks of its workers; where there can be none, the reason.

Each is computed once per scenario, defense and seed, whatever attacks it, and kept as `undelta.trials.bound_file` says.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from undelta.errors import ConfigError, NoRoom, UndeltaError
from undelta.files import FORMAT, make_folder, sweep, to_json, write_bytes, write_tensors
from undelta.studies.bound import to_file
from undelta.studies.bound_case import Determined, Question, determine
from undelta.studies.screen import Screen
from undelta.trials.bound_file import BOUND, BOUNDS, BoundFile, bound_key, read_bound
from undelta.trials.directory import PICTURES
from undelta.trials.leases import Lease, LeaseLost
from undelta.trials.outcomes import to_bytes
from undelta.trials.pool import Workers
from undelta.trials.tasks import FolderTasks
from undelta.trials.trial import Recorded, Trial

PRODUCTS = "products.safetensors"
QUESTION = Question(products=100)
"""What an audit asks of each update; `undelta bound` asks more."""


@dataclass(kw_only=True)
class Bounds(FolderTasks):
    """Updates to be bounded."""

    place = BOUNDS
    trials: Mapping[str, Trial]
    """One that attacks each update, by the update's key."""

    def status(self, key: str) -> str | None:
        return "completed" if (self.folder(key) / BOUND).exists() else None

    def attempt(self, key: str, lease: Lease) -> None:
        """Bound an update; whatever prevents it is written down, and the audit is none the worse for it."""
        trial, folder = self.trials[key], self.folder(key)
        try:
            if isinstance(trial.scenario, Recorded):
                raise ConfigError("a recorded update does not tell its client's mini-batches")
            path = folder / PRODUCTS
            found = determine(trial.scenario, trial.seed, QUESTION, path=path, count=lambda _: lease.check())
            lease.check()
            about = {"format": FORMAT, "kind": "pictures"}
            write_tensors(folder / PICTURES, _pictures(found), about, private=True)
            self._write(key, to_file(trial.scenario, [found]), lease)
        except (LeaseLost, NoRoom):
            raise
        except UndeltaError as problem:
            self.fail(key, str(problem), lease)
        except Exception as problem:
            lease.check()
            write_bytes(folder / "error.txt", "".join(traceback.format_exception(problem)).encode())
            self.fail(key, f"{type(problem).__name__}: {problem}", lease)

    def fail(self, key: str, reason: str, lease: Lease) -> None:
        about = self.trials[key].unmeasured().scenario
        self._write(key, BoundFile(scenario=about, error=" ".join(reason.split())[:1000]), lease)

    def _write(self, key: str, content: BoundFile, lease: Lease) -> None:
        lease.check()
        write_bytes(self.folder(key) / BOUND, to_json(content))
        self.tidy(key)

    def tidy(self, key: str) -> None:
        (self.folder(key) / PRODUCTS).unlink(missing_ok=True)
        for name in (PRODUCTS, PICTURES, BOUND):
            sweep(self.folder(key), name, seconds=0.0)


def _pictures(found: Determined) -> dict[str, Tensor]:
    """The linear estimate as if an attack had made it, with nothing on the way there."""
    made = to_bytes(found.pictures[0])
    return {
        "originals": to_bytes(found.images),
        "reconstruction": made,
        "iterates": made.new_empty(0, *made.shape),
        "iterations": torch.empty(0, dtype=torch.int64),
    }


def bound_all(
    directory: Path,
    trials: Sequence[Trial],
    workers: Workers,
    *,
    say: Callable[[str], None],
    screen: Screen,
    retry: bool = False,
) -> None:
    """Bound every update that trials attack; what is there already stays, unless it is a failure to be tried again."""
    wanted: dict[str, Trial] = {}
    for trial in trials:
        wanted.setdefault(bound_key(trial.unmeasured()), trial)
    tasks = Bounds(directory=str(directory.resolve()), keys=tuple(wanted), trials=wanted)
    for key in wanted:
        make_folder(tasks.folder(key))
        there = read_bound(tasks.folder(key)) if retry else None
        if there and there.error:
            (tasks.folder(key) / BOUND).unlink(missing_ok=True)
    if left := tasks.unfinished():
        say(f"Bounding: {len(left)} of {len(wanted)} updates.")
        with screen.trials(wanted, noun="bound") as show:
            workers.work_off(tasks, directory, show=show)
