"""Reading an audit's directory, or that of one run, into values; the first stage of a report.

Files may come from elsewhere, so every field is checked; what the format allows to be null may be null.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from undelta.audit.record import read_results
from undelta.audit.trial import UNDEFENDED
from undelta.errors import DataError
from undelta.report.fields import Fields, read_json, read_text
from undelta.report.tradeoff import Tradeoff, read_tradeoff

METRICS = ("psnr", "ssim", "lpips", "mse", "fraction_recovered")
UNFINISHED = "not finished"


@dataclass(frozen=True, kw_only=True)
class Point:
    """One point of a curve; a value that was not finite is None."""

    iteration: int
    seconds: float | None
    value: float | None


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One trial: what was asked, and what came of it; None is what was not measured."""

    key: str
    name: str
    """Of its scenario."""
    defense: str
    scenario: dict[str, Any]
    attack: str
    arguments: dict[str, Any]
    seed: int
    status: str
    error: str | None = None
    metrics: dict[str, float | None] = field(default_factory=lambda: dict.fromkeys(METRICS))
    mismatch: float | None = None
    floor: float | None = None
    """The mismatch at the private images."""
    findings: tuple[str, ...] = ()
    """What the floor says of the attack, and the attack's own notes."""
    iterations: int | None = None
    seconds: float | None = None
    peak_memory_mb: float | None = None
    threads: int | None = None
    date: str | None = None
    observation: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    images: tuple[dict[str, float | None], ...] = ()
    """Metrics and label of each private image."""
    mismatches: tuple[Point, ...] = ()
    psnrs: tuple[Point, ...] = ()
    layer_weights: dict[str, float] | None = None
    pictures: Path | None = None

    @property
    def group(self) -> tuple[str, str]:
        """Trials that attack the same update, but for the seed."""
        return self.name, self.defense

    @property
    def scored(self) -> bool:
        """Whether there is something to compare."""
        return self.metrics["psnr"] is not None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What an audit says of one scenario, in words."""

    scenario: str
    defense: str
    level: str
    text: str


@dataclass(frozen=True, kw_only=True)
class TuningTrial:
    """One evaluation of a Bayesian optimization; None is one that has no value: it failed, or was ended early."""

    number: int
    value: float | None
    parameters: dict[str, Any]
    state: str = "completed"


@dataclass(frozen=True, kw_only=True)
class Audit:
    """All that a report is made of."""

    title: str
    directory: Path
    entries: tuple[Entry, ...]
    configuration: str | None = None
    """The audit's TOML, verbatim; None for a single run."""
    verdicts: tuple[Verdict, ...] = ()
    tuning: tuple[TuningTrial, ...] = ()
    maximized: bool = False
    """Whether larger values of the tuning's objective are better."""
    importance: dict[str, float] = field(default_factory=dict)
    """The share of each tuned parameter."""
    tradeoff: Tradeoff | None = None
    sheet: Path | None = None
    """A run's contact sheet, where there are no pictures of their own."""


def read_audit(directory: Path) -> Audit:
    """What `undelta audit --out DIR` left behind, finished or not; or a run of `undelta attack` or `demo`."""
    if not directory.is_dir():
        raise DataError(f"{directory}: no such directory; expected what `undelta audit --out` wrote")
    if (directory / "trials").is_dir():
        return _read_trials(directory)
    if (directory / "results.json").is_file():
        return _read_run(directory)
    raise DataError(
        f"{directory}: expected a folder trials/ (of `undelta audit`) or a file results.json (of `undelta attack` or "
        "`demo`), found neither"
    )


def _read_trials(directory: Path) -> Audit:
    folders = sorted(path for path in (directory / "trials").iterdir() if (path / "trial.json").is_file())
    if not folders:
        raise DataError(f"{directory / 'trials'}: no trial in it yet; start the audit first")
    configuration = directory / "audit.toml"
    text = read_text(configuration) if configuration.is_file() else None
    entries = [_read_trial(folder) for folder in folders]
    return Audit(
        title=_title(text) or directory.resolve().name,
        directory=directory,
        entries=tuple(_in_order(entries, text)),
        configuration=text,
        verdicts=tuple(_read_verdicts(directory / "verdict.json")),
        **_read_tuning(directory / "tuning.json"),
        tradeoff=read_tradeoff(directory / "defend.json"),
    )


def _read_run(directory: Path) -> Audit:
    path = directory / "results.json"
    sheet = directory / "reconstruction.png"
    entries = []
    for number, record in enumerate(read_results(directory)):
        scenario = record.get("scenario") or {}
        asked = {"name": _summary(scenario), "defense": UNDEFENDED}
        entries.append(_entry(str(number), Fields(record, path), Fields(asked, path), None))
    if not entries:
        raise DataError(f"{path}: it holds no record")
    return Audit(
        title=directory.resolve().name,
        directory=directory,
        entries=tuple(entries),
        **_read_tuning(directory / "tuning.json"),
        sheet=sheet if sheet.is_file() else None,
    )


