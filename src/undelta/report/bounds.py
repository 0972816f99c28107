"""What no attack is expected to exceed, as an audit or `undelta bound` left it: a table, pictures, and what is said."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from undelta.client.private import UNKNOWN
from undelta.evaluation.measures import MISSING, Metric
from undelta.evaluation.score import ImageScore
from undelta.report.read import Audit
from undelta.report.tables import grouped
from undelta.trials.bound_file import BOUNDS, Bounded, BoundFile, Limit, bound_key
from undelta.trials.directory import PICTURES
from undelta.trials.record import COMPLETED, UNDEFENDED, Record, summary

ESTIMATE = "linear estimate, granted the derivative at the originals: not an attack"
COLUMNS = (
    Metric(key="sigma", title="Noise", form=".3g", hint="deviation on an entry of the update, root mean square"),
    Metric(key="least_mse", title="Least MSE", form=".1f", hint="decibels, of the least mean squared error"),
    Metric(key="bound", title="Bound", form=".1f", hint="decibels, the mean PSNR that goes with it"),
    Metric(key="error", title="Error", form=".1f", hint="the bound's statistical error"),
    Metric(key="gap", title="Gap", form=".1f", hint="what more products might lower the bound by"),
    Metric(key="mean_linear", title="Linear", form=".1f", hint="what the best linear estimate scores on these images"),
    Metric(key="reached", title="Reached", form=".1f", hint="by the strongest attack on this update"),
    Metric(key="headroom", title="Headroom", form=".1f", hint="of the larger of bound and linear, what attackers left"),
)


@dataclass(frozen=True, kw_only=True)
class Line:
    """One update at one size of the noise, or why there is no bound."""

    name: str
    defense: str
    seed: int | None
    row: Bounded | None
    noise: str
    """Where it is from."""
    reason: str | None = None

    @property
    def cells(self) -> list[tuple[float | None, str]]:
        """Its numbers, and how they are shown."""
        limit, row = Limit(row=self.row), self.row
        texts = {"headroom": limit.headroom} | ({"sigma": "not sent"} if row and not row.sigma else {})
        values = [(column, getattr(row, column.key) if row else None) for column in COLUMNS]
        return [(value, texts.get(column.key) or column.show(value)) for column, value in values]


def lines(audit: Audit) -> list[Line]:
    """Those of the audit's own updates, and those of `undelta bound`."""
    return [*_own(audit), *(_lines(summary(one.scenario), UNDEFENDED, one) if (one := audit.bound) else ())]


def _own(audit: Audit) -> Iterator[Line]:
    bounded = [record for record in audit.records if record.key in audit.bounds]
    for ((name, defense), seed), same in grouped(bounded, lambda record: (record.group, record.seed)).items():
        file = audit.bounds[same[0].key]
        if file.error:
            yield Line(name=name, defense=defense, seed=seed, row=None, noise="", reason=file.error)
        yield from _lines(name, defense, file, same)


def _lines(name: str, defense: str, file: BoundFile, records: Sequence[Record] = ()) -> Iterator[Line]:
    for row in file.rows:
        yield Line(name=name, defense=defense, seed=row.seed, row=row.against(records), noise=file.noise)


class Ceiling(NamedTuple):
    """What no attack on a trial's update is expected to exceed."""

    value: float | None
    headroom: float | None
    """What the trial left of it."""
    text: str


def ceiling_of(audit: Audit, record: Record) -> Ceiling:
    """The ceiling of a trial's update, as far as it is known."""
    file = audit.bounds.get(record.key)
    row = max(file.rows, key=lambda one: one.ceiling, default=None) if file else None
    if row is None:
        return Ceiling(None, None, MISSING)
    left = None if record.psnr is None else row.ceiling - record.psnr
    return Ceiling(row.ceiling, left, Limit(row=row).ceiling or MISSING)


def remarks(audit: Audit) -> list[str]:
    """What all of it rests on, and where that fails; each once."""
    files = [*audit.bounds.values(), *([audit.bound] if audit.bound else [])]
    priors = dict.fromkeys(f"Prior: {one.prior}" for one in files if one.prior)
    assumptions = dict.fromkeys("; ".join(one.assumptions) for one in files if one.assumptions)
    notes = dict.fromkeys(f"Note: {note}" for one in files for note in (*one.doubts, *one.notes))
    return [*priors, *(f"Assumptions: {words}" for words in assumptions), *notes]


def estimates(audit: Audit) -> tuple[list[Record], dict[str, Path]]:
    """The linear estimates as rows beside those of the attacks, and their pictures, by key."""
    records, pictures = list[Record](), dict[str, Path]()
    for record in audit.records:
        file, key = audit.bounds.get(record.key), bound_key(record)
        path = audit.directory / BOUNDS / key / PICTURES
        if file is None or not file.rows or key in pictures or not path.is_file():
            continue
        row, pictures[key] = file.rows[0], path
        labels = [one.label for one in record.images] or [UNKNOWN] * len(row.linear)
        records.append(
            Record(
                key=key,
                name=record.name,
                defense=record.defense,
                scenario=record.scenario,
                attack=ESTIMATE,
                seed=record.seed,
                status=COMPLETED,
                psnr=row.mean_linear,
                images=tuple(
                    ImageScore(label=label, mse=None, psnr=value, ssim=None, lpips=None)
                    for label, value in zip(labels, row.linear, strict=False)
                ),
            )
        )
    return records, pictures
