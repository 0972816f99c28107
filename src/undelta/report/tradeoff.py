"""Leakage against utility, as `undelta defend` left it: a table, and a chart on which the Pareto front is marked."""

from __future__ import annotations

from dataclasses import dataclass

from undelta.evaluation.measures import MISSING, Metric
from undelta.report.charts import Chart, Mark, Series, chart
from undelta.trials.bound_file import Limit
from undelta.trials.tradeoff import Point, Tradeoff

SIZE = (640, 360)
BOUNDED = (
    Metric(key="ceiling", title="Ceiling", form=".1f", hint="mean PSNR that no attack is expected to exceed"),
    Metric(key="headroom", title="Headroom", form=".1f", hint="what the strongest attack on that update left of it"),
)
COLUMNS = (
    Metric(
        key="accuracy",
        title="Accuracy",
        form=".1%",
        hint="of the federation on images that no client has, mean over seeds",
    ),
    Metric(key="psnr", title="PSNR", form=".2f", hint="decibels, mean over the images of the worst trial"),
    *BOUNDED,
    Metric(key="worst_psnr", title="Worst image", form=".2f", hint="the highest PSNR of any image in any trial"),
    Metric(key="worst_ssim", title="SSIM", form=".3f", hint="the highest of any image in any trial"),
    Metric(key="fraction_recovered", title="Recovered", form=".0%", hint="share of the images in the worst trial"),
    Metric(key="epsilon", title="Epsilon", form=".3g", hint="up to the attacked round"),
    Metric(key="epsilon_in_all", title="Epsilon in all", form=".3g", hint="after all rounds of the federation"),
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A defense as the table has it."""

    number: int
    """By which the chart names it."""
    point: Point
    reference: bool
    bounded: bool

    @property
    def cells(self) -> list[tuple[float | None, str]]:
        """Its numbers, and how they are shown; nothing was promised without differential privacy."""
        values = [(column, getattr(self.point, column.key)) for column in _shown(self.bounded)]
        texts = dict.fromkeys(("epsilon", "epsilon_in_all") if self.point.delta is None else (), "")
        limit = self.point.bound or Limit()
        texts |= {"ceiling": limit.ceiling or MISSING, "headroom": limit.headroom or MISSING}
        return [(value, texts.get(column.key, column.show(value))) for column, value in values]

    @property
    def standing(self) -> str:
        """Where it is, in words."""
        if self.reference:
            return "reference"
        words = (("Pareto front", self.point.pareto), ("noise level", self.point.at_noise_level))
        return ", ".join(word for word, said in words if said)


def columns(tradeoff: Tradeoff) -> tuple[Metric, ...]:
    """Those of the table; bounds are there where they were asked for."""
    return _shown(tradeoff.bounded)


def _shown(bounded: bool) -> tuple[Metric, ...]:
    return tuple(column for column in COLUMNS if bounded or column not in BOUNDED)


def rows(tradeoff: Tradeoff) -> list[Row]:
    """All defenses, the reference last."""
    points = (*tradeoff.points, tradeoff.reference)
    return [
        Row(number=number, point=point, reference=point is tradeoff.reference, bounded=tradeoff.bounded)
        for number, point in enumerate(points, 1)
    ]


def tradeoff_chart(tradeoff: Tradeoff) -> Chart | None:
    """Accuracy against PSNR: better is to the right and below; None where no accuracy was measured."""
    front: list[Mark] = []
    others: list[Mark] = []
    nothing: list[Mark] = []
    ceilings: list[Mark] = []
    for row in rows(tradeoff):
        accuracy, psnr = row.point.accuracy, row.point.psnr
        if accuracy is not None and psnr is not None:
            text = f"{row.point.defense}, accuracy {accuracy:.1%}, PSNR {psnr:.2f} dB"
            group = front if row.point.pareto else nothing if row.reference else others
            group.append(Mark(100 * accuracy, psnr, text, str(row.number)))
            bound = row.point.bound.row if row.point.bound else None
            if bound and not bound.loose and not row.reference:
                above = f"{row.point.defense}, accuracy {accuracy:.1%}, ceiling {bound.ceiling:.2f} dB"
                ceilings.append(Mark(100 * accuracy, bound.ceiling, above, str(row.number)))
    return chart(
        "Leakage against utility: better is to the right and further down",
        "accuracy on held-out images, in percent",
        "PSNR of the worst trial in dB",
        [
            Series(name="on the Pareto front", style=0, points=sorted(front)),
            Series(name="other defenses", style=1, points=others, line=False),
            Series(name="pure noise instead of an update", style=7, points=nothing, line=False),
            *(
                [Series(name="what no attack is expected to exceed", style=3, points=ceilings, line=False)]
                * bool(ceilings)
            ),
        ],
        size=SIZE,
    )
