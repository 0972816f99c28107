"""Record: one trial, what was asked and what came of it. The only result type, written and read here alone.

``record.schema.json`` beside this file describes the JSON, for other tools.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import math
import platform
import resource
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from undelta.attacker.reconstruction import Reconstruction
from undelta.attacker.resolution import UNKNOWN, Fit
from undelta.client.scenario import Scenario
from undelta.errors import DataError
from undelta.evaluation.baselines import Baseline
from undelta.evaluation.floor import Floor
from undelta.evaluation.score import ImageScore, Score
from undelta.observation import Observation
from undelta.observation.file import digest_of
from undelta.schema import parse, show

SCHEMA = 3
UNDEFENDED = "none"
REFERENCE = "pure noise (no information)"
"""No defense, but what to compare defenses with."""
UNFINISHED = "not finished"
FAILED = "failed"
INTERRUPTED = "interrupted"
NOT_APPLICABLE = "not applicable"
COMPLETED = "completed"
ENDED = (COMPLETED, "diverged")
"""Statuses of trials that ran to their end."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """A point of the attack's own history."""

    iteration: int
    seconds: float | None = None
    mismatch: float | None = None
    loss: float | None = None


@dataclass(frozen=True, kw_only=True)
class Quality:
    """A saved iterate, measured after the attack: means over images."""

    iteration: int
    seconds: float | None = None
    psnr: float | None = None
    ssim: float | None = None


