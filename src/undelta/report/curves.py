"""How the attacks of one scenario went: mismatch and PSNR over iterations and over seconds, attacks overlaid."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from undelta.report.charts import Mark, Panel, Series, chart
from undelta.trials.record import Record


class Point(NamedTuple):
    """A point of a curve; a value that was not finite is None."""

    iteration: int
    seconds: float | None
    value: float | None


def curves(records: Sequence[Record], labels: Mapping[str, str], styles: Mapping[str, int]) -> list[Panel]:
    """Charts over iterations, and over seconds; empty where no trial kept a history."""
    panels = []
    for axis, x_title, over in (("iterations", "attack iteration", "iteration"), ("seconds", "seconds", "seconds")):
        mismatch, psnr = [], []
        for record in records:
            line = Series(name=labels[record.key], style=styles[labels[record.key]], points=())
            mismatch.append(replace(line, points=_marks(record, mismatches(record), over, "mismatch {:.4g}")))
            psnr.append(replace(line, points=_marks(record, with_result(record), over, "PSNR {:.2f} dB")))
        charts = (
            chart(f"Mismatch over {axis}", x_title, "mismatch (log)", mismatch, log_y=True),
            chart(f"PSNR over {axis}", x_title, "PSNR in dB", psnr),
        )
        panels.append(Panel(axis, tuple(one for one in charts if one)))
    return [panel for panel in panels if panel.charts]


def mismatches(record: Record) -> tuple[Point, ...]:
    """By the attack's own replay."""
    return tuple(Point(step.iteration, step.seconds, step.mismatch) for step in record.history)


def with_result(record: Record) -> tuple[Point, ...]:
    """PSNR on the way, and of the result at the end.

    Iterations of several restarts add up, but only the best one is drawn; its result is then not put at their sum.
    """
    points = tuple(Point(one.iteration, one.seconds, one.psnr) for one in record.curve)
    if not points or record.psnr is None or record.iterations is None or record.iterations <= points[-1].iteration:
        return points
    steps = [after.iteration - before.iteration for before, after in itertools.pairwise(points)]
    if record.iterations - points[-1].iteration > 2 * max(steps, default=record.iterations):
        return points
    return (*points, Point(record.iterations, record.seconds, record.psnr))


def _marks(record: Record, points: Sequence[Point], over: str, form: str) -> list[Mark]:
    marks = []
    for point in points:
        place = getattr(point, over)
        if place is not None and point.value is not None:
            time = "" if point.seconds is None else f", {point.seconds:.1f} s"
            text = f"seed {record.seed}, iteration {point.iteration}{time}: {form.format(point.value)}"
            marks.append(Mark(place, point.value, text))
    return marks
