"""The report's two tables as values: one row per trial, and means over seeds; all exports and the page read these."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from undelta.evaluation.measures import METRICS, Metric
from undelta.trials.record import Record

MEASURES = tuple(metric for metric in METRICS.values() if metric.key != "mse")
AVERAGED = tuple(metric for metric in MEASURES if metric.key != "iterations")
"""Measures that are worth a mean."""


def value_of(record: Record, key: str) -> float | None:
    """What the record says for a column."""
    if key == "floor":
        return record.floor.mismatch if record.floor else None
    value: float | None = getattr(record, key)
    return value


@dataclass(frozen=True, kw_only=True)
class Mean:
    """One measure over the seeds of a setting."""

    mean: float | None
    spread: float | None
    """Sample standard deviation; None below two seeds."""

    def show(self, measure: Metric) -> str:
        """Mean and spread; one seed has no spread."""
        if self.mean is None or self.spread is None:
            return measure.show(self.mean)
        spread = f"{self.spread:.2g}" if measure.form.endswith("g") else measure.show(self.spread)
        return f"{measure.show(self.mean)} ± {spread}"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One scenario, defense and attack over its seeds."""

    name: str
    defense: str
    attack: str
    seeds: tuple[int, ...]
    """Of the scored trials."""
    trials: int
    means: Mapping[str, Mean]

    @property
    def scored(self) -> str:
        """Which seeds have numbers, in words."""
        seeds = ", ".join(map(str, self.seeds)) or "none"
        return seeds if len(self.seeds) == self.trials else f"{seeds} ({len(self.seeds)} of {self.trials} scored)"

    @property
    def cells(self) -> list[str]:
        """The means as tables show them."""
        return [self.means[measure.key].show(measure) for measure in AVERAGED]


def settings(records: Sequence[Record], labels: Mapping[str, str]) -> list[Setting]:
    """Means over seeds, of the trials that were scored."""
    return [
        Setting(
            name=name,
            defense=defense,
            attack=attack,
            seeds=tuple(record.seed for record in trials if record.scored),
            trials=len(trials),
            means={
                measure.key: mean_of(value_of(record, measure.key) for record in trials if record.scored)
                for measure in MEASURES
            },
        )
        for (name, defense, attack), trials in grouped(
            records, lambda record: (*record.group, labels[record.key])
        ).items()
    ]


def mean_of(values: Iterable[float | None]) -> Mean:
    """Mean and spread; one missing value leaves nothing to average honestly."""
    known = list(values)
    numbers = [value for value in known if value is not None]
    if not numbers or len(numbers) < len(known):
        return Mean(mean=None, spread=None)
    return Mean(mean=statistics.fmean(numbers), spread=statistics.stdev(numbers) if len(numbers) > 1 else None)


def grouped(records: Iterable[Record], key: Any) -> dict[Any, list[Record]]:
    """Entries by key, in the order in which keys first occur."""
    groups: dict[Any, list[Record]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return groups


def attack_labels(records: Sequence[Record]) -> dict[str, str]:
    """A name for each record's attack, by the record's key; settings are added where one attack has several."""
    labels = {}
    for same in grouped(records, lambda record: record.attack).values():
        keys = sorted({key for record in same for key in record.arguments})
        differing = [key for key in keys if len({json.dumps(record.arguments.get(key)) for record in same}) > 1]
        for record in same:
            words = [f"{key}={_plain(record.arguments[key])}" for key in differing if key in record.arguments]
            labels[record.key] = f"{record.attack} ({', '.join(words)})" if words else record.attack
    return {record.key: labels[record.key] for record in records}


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, with dotted keys."""
    values: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            values |= flat(value, f"{prefix}{key}.")
        else:
            values[prefix + key] = value
    return values


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
