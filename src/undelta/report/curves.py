"""How the attacks of one scenario went: mismatch and PSNR over iterations and over seconds, attacks overlaid."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from undelta.report.charts import Chart, Series, chart
from undelta.report.read import Entry, Point


@dataclass(frozen=True, kw_only=True)
class Curves:
    """The charts of one scenario for one horizontal axis."""

    axis: str
    charts: tuple[Chart, ...]


def curves(entries: Sequence[Entry], labels: Mapping[str, str], styles: Mapping[str, int]) -> list[Curves]:
    """Charts over iterations, and over seconds; empty where no trial kept a history."""
    found = []
    for axis, title, place in (
        ("iterations", "attack iteration", lambda point: float(point.iteration)),
        ("seconds", "seconds", lambda point: point.seconds),
    ):
        mismatch = [_series(entry, entry.mismatches, "mismatch", place, labels, styles) for entry in entries]
        psnr = [_series(entry, with_result(entry), "PSNR", place, labels, styles) for entry in entries]
        charts = (
            chart(f"Mismatch over {axis}", title, "mismatch (log)", mismatch, log_y=True),
            chart(f"PSNR over {axis}", title, "PSNR in dB", psnr),
        )
        drawn = tuple(one for one in charts if one)
        if drawn:
            found.append(Curves(axis=axis, charts=drawn))
    return found


def with_result(entry: Entry) -> tuple[Point, ...]:
    """PSNR on the way, and of the result at the end.

    Iterations of several restarts add up, but only the best one is drawn; its result is then not put at their sum.
    """
    points, psnr = entry.psnrs, entry.metrics["psnr"]
    if not points or psnr is None or entry.iterations is None or entry.iterations <= points[-1].iteration:
        return points
    steps = [after.iteration - before.iteration for before, after in itertools.pairwise(points)]
    if entry.iterations - points[-1].iteration > 2 * max(steps, default=entry.iterations):
        return points
    return (*points, Point(iteration=entry.iterations, seconds=entry.seconds, value=psnr))


def _series(
    entry: Entry,
    points: Sequence[Point],
    what: str,
    place: Callable[[Point], float | None],
    labels: Mapping[str, str],
    styles: Mapping[str, int],
) -> Series:
    label = labels[entry.key]
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
            f"seed {entry.seed}, iteration {point.iteration}"
            + (f", {point.seconds:.1f} s" if point.seconds is not None else "")
            + f": {what} {value:{form}}{unit}"
            for _, value, point in drawn
        ],
    )
