"""What came of a reproduction's trials: each cell's records over its seeds, and how two cells compare."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from undelta.evaluation.measures import METRICS
from undelta.report.tables import Mean, mean_of, value_of
from undelta.studies.reproduce.reproductions import Cell
from undelta.trials.record import UNFINISHED, Record

RECOGNIZABLE = METRICS["ssim"].threshold or 0.0
"""SSIM at which an audit calls an image recognizable, by default."""


@dataclass(frozen=True, kw_only=True)
class Advantage:
    """How much better one method is than another by one metric, over the seeds that both have."""

    metric: str
    first: float
    """The mean of the one over these seeds."""
    second: float
    """The mean of the other."""
    mean: float
    """Of the differences, in the direction in which the metric gets better."""
    error: float
    """Standard error of the mean; 0 for a single seed, which has none."""
    seeds: int

    @property
    def sign(self) -> int:
        """1 better, -1 worse, 0 where the difference is within the spread over seeds."""
        return 0 if abs(self.mean) <= self.error or self.mean == 0 else int(math.copysign(1, self.mean))


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A cell with its records."""

    cell: Cell
    records: tuple[Record, ...]
    """One per seed."""

    @property
    def scored(self) -> tuple[Record, ...]:
        """Those with numbers."""
        return tuple(record for record in self.records if record.scored)

    def mean(self, metric: str) -> Mean:
        """Over seeds."""
        return mean_of(value_of(record, metric) for record in self.scored)

    def value(self, metric: str) -> float | None:
        """The mean alone."""
        return self.mean(metric).mean

    def show(self, metric: str) -> str:
        """A cell of the table: the number, or why there is none."""
        if self.cell.reason:
            return self.cell.reason
        statuses = [record.status for record in self.records if not record.scored]
        if not self.scored:
            return ", ".join(dict.fromkeys(statuses)) or UNFINISHED
        text = self.mean(metric).show(METRICS[metric])
        if statuses:
            text += f" ({len(self.scored)} of {len(self.records)} seeds)"
        diverged = sum(record.status == "diverged" for record in self.scored)
        return f"{text} ({diverged} diverged)" if diverged else text

    def recognizable(self) -> float | None:
        """The share of images, over all seeds, whose SSIM an audit calls recognizable."""
        values = [image.ssim for record in self.scored for image in record.images]
        known = [value for value in values if value is not None]
        return sum(value >= RECOGNIZABLE for value in known) / len(known) if known else None

    def seconds_per_iteration(self) -> float | None:
        """Over all seeds."""
        pairs = [(record.seconds, record.iterations) for record in self.scored]
        rates = [seconds / iterations for seconds, iterations in pairs if seconds is not None and iterations]
        return statistics.fmean(rates) if rates else None


@dataclass(frozen=True, kw_only=True)
class Results:
    """All cells of a reproduction."""

    cells: tuple[Measured, ...]

    @property
    def rows(self) -> list[str]:
        """The paper's cases, in order."""
        return list(dict.fromkeys(one.cell.row for one in self.cells))

    @property
    def methods(self) -> list[str]:
        """In order."""
        return list(dict.fromkeys(one.cell.method for one in self.cells))

    def at(self, row: str, method: str) -> Measured:
        """One cell."""
        return next(one for one in self.cells if (one.cell.row, one.cell.method) == (row, method))

    def here(self, row: str) -> str:
        """A row's name at this scale."""
        return next(one.cell.here for one in self.cells if one.cell.row == row)

    def printed(self, method: str) -> bool:
        """Whether the paper has figures of a method here."""
        return any(one.cell.figures for one in self.cells if one.cell.method == method)

    @property
    def wanted(self) -> int:
        """Trials in all."""
        return sum(len(one.records) for one in self.cells)

    @property
    def done(self) -> int:
        """Trials with numbers."""
        return sum(len(one.scored) for one in self.cells)


def gather(cells: Sequence[Cell], records: Iterable[Record]) -> Results:
    """Put the records of a directory where they belong; trials that are not there yet are unfinished."""
    by_key = {record.key: record for record in records}
    return Results(
        cells=tuple(
            Measured(
                cell=cell,
                records=tuple(by_key.get(trial.key) or trial.unmeasured() for trial in cell.trials),
            )
            for cell in cells
        )
    )


def advantage(first: Measured, second: Measured, metric: str) -> Advantage | None:
    """How much better the first is; seed by seed, since seeds draw other images. None without a common seed."""
    values = [{record.seed: value_of(record, metric) for record in one.scored} for one in (first, second)]
    pairs = [(values[0][seed], values[1][seed]) for seed in values[0] if seed in values[1]]
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    differences = [METRICS[metric].sign * (a - b) for a, b in known]
    if not known:
        return None
    error = statistics.stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else 0.0
    return Advantage(
        metric=metric,
        first=statistics.fmean(a for a, _ in known),
        second=statistics.fmean(b for _, b in known),
        mean=statistics.fmean(differences),
        error=error,
        seeds=len(known),
    )
