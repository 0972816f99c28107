"""``tuning.json``: what a tuning found. Written by `studies.tuning`, which needs Optuna; read without it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from undelta.schema import read_json

SCHEMA: Literal[1] = 1
TUNING = "tuning.json"


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One trial; a pruned one has no value, but a last report."""

    number: int
    """Its place in line, from 0."""
    state: str = "completed"
    value: float | None
    last: float | None = None
    parameters: dict[str, float]
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class TuningFile:
    """The whole file."""

    schema: Literal[1] = SCHEMA
    objective: str = "mismatch"
    direction: Literal["minimize", "maximize"] = "minimize"
    study: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    best: dict[str, Any] = field(default_factory=dict)
    importance: dict[str, float] = field(default_factory=dict)
    """The share of each parameter; empty where there are too few trials to tell."""
    trials: tuple[Evaluation, ...]


def read_tuning(directory: Path) -> TuningFile | None:
    """The tuning in a directory; None if there is none."""
    path = directory / TUNING
    return read_json(TuningFile, path) if path.is_file() else None
