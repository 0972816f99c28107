"""How the attacks of one scenario went: mismatch and PSNR over iterations and over seconds, attacks overlaid."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from undelta.evaluation.baselines import COLOR, NOISE
from undelta.evaluation.measures import METRICS
from undelta.report.charts import Mark, Panel, Rule, Series, chart
from undelta.trials.record import Quality, Record, Step


def curves(records: Sequence[Record], labels: Mapping[str, str], styles: Mapping[str, int]) -> list[Panel]:
    """Charts over iterations, and over seconds; empty where no trial kept a history."""
    panels = []
    for axis, x_title, over in (("iterations", "attack iteration", "iteration"), ("seconds", "seconds", "seconds")):
        mismatch, psnr = [], []
        for record in records:
            line = Series(name=labels[record.key], style=styles[labels[record.key]], points=())
            steps = [(step, step.mismatch) for step in record.history]
            mismatch.append(replace(line, points=_marks(record.seed, steps, over, "mismatch {:.4g}")))
            qualities = [(quality, quality.psnr) for quality in with_result(record)]
            psnr.append(replace(line, points=_marks(record.seed, qualities, over, "PSNR {:.2f} dB")))
        charts = (
            chart(f"Mismatch over {axis}", x_title, "mismatch (log)", mismatch, log_y=True, y_range=(0.01, 1.0)),
            chart(f"PSNR over {axis}", x_title, "PSNR in dB", psnr, rules=rules(records, "psnr")),
        )
        panels.append(Panel(axis, tuple(one for one in charts if one)))
    return [panel for panel in panels if panel.charts]


def rules(records: Sequence[Record], key: str) -> list[Rule]:
    """What to compare a metric with: the threshold, and guesses without the update, mean over trials."""
    found = [Rule(METRICS[key].threshold or 0.0, "recovered" if key == "psnr" else "recognizable")]
    for name in (COLOR, NOISE):
        values = [getattr(record.baselines[name], key) for record in records if name in record.baselines]
        known = [value for value in values if value is not None]
        if known:
            found.append(Rule(statistics.fmean(known), name))
    return found


def with_result(record: Record) -> tuple[Quality, ...]:
    """PSNR on the way, and of the result at the end.

    Iterations of several restarts add up, but only the best one is drawn; its result is then not put at their sum.
    """
    points = record.curve
    if not points or record.psnr is None or record.iterations is None or record.iterations <= points[-1].iteration:
        return points
    steps = [after.iteration - before.iteration for before, after in itertools.pairwise(points)]
    if record.iterations - points[-1].iteration > 2 * max(steps, default=record.iterations):
        return points
    return (*points, Quality(iteration=record.iterations, seconds=record.seconds, psnr=record.psnr))


def _marks(seed: int, values: Sequence[tuple[Step | Quality, float | None]], over: str, form: str) -> list[Mark]:
    marks = []
    for at, value in values:
        place = getattr(at, over)
        if place is not None and value is not None:
            time = "" if at.seconds is None else f", {at.seconds:.1f} s"
            marks.append(Mark(place, value, f"seed {seed}, iteration {at.iteration}{time}: {form.format(value)}"))
    return marks
