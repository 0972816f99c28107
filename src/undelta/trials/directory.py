"""A run directory: what is to be done, what is done, and the files in which each trial's results lie.

    DIR/run.json                            its title, and the keys of its trials in order
    DIR/audit.toml                          an audit's configuration, verbatim
    DIR/verdict.json                        what it means, once all is done; gone while anything changes
    DIR/trials/<key>/trial.json             what to run
    DIR/trials/<key>/lease.json             while somebody works on it (see leases.py)
    DIR/trials/<key>/checkpoint.pt          how far the attack is
    DIR/trials/<key>/pictures.safetensors   originals, reconstruction, iterates
    DIR/trials/<key>/reconstruction.safetensors   what an attack on a recorded update found, for scoring
    DIR/trials/<key>/record.json            the result; a trial is finished if this file is there, unless it was
                                            interrupted and shows the result so far
    DIR/retired/<key>/                      trials that the configuration no longer asks for

Every file appears whole or not at all. Pictures are written before the record, so a finished trial has both.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from undelta.errors import ConfigError, DataError
from undelta.files import FORMAT, load_json, make_folder, sweep, to_json, write_bytes, write_tensors
from undelta.schema import read_json, show
from undelta.trials.diagnosis import DEFAULT, Thresholds
from undelta.trials.leases import Leases
from undelta.trials.record import FAILED, INTERRUPTED, Record, from_json
from undelta.trials.trial import Trial

CHECKPOINT = "checkpoint.pt"
RECORD = "record.json"
PICTURES = "pictures.safetensors"
RECONSTRUCTION = "reconstruction.safetensors"
CONFIGURATION = "audit.toml"
RUN = "run.json"
PLAN = "plan.json"  # a tuning's
TRIALS = "trials"
VERDICT = "verdict.json"
DEFEND = "defend.json"  # a comparison of defenses

_KEY = re.compile(r"[0-9a-f]{16}")

Check = Callable[[], None]
"""Raises if a trial is no longer ours."""


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What ``run.json`` says."""

    title: str
    keys: tuple[str, ...]
    kind: str = ""
    """The command that made it."""
    thresholds: Thresholds = DEFAULT

    def __post_init__(self) -> None:
        wrong = [key for key in self.keys if not _KEY.fullmatch(key)]
        if wrong or len(set(self.keys)) < len(self.keys):
            raise DataError(f"expected keys of 16 hex digits, each once, got {show(wrong or list(self.keys))}")