def _summary(scenario: Any) -> str:
    """A name for a run's scenario, which has none."""
    if not isinstance(scenario, dict):
        return "run"
    words = [str(scenario[key]) for key in ("data", "model") if scenario.get(key)]
    letters = (("N", "num_samples"), ("E", "epochs"), ("B", "batches"))
    words += [f"{letter}={scenario[key]}" for letter, key in letters if scenario.get(key) is not None]
    return ", ".join(words) or "run"


def _title(text: str | None) -> str | None:
    try:
        name = tomllib.loads(text or "").get("name")
    except ValueError:  # the copy was edited; the records do not depend on it
        return None
    return name if isinstance(name, str) else None


def _in_order(entries: list[Entry], text: str | None) -> Iterator[Entry]:
    """Scenarios, defenses and attacks as the audit's TOML mentions them; what it does not mention comes by name."""

    def place(word: str) -> tuple[int, list[Any]]:
        found = (text or "").find(f'"{word}"')
        return (found if found >= 0 else math.inf, _natural(word))  # type: ignore[return-value]

    def order(entry: Entry) -> tuple[Any, ...]:
        defended = entry.defense != UNDEFENDED
        arguments = json.dumps(entry.arguments, sort_keys=True)
        return (place(entry.name), defended, place(entry.defense), place(entry.attack), arguments, entry.seed)

    yield from sorted(entries, key=order)


def _natural(word: str) -> list[Any]:
    """So that epochs=10 comes after epochs=4."""
    pieces: list[Any] = []
    digits = ""
    for character in word + "\0":
        if character.isdecimal():
            digits += character
            continue
        if digits:
            pieces.append((0, int(digits[:18]), ""))
            digits = ""
        pieces.append((1, 0, character))
    return pieces


def _read_trial(folder: Path) -> Entry:
    asked = Fields(read_json(folder / "trial.json"), folder / "trial.json")
    pictures = folder / "pictures.safetensors"
    if not (folder / "record.json").is_file():
        return _entry(folder.name, Fields({"status": UNFINISHED}, folder / "trial.json"), asked, None)
    record = Fields(read_json(folder / "record.json"), folder / "record.json")
    return _entry(folder.name, record, asked, pictures if pictures.is_file() else None)


def _entry(key: str, record: Fields, asked: Fields, pictures: Path | None) -> Entry:
    """A record, completed by what was asked where it is silent (a failed trial may be)."""
    known = {key: value for key, value in record.values.items() if value is not None}
    both = Fields({**asked.values, **known}, record.path)
    arguments = "attack_arguments" if "attack_arguments" in both.values else "arguments"
    return Entry(
        key=key,
        name=both.text("name"),
        defense=both.text("defense"),
        scenario=both.table("scenario"),
        attack=both.text("attack"),
        arguments=both.table(arguments),
        seed=both.whole("seed"),
        status=both.text("status"),
        error=record.optional_text("error"),
        metrics={name: record.number(name) for name in METRICS},
        mismatch=record.number("mismatch"),
        floor=Fields(record.table("floor"), record.path).number("mismatch"),
        findings=_findings(record),
        iterations=record.optional_whole("iterations"),
        seconds=record.number("seconds"),
        peak_memory_mb=record.number("peak_memory_mb"),
        threads=record.optional_whole("threads"),
        date=record.optional_text("date"),
        observation=record.optional_text("observation"),
        versions={key: str(value) for key, value in record.table("versions").items()},
        images=tuple(
            {key: image.number(key) for key in ("label", "psnr", "ssim", "lpips")} for image in record.tables("images")
        ),
        mismatches=_points(record, "history", "mismatch"),
        psnrs=_points(record, "curve", "psnr"),
        layer_weights=_weights(record),
        pictures=pictures,
    )


def _points(record: Fields, key: str, value: str) -> tuple[Point, ...]:
    return tuple(
        Point(iteration=point.whole("iteration"), seconds=point.number("seconds"), value=point.number(value))
        for point in record.tables(key)
    )


def _findings(record: Fields) -> tuple[str, ...]:
    words = Fields(record.table("floor"), record.path).optional_text("text")
    return (*([f"The attack {words}."] if words else []), *(f"Note: {note}." for note in record.texts("notes")))


def _weights(record: Fields) -> dict[str, float] | None:
    weights = Fields(record.table("layer_weights"), record.path)
    values = {name: weights.number(name) for name in weights.values}
    return {name: value for name, value in values.items() if value is not None} or None


def _read_verdicts(path: Path) -> Iterator[Verdict]:
    if not path.is_file():
        return
    values = read_json(path)
    for verdict in Fields({"verdicts": values}, path).tables("verdicts"):
        yield Verdict(**{key: verdict.text(key) for key in ("scenario", "defense", "level", "text")})


def _read_tuning(path: Path) -> dict[str, Any]:
    """The fields of an `Audit` that tell of a tuning."""
    if not path.is_file():
        return {}
    study = Fields(read_json(path), path)
    trials = tuple(
        TuningTrial(
            number=trial.whole("number"),
            value=trial.number("value"),
            parameters=trial.table("parameters"),
            state=trial.optional_text("state") or "completed",
        )
        for trial in study.tables("trials")
    )
    shares = Fields(study.table("importance"), path)
    importance = {name: share for name in shares.values if (share := shares.number(name)) is not None}
    return {"tuning": trials, "maximized": study.optional_text("direction") == "maximize", "importance": importance}
