"""Leakage against utility, as `undelta defend` left it: a table, and a chart on which the Pareto front is marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from undelta.report.charts import Chart, Series, chart
from undelta.trials.tradeoff import Point, Tradeoff

SIZE = (640, 360)
MISSING = "n/a"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A defense as the table has it."""

    number: int
    """By which the chart names it."""
    point: Point
    reference: bool

    @property
    def cells(self) -> list[tuple[float | None, str]]:
        """Its numbers, and how they are shown."""
        point = self.point
        promised = MISSING if point.delta is not None else ""
        return [
            (point.accuracy, _show(point.accuracy, ".1%")),
            (point.psnr, _show(point.psnr, ".2f")),
            (point.worst_psnr, _show(point.worst_psnr, ".2f")),
            (point.worst_ssim, _show(point.worst_ssim, ".3f")),
            (point.fraction_recovered, _show(point.fraction_recovered, ".0%")),
            (point.epsilon, _show(point.epsilon, ".3g", promised)),
            (point.epsilon_in_all, _show(point.epsilon_in_all, ".3g", promised)),
        ]

    @property
    def standing(self) -> str:
        """Where it is, in words."""
        if self.reference:
            return "reference"
        words = (("Pareto front", self.point.pareto), ("noise level", self.point.at_noise_level))
        return ", ".join(word for word, said in words if said)


def rows(tradeoff: Tradeoff) -> list[Row]:
    """All defenses, the reference last."""
    points = (*tradeoff.points, tradeoff.reference)
    return [
        Row(number=number, point=point, reference=point is tradeoff.reference) for number, point in enumerate(points, 1)
    ]


COLUMNS = (
    ("Accuracy", "of the federation on images that no client has, mean over seeds"),
    ("PSNR", "decibels, mean over the images of the worst trial"),
    ("Worst image", "the highest PSNR of any image in any trial"),
    ("SSIM", "the highest of any image in any trial"),
    ("Recovered", "share of the images in the worst trial"),
    ("Epsilon", "up to the attacked round"),
    ("Epsilon in all", "after all rounds of the federation"),
)


def tradeoff_chart(tradeoff: Tradeoff) -> Chart | None:
    """Accuracy against PSNR: better is to the right and below; None where no accuracy was measured."""
    all_rows = rows(tradeoff)
    front = sorted((row for row in all_rows if row.point.pareto), key=lambda row: row.point.accuracy or 0.0)
    others = [row for row in all_rows if not row.point.pareto and not row.reference]
    nothing = all_rows[-1:]
    series = [
        _series("on the Pareto front", 0, front, line=True),
        _series("other defenses", 1, others),
        _series("pure noise instead of an update", 7, nothing),
    ]
    return chart(
        "Leakage against utility: better is to the right and further down",
        "accuracy on held-out images, in percent",
        "PSNR of the worst trial in dB",
        [one for one in series if one.points],
        size=SIZE,
    )


def _series(name: str, style: int, shown: Sequence[Row], *, line: bool = False) -> Series:
    drawn = [
        (row, 100 * row.point.accuracy, row.point.psnr)
        for row in shown
        if row.point.accuracy is not None and row.point.psnr is not None
    ]
    return Series(
        name=name,
        style=style,
        points=[(x, y) for _, x, y in drawn],
        texts=[f"{row.point.defense}, accuracy {x:.1f}%, PSNR {y:.2f} dB" for row, x, y in drawn],
        labels=[str(row.number) for row, _, _ in drawn],
        line=line,
    )


def _show(value: float | None, form: str, missing: str = MISSING) -> str:
    return missing if value is None else format(value, form)
