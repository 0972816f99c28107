"""How the attacks of one scenario went: mismatch and PSNR over iterations and over seconds, attacks overlaid."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from undelta.report.charts import Chart, Series, chart
from undelta.trials.record import Record


class Point(NamedTuple):
    """A point of a curve; a value that was not finite is None."""

    iteration: int
    seconds: float | None
    value: float | None


@dataclass(frozen=True, kw_only=True)
class Curves:
    """The charts of one scenario for one horizontal axis."""

    axis: str
    charts: tuple[Chart, ...]


def curves(records: Sequence[Record], labels: Mapping[str, str], styles: Mapping[str, int]) -> list[Curves]:
    """Charts over iterations, and over seconds; empty where no trial kept a history."""
    found = []
    for axis, title, place in (
        ("iterations", "attack iteration", lambda point: float(point.iteration)),
        ("seconds", "seconds", lambda point: point.seconds),
    ):
        mismatch = [_series(record, mismatches(record), "mismatch", place, labels, styles) for record in records]
        psnr = [_series(record, with_result(record), "PSNR", place, labels, styles) for record in records]
        charts = (
            chart(f"Mismatch over {axis}", title, "mismatch (log)", mismatch, log_y=True),
            chart(f"PSNR over {axis}", title, "PSNR in dB", psnr),
        )
        drawn = tuple(one for one in charts if one)
        if drawn:
            found.append(Curves(axis=axis, charts=drawn))
    return found


def mismatches(record: Record) -> tuple[Point, ...]:
    """By the attack's own replay."""
    return tuple(Point(step.iteration, step.seconds, step.mismatch) for step in record.history)


def with_result(record: Record) -> tuple[Point, ...]:
    """PSNR on the way, and of the result at the end.

    Iterations of several restarts add up, but only the best one is drawn; its result is then not put at their sum.
    """
    points = tuple(Point(one.iteration, one.seconds, one.psnr) for one in record.curve)
    psnr = record.psnr
    if not points or psnr is None or record.iterations is None or record.iterations <= points[-1].iteration:
        return points
    steps = [after.iteration - before.iteration for before, after in itertools.pairwise(points)]
    if record.iterations - points[-1].iteration > 2 * max(steps, default=record.iterations):
        return points
    return (*points, Point(record.iterations, record.seconds, psnr))


def _series(
    record: Record,
    points: Sequence[Point],
    what: str,
    place: Callable[[Point], float | None],
    labels: Mapping[str, str],
    styles: Mapping[str, int],
) -> Series:
    label = labels[record.key]
    drawn = [
        (at, point.value, point) for point in points if (at := place(point)) is not None and point.value is not None
    ]
    form = ".4g" if what == "mismatch" else ".2f"
    unit = "" if what == "mismatch" else " dB"
    return Series(
        name=label,
        style=styles[label],
        points=[(at, value) for at, value, _ in drawn],
        texts=[
            f"seed {record.seed}, iteration {point.iteration}"
            + (f", {point.seconds:.1f} s" if point.seconds is not None else "")
            + f": {what} {value:{form}}{unit}"
            for _, value, point in drawn
        ],
    )