@dataclass(frozen=True, kw_only=True)
class Record:
    """One trial; None is what was not measured, or was not a number."""

    schema: int = SCHEMA
    key: str
    name: str
    """The scenario's, for people."""
    defense: str = UNDEFENDED
    scenario: dict[str, Any]
    attack: str
    arguments: dict[str, Any] = field(default_factory=dict)
    seed: int
    status: str = UNFINISHED
    error: str | None = None
    """Why there is no result."""
    observation: str | None = None
    """The digest of the attacked update."""
    observation_file: str | None = None
    """Where it was, if it was recorded."""
    psnr: float | None = None
    ssim: float | None = None
    lpips: float | None = None
    mse: float | None = None
    fraction_recovered: float | None = None
    epsilon: float | None = None
    """What a differentially private client was promised, by the round that was attacked."""
    delta: float | None = None
    mismatch: float | None = None
    terms: dict[str, float | None] = field(default_factory=dict)
    """The attack's loss at its end, term by term."""
    floor: Floor | None = None
    """The same at the private images."""
    resolution: float | None = None
    """What a finer replay changes the update of the found images by; a smaller mismatch means nothing."""
    stretch: float | None = None
    """How much longer the declared training makes the path of the found images than the update that was seen."""
    baselines: dict[str, Baseline] = field(default_factory=dict)
    """What guesses without the update are worth."""
    objective: dict[str, Any] | None = None
    learned: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    iterations: int | None = None
    seconds: float | None = None
    peak_memory_mb: float | None = None
    threads: int | None = None
    date: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    history: tuple[Step, ...] = field(default=(), repr=False)
    curve: tuple[Quality, ...] = field(default=(), repr=False)
    images: tuple[ImageScore, ...] = field(default=(), repr=False)
    """Each private image's metrics."""
    layer_weights: dict[str, float] | None = field(default=None, repr=False)

    @property
    def group(self) -> tuple[str, str]:
        """Trials that attack the same update, but for the seed."""
        return self.name, self.defense

    @property
    def measured(self) -> bool:
        """Whether there is a result; an interrupted attack has one so far."""
        return self.status in ENDED or (self.status == INTERRUPTED and bool(self.images or self.mismatch is not None))

    @property
    def scored(self) -> bool:
        return self.psnr is not None

    @property
    def gain(self) -> float | None:
        """Decibels above the best guess without the update."""
        guesses = [one.psnr for one in self.baselines.values() if one.psnr is not None]
        return None if self.psnr is None or not guesses else self.psnr - max(guesses)

    def dated(self) -> Record:
        """The same, made now and here."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        return replace(self, versions=versions(), threads=torch.get_num_threads(), date=now)


def with_result(record: Record, reconstruction: Reconstruction, observation: Observation, fit: Fit = UNKNOWN) -> Record:
    """The record with what an attack left; not scored yet."""
    weights = reconstruction.layer_weights if reconstruction.status == "completed" else {}
    return replace(
        record.dated(),
        status=reconstruction.status,
        observation=digest_of(observation),
        mismatch=finite(reconstruction.mismatch),
        terms={name: finite(value) for name, value in reconstruction.terms.items()},
        resolution=fit.resolution,
        stretch=fit.stretch,
        objective=reconstruction.objective,
        learned=dict(reconstruction.learned),
        notes=reconstruction.notes,
        iterations=reconstruction.iterations,
        seconds=reconstruction.seconds,
        peak_memory_mb=peak_memory_mb(),
        history=tuple(
            Step(**{key: finite(value) for key, value in moment._asdict().items()}) for moment in reconstruction.history
        ),
        layer_weights=dict(weights) or None,
    )


def with_score(record: Record, score: Score) -> Record:
    """The record with its metrics filled in."""
    means = {key: getattr(score, key) for key in ("psnr", "ssim", "lpips", "mse", "fraction_recovered")}
    return replace(record, floor=score.floor, images=score.images, baselines=score.baselines, **means)


def finite(value: Any) -> Any:
    """JSON knows no NaN; a diverged run has some, which are written as null."""
    return value if math.isfinite(value) else None


def describe_scenario(scenario: Scenario) -> dict[str, Any]:
    """A scenario as JSON has it."""
    return _plain(asdict(scenario))


def of_all_rounds(scenario: dict[str, Any], observation: Observation) -> dict[str, Any]:
    """What a truth says of its scenario; it may be that of one round of several, which all count."""
    return {**scenario, "observed_rounds": len(observation.rounds)} if observation.further and scenario else scenario


def describe_observation(observation: Observation) -> dict[str, Any]:
    """What an observation alone says of its scenario; the source of the data and the round are unknown."""
    said: dict[str, Any] = {
        "data": None,
        "image_size": observation.image.shape[-1],
        "model": observation.architecture.name,
        "model_arguments": dict(observation.architecture.arguments),
        "num_samples": observation.num_samples,
        **asdict(observation.training),
        **dict.fromkeys(observation.unknown),
        "rounds": None,
        "observed_rounds": len(observation.rounds),
        "grant_labels": observation.labels is not None,
    }
    return _plain(said)


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """As JSON has it: lists, no tuples."""
    plain: dict[str, Any] = json.loads(json.dumps(values))
    return plain


def summary(scenario: Mapping[str, Any]) -> str:
    """A name for a scenario that has none.

    Examples:
        >>> summary({"data": "photos", "model": "cnn", "num_samples": 8, "epochs": 10, "batches": 4})
        '8 images of photos, cnn, 10 epochs of 4 batches'
    """
    count, data, model, epochs, batches = (
        scenario.get(key) for key in ("num_samples", "data", "model", "epochs", "batches")
    )
    words = [f"{count} image{'s' * (count != 1)}" + (f" of {Path(str(data)).name}" if data else "")] if count else []
    words += [str(model)] if model else []
    if epochs is not None:
        of = f" of {batches} batches" if batches not in (None, 1) else ""
        words.append(f"{epochs} epoch{'s' * (epochs != 1)}{of}")
    return ", ".join(words) or "run"


def from_json(values: object, where: str) -> Record:
    """A record from JSON; every field is checked."""
    found = values.get("schema") if isinstance(values, dict) else None
    if found != SCHEMA:
        raise DataError(
            f"{where}: expected a record of schema {SCHEMA}, got {show(found)}; "
            "if another version of undelta wrote it, choose another --out"
        )
    record = parse(Record, values, where=where, error=DataError)
    check_scenario(record.scenario, where)
    return record


@dataclass(frozen=True, kw_only=True)
class _Said:
    """What a scenario says in names, tables and commands; a truth file or a record may come from elsewhere."""

    data: str | None = None
    model: str | None = None
    seed: int | None = None
    num_samples: int | None = None
    epochs: int | None = None
    batches: int | None = None
    observed_rounds: int | None = None


def check_scenario(scenario: Mapping[str, Any], where: str) -> None:
    """Refuse a scenario whose words and numbers are something else."""
    known = {field.name for field in fields(_Said)}
    parse(_Said, {key: scenario[key] for key in scenario if key in known}, where=f"{where}: scenario", error=DataError)


def versions() -> dict[str, str]:
    """What the numbers depend on."""
    packages = {name: _version(name) for name in ("torch", "numpy", "scipy", "scikit-image")}
    return {"undelta": _version("undelta"), "python": platform.python_version(), **packages}


_version = functools.cache(version)  # each asks the disk


def reset_peak_memory() -> None:
    """Let the peak begin anew, where the system can (Linux); elsewhere it is that of the whole process."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory_mb() -> float:
    """The largest resident memory of this process since the last reset."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 2**10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
