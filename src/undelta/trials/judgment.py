"""``verdict.json``: all verdicts of a directory, in one sentence and one by one, and what its gates say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from undelta.files import to_json, write_bytes
from undelta.schema import read_json
from undelta.trials.bound_file import NONE, BoundFile
from undelta.trials.diagnosis import DEFAULT, Thresholds
from undelta.trials.directory import VERDICT, RunDirectory
from undelta.trials.gates import Gate, Gated, apply_gates
from undelta.trials.record import REFERENCE, Record
from undelta.trials.verdict import Asked, Verdict, headline, judge

SCHEMA: Literal[2] = 2


@dataclass(frozen=True, kw_only=True)
class Judgment:
    """The whole file."""

    schema: Literal[2] = SCHEMA
    headline: str
    verdicts: tuple[Verdict, ...]
    gate: Gated | None = None
    auditor: str | None = None
    """Who ran it, if they say so."""


def pronounce(
    trials: Sequence[Asked],
    records: Mapping[str, Record],
    *,
    bounds: Mapping[str, BoundFile] = NONE,
    thresholds: Thresholds = DEFAULT,
    gates: Sequence[Gate] = (),
    closed: bool = False,
    auditor: str | None = None,
) -> Judgment:
    """Judge all that is there. A reference, which is no defense, has no verdict."""
    asked = [trial for trial in trials if trial.defense != REFERENCE]
    verdicts = judge(asked, records, thresholds, bounds)
    return Judgment(
        headline=headline(verdicts),
        verdicts=tuple(verdicts),
        gate=apply_gates(verdicts, gates, closed=closed),
        auditor=auditor,
    )


def judge_records(
    records: Sequence[Record], thresholds: Thresholds = DEFAULT, bounds: Mapping[str, BoundFile] = NONE
) -> Judgment:
    """Judge results as they are, whoever asked for them."""
    return pronounce(records, {record.key: record for record in records}, bounds=bounds, thresholds=thresholds)


def judge_directory(store: RunDirectory) -> None:
    """Judge a directory of single attacks, and write it there."""
    write_bytes(store.directory / VERDICT, to_json(judge_records(store.results())))


def read_judgment(directory: Path) -> Judgment | None:
    """What was judged; None if nothing was."""
    path = directory / VERDICT
    return read_json(Judgment, path) if path.is_file() else None
