"""What came of a reproduction's trials: each cell's records over its seeds, and how two cells compare."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from scipy.stats import t as student

from undelta.evaluation.measures import METRICS
from undelta.report.tables import Mean, mean_of, value_of
from undelta.studies.reproduce.published import Figures
from undelta.trials.record import UNFINISHED, Record
from undelta.trials.trial import Trial

RECOGNIZABLE = METRICS["ssim"].threshold or 0.0
"""SSIM at which an audit calls an image recognizable, by default."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One method on one update: the paper's figures, and what stands beside them."""

    row: str
    """The paper's case."""
    here: str
    """The same at this scale."""
    method: str
    figures: Figures | None
    trials: tuple[Trial, ...]
    """One per seed."""
    reason: str = ""
    """Why there are no trials."""
    records: tuple[Record, ...] = ()
    """Of the trials, once they are gathered."""

    @property
    def scored(self) -> tuple[Record, ...]:
        """The records with numbers."""
        return tuple(record for record in self.records if record.scored)

    def mean(self, metric: str) -> Mean:
        """Over seeds."""
        return mean_of(value_of(record, metric) for record in self.scored)

    def value(self, metric: str) -> float | None:
        return self.mean(metric).mean

    def show(self, metric: str) -> str:
        """A cell of the table: the number, or why there is none."""
        if self.reason:
            return self.reason
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
        known = [image.ssim for record in self.scored for image in record.images if image.ssim is not None]
        return statistics.fmean(ssim >= RECOGNIZABLE for ssim in known) if known else None

    def baseline(self, name: str) -> float | None:
        """The mean PSNR of a guess without the update, over the seeds that have it."""
        found = [record.baselines[name].psnr for record in self.scored if name in record.baselines]
        return mean_of(found).mean

    def floor(self) -> tuple[float, float] | None:
        """Mean mismatch of this method's replay at its own result and at the private images."""
        pairs = [(record.mismatch, record.floor.mismatch) for record in self.scored if record.floor]
        known = [(ended, least) for ended, least in pairs if ended is not None]
        return (statistics.fmean(a for a, _ in known), statistics.fmean(b for _, b in known)) if known else None

    def seconds_per_iteration(self) -> float | None:
        """Over all seeds."""
        pairs = [(record.seconds, record.iterations) for record in self.scored]
        rates = [seconds / iterations for seconds, iterations in pairs if seconds is not None and iterations]
        return statistics.fmean(rates) if rates else None


@dataclass(frozen=True, kw_only=True)
class Results:
    """All cells of a reproduction."""

    cells: tuple[Cell, ...]

    @property
    def rows(self) -> list[str]:
        """The paper's cases, in order."""
        return list(dict.fromkeys(cell.row for cell in self.cells))

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(cell.method for cell in self.cells))

    @property
    def left_out(self) -> dict[str, list[str]]:
        """The cases in which no method has a trial, each with the reasons."""
        reasons = {row: [cell.reason for cell in self.cells if cell.row == row] for row in self.rows}
        return {row: list(dict.fromkeys(own)) for row, own in reasons.items() if all(own)}

    @property
    def attempted(self) -> Results:
        """The other cases."""
        left_out = self.left_out
        return Results(cells=tuple(cell for cell in self.cells if cell.row not in left_out))

    def at(self, row: str, method: str) -> Cell:
        return next(cell for cell in self.cells if (cell.row, cell.method) == (row, method))

    def here(self, row: str) -> str:
        """A row's name at this scale."""
        return next(cell.here for cell in self.cells if cell.row == row)

    def printed(self, method: str) -> bool:
        """Whether the paper has figures of a method here."""
        return any(cell.figures for cell in self.cells if cell.method == method)


def gather(cells: Sequence[Cell], records: Iterable[Record]) -> Results:
    """Put the records of a directory where they belong; trials that are not there yet are unfinished."""
    known = {record.key: record for record in records}
    found = [tuple(known.get(trial.key) or trial.unmeasured() for trial in cell.trials) for cell in cells]
    return Results(cells=tuple(replace(cell, records=own) for cell, own in zip(cells, found, strict=True)))


LEAST_SEEDS = 3
"""Below that, no difference counts."""
CHANCE = 0.05
"""A difference counts if chance alone would make as large a one less often than this."""


@dataclass(frozen=True, kw_only=True)
class Advantage:
    """How much better one cell is than another by one metric, image by image over the seeds that both have."""

    cells: tuple[Cell, Cell]
    metric: str
    after: float
    """The mean of the one over these seeds."""
    before: float
    """The mean of the other."""
    mean: float
    """Of the differences, in the direction in which the metric gets better."""
    error: float
    """Standard error of the mean over seeds; 0 for a single seed, which has none."""
    chance: float
    """How often chance would make as large a difference: the larger p-value of a paired t-test over images, and one
    over the means of the seeds, since images of one seed share an update."""
    images: int
    seeds: int

    @property
    def sign(self) -> int:
        """1 better, -1 worse, 0 where the difference is within the spread over images or over seeds."""
        counts = self.seeds >= LEAST_SEEDS and self.chance < CHANCE
        return int(math.copysign(1, self.mean)) if counts else 0

    @property
    def least(self) -> float:
        """The lower end of the mean's 95 % interval over seeds; minus infinity for a single one."""
        if self.seeds < 2:
            return -math.inf
        return self.mean - float(student.ppf(1 - CHANCE / 2, self.seeds - 1)) * self.error


def advantage(first: Cell, second: Cell, metric: str) -> Advantage | None:
    """How much better the first is; paired by seed and image, since seeds draw other images. None without a pair.

    Where a record has no numbers of its images, its mean stands for one.
    """
    mine, yours = ({record.seed: record for record in one.scored} for one in (first, second))
    pairs = {seed: _pairs(mine[seed], yours[seed], metric) for seed in mine if seed in yours}
    by_seed = [own for own in pairs.values() if own]
    if not by_seed:
        return None
    sign = METRICS[metric].sign
    differences = [sign * (a - b) for own in by_seed for a, b in own]
    means = [statistics.fmean(sign * (a - b) for a, b in own) for own in by_seed]
    return Advantage(
        cells=(first, second),
        metric=metric,
        after=statistics.fmean(statistics.fmean(a for a, _ in own) for own in by_seed),
        before=statistics.fmean(statistics.fmean(b for _, b in own) for own in by_seed),
        mean=statistics.fmean(means),
        error=_error(means),
        chance=max(_chance(differences), _chance(means)),
        images=len(differences),
        seeds=len(by_seed),
    )


def _pairs(first: Record, second: Record, metric: str) -> list[tuple[float, float]]:
    """Both values of every image, in the order of the private images, which two attacks on one update share."""
    values = [[getattr(image, metric) for image in record.images] for record in (first, second)]
    if len(values[0]) != len(values[1]) or any(value is None for own in values for value in own) or not values[0]:
        values = [[value_of(record, metric)] for record in (first, second)]
    return [(a, b) for a, b in zip(*values, strict=True) if a is not None and b is not None]


def _error(values: Sequence[float]) -> float:
    """Of their mean."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def _chance(differences: Sequence[float]) -> float:
    """Of a mean as far from zero, if the differences were drawn around it; two-sided."""
    mean, error = statistics.fmean(differences), _error(differences)
    if len(differences) < 2 or mean == 0:
        return 1.0
    return float(2 * student.sf(abs(mean) / error, len(differences) - 1)) if error else 0.0