class RunDirectory:
    """The directory, read and written one trial at a time."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._statuses: dict[str, str] = {}

    def folder(self, key: str) -> Path:
        return self.directory / TRIALS / key

    # Before the work

    def check_kind(self, kind: str) -> None:
        """Refuse a directory that another command fills; its results would be mixed with ours, or set aside."""
        there = self.contents().kind if (self.directory / RUN).exists() else ""
        if not there and (self.directory / PLAN).exists():
            there = "tune"
        if there not in ("", kind):
            raise ConfigError(f"{self.directory} holds what `undelta {there}` wrote; choose another --out")

    def prepare(
        self,
        text: str | None,
        trials: Iterable[Trial],
        leases: Leases,
        *,
        title: str = "",
        kind: str = "audit",
        thresholds: Thresholds = DEFAULT,
    ) -> None:
        """Make the directory hold exactly these trials; finished ones keep their results.

        Trials that are no longer asked for are set aside, not deleted, and come back when they are asked for again.
        """
        wanted: dict[str, Trial] = {}
        for trial in trials:
            wanted.setdefault(trial.key, trial)  # of equal ones, the first gives the names
        self.check_kind(kind)
        for key in wanted:
            self.record(key)  # one that is not readable is refused before anything is changed
        make_folder(self.directory / TRIALS)
        self._retire(wanted.keys(), leases)
        self.unjudge()
        if text is not None:
            write_bytes(self.directory / CONFIGURATION, text.encode())
        for key, trial in wanted.items():
            folder, retired = self.folder(key), self.directory / "retired" / key
            if not folder.exists() and retired.exists():
                retired.rename(folder)
            self._put(trial)
            record = self.record(key)
            if text is not None and record and record.group != (trial.name, trial.defense):  # the results are the same
                write_bytes(folder / RECORD, to_json(replace(record, name=trial.name, defense=trial.defense)))
        contents = Contents(title=title, keys=tuple(wanted), kind=kind, thresholds=thresholds)
        self._list(contents)  # last: all that it names is there

    def _list(self, contents: Contents) -> None:
        title = contents.title or self.directory.resolve().name
        write_bytes(self.directory / RUN, to_json(replace(contents, title=title)))

    def unjudge(self) -> None:
        """Take back what was said of results that are about to change: whoever reads it would take it for theirs."""
        for name in (VERDICT, DEFEND):
            (self.directory / name).unlink(missing_ok=True)

    def _put(self, trial: Trial) -> None:
        folder, content = self.folder(trial.key), to_json(trial)
        make_folder(folder)
        if not (folder / "trial.json").exists() or (folder / "trial.json").read_bytes() != content:
            write_bytes(folder / "trial.json", content)

    def add(self, trial: Trial) -> None:
        """Put a trial behind those that are there; whoever calls this holds a lease on the directory."""
        there = self.contents() if (self.directory / RUN).exists() else Contents(title="", keys=())
        self._put(trial)
        if trial.key not in there.keys:
            self._list(replace(there, keys=(*there.keys, trial.key), kind=there.kind or "attack"))

    def remove(self, key: str) -> None:
        """Take a trial back that was refused before any work, and the directory if nothing else is in it."""
        there = self.contents()
        keys = tuple(one for one in there.keys if one != key)
        if keys:
            self._list(replace(there, keys=keys))
        else:
            (self.directory / RUN).unlink(missing_ok=True)
        shutil.rmtree(self.folder(key), ignore_errors=True)
        with contextlib.suppress(OSError):  # not empty: somebody else's
            (self.directory / TRIALS).rmdir()

    def _retire(self, wanted: Iterable[str], leases: Leases) -> None:
        present = {path.name for path in (self.directory / TRIALS).iterdir() if _KEY.fullmatch(path.name)}
        surplus = sorted(present - set(wanted))
        for key in surplus:
            if not leases.is_free(self.folder(key)):
                raise ConfigError(
                    f"{self.directory} is being worked on with another configuration (trial {key}); "
                    "wait for it, or choose another --out"
                )
        for key in surplus:
            make_folder(self.directory / "retired")
            with contextlib.suppress(FileNotFoundError):  # somebody else who starts now has set it aside
                self.folder(key).rename(self.directory / "retired" / key)

    def forget_failed(self, keys: Iterable[str], leases: Leases) -> None:
        """Make failed trials unfinished again."""
        for key in keys:
            if self.status(key) != FAILED:
                continue
            lease = leases.acquire(self.folder(key))
            if lease is None:
                continue  # somebody is at it already
            record = self.record(key)  # again, now that nobody else can change it
            if record and record.status == FAILED:
                (self.folder(key) / RECORD).unlink(missing_ok=True)
                (self.folder(key) / "error.txt").unlink(missing_ok=True)
            self._statuses.pop(key, None)
            lease.release()

    # The work

    def trial(self, key: str) -> Trial:
        path = self.folder(key) / "trial.json"
        trial = read_json(Trial, path)
        if trial.key != key:
            raise DataError(
                f"{path}: expected trial {key}, as its folder is called, got another; start the audit again"
            )
        return trial

    def finish(self, record: Record, pictures: Mapping[str, Tensor] | None, check: Check) -> None:
        """Write a trial's results, the record last; an interrupted one keeps its checkpoint."""
        folder = self.folder(record.key)
        check()
        if pictures is not None:
            write_tensors(folder / PICTURES, pictures, {"format": FORMAT, "kind": "pictures"}, private=True)
            check()
        write_bytes(folder / RECORD, to_json(record))
        if record.status != INTERRUPTED:
            self.tidy(record.key)

    def tidy(self, key: str) -> None:
        """Remove what a finished trial no longer needs: its checkpoint, and files that a killed worker left half."""
        folder = self.folder(key)
        (folder / CHECKPOINT).unlink(missing_ok=True)
        for name in (CHECKPOINT, PICTURES, RECORD):
            sweep(folder, name, seconds=0.0)

    # After the work

    def contents(self) -> Contents:
        return read_json(Contents, self.directory / RUN)

    def records(self) -> list[Record]:
        """The results in order, as far as there are some."""
        found = [self.record(key) for key in self.contents().keys]
        return [record for record in found if record]

    def results(self) -> list[Record]:
        """The same, with the trials that have none yet."""
        found = [self.record(key) or self.unmeasured(key) for key in self.contents().keys]
        return [record for record in found if record]

    def record(self, key: str) -> Record | None:
        path = self.folder(key) / RECORD
        try:
            values = load_json(path)
        except DataError as problem:
            if isinstance(problem.__cause__, FileNotFoundError):  # by now a worker may have written it: next time
                return None
            raise
        record = from_json(values, str(path))
        if record.key != key:
            raise DataError(f"{path}: expected the record of trial {key}, as its folder is called, got another's")
        return record

    def unmeasured(self, key: str) -> Record | None:
        """The record of a trial without a result; None if the directory is just being prepared."""
        return self.trial(key).unmeasured() if (self.folder(key) / "trial.json").exists() else None

    def pictures(self, key: str) -> Path | None:
        path = self.folder(key) / PICTURES
        return path if path.is_file() else None

    def status(self, key: str) -> str | None:
        """How a trial ended, or None; a finished one is read once."""
        if key not in self._statuses:
            record = self.record(key)
            if record is None or record.status == INTERRUPTED:
                return None
            self._statuses[key] = record.status
        return self._statuses[key]

    def unfinished(self, keys: Sequence[str]) -> list[str]:
        return [key for key in keys if self.status(key) is None]
