"""Reading a run directory into values; the first stage of a report.

Files may come from elsewhere, so every field is checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from undelta.errors import DataError
from undelta.trials.bound_file import BoundFile, read_bound, read_bounds
from undelta.trials.directory import CONFIGURATION, RUN, RunDirectory
from undelta.trials.judgment import Judgment, judge_records, read_judgment
from undelta.trials.record import Record
from undelta.trials.tradeoff import Tradeoff, read_tradeoff
from undelta.trials.tuning_file import TuningFile, read_tuning


@dataclass(frozen=True, kw_only=True)
class Audit:
    """All that a report is made of."""

    title: str
    directory: Path
    records: tuple[Record, ...]
    """In the order in which they were asked for."""
    pictures: Mapping[str, Path] = field(default_factory=dict)
    """Those of each trial that has some, by key."""
    configuration: str | None = None
    """The audit's TOML, verbatim; None for a single run."""
    judgment: Judgment
    tuning: TuningFile | None = None
    tradeoff: Tradeoff | None = None
    bound: BoundFile | None = None
    """What `undelta bound` left there."""
    bounds: Mapping[str, BoundFile] = field(default_factory=dict)
    """What the audit itself asked of its updates, by the keys of the trials that attack them."""


def read_audit(directory: Path) -> Audit:
    """What a command with ``--out DIR`` left behind, finished or not."""
    if not directory.is_dir():
        raise DataError(f"{directory}: no such directory; expected what `undelta audit --out` wrote")
    if not (directory / RUN).is_file():
        if (directory / "trials").is_dir():
            raise DataError(
                f"{directory}: no {RUN} beside trials/; start the audit again, elsewhere if another version began it"
            )
        raise DataError(f"{directory}: expected a run directory of undelta, found no file {RUN}")
    store, configuration = RunDirectory(directory), directory / CONFIGURATION
    contents = store.contents()
    if not contents.keys:
        raise DataError(f"{directory}: no trial in it yet; start the audit first")
    pictures = {key: store.pictures(key) for key in contents.keys}
    known = store.results()
    bounds, title = read_bounds(directory, known), contents.title
    if not configuration.is_file() and len(names := {record.name for record in known}) == 1:
        title = f"Attack on {names.pop()}"  # a directory of single attacks has no title of its own
    return Audit(
        title=title,
        directory=directory,
        records=tuple(known),
        pictures={key: path for key, path in pictures.items() if path},
        configuration=_text(configuration) if configuration.is_file() else None,
        judgment=read_judgment(directory) or judge_records(known, contents.thresholds, bounds),
        tuning=read_tuning(directory),
        tradeoff=read_tradeoff(directory),
        bound=read_bound(directory),
        bounds=bounds,
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise DataError(f"{path}: cannot be read ({problem})") from problem
