"""Leakage against utility, as `undelta defend` left it: a table, and a chart on which the Pareto front is marked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from undelta.errors import DataError
from undelta.report.charts import Chart, Series, chart
from undelta.report.fields import Fields, read_json

SCHEMA = 1
SIZE = (640, 360)
MISSING = "n/a"


@dataclass(frozen=True, kw_only=True)
class Point:
    """One defense."""

    number: int
    """By which the chart names it."""
    defense: str
    attack: str | None
    psnr: float | None
    worst_psnr: float | None
    worst_ssim: float | None
    fraction_recovered: float | None
    accuracy: float | None
    epsilon: float | None
    epsilon_in_all: float | None
    delta: float | None
    at_noise_level: bool
    pareto: bool
    reference: bool = False

    @property
    def cells(self) -> list[tuple[float | None, str]]:
        """The numbers of its row, and how they are shown."""
        promised = MISSING if self.delta is not None else ""
        return [
            (self.accuracy, _show(self.accuracy, ".1%")),
            (self.psnr, _show(self.psnr, ".2f")),
            (self.worst_psnr, _show(self.worst_psnr, ".2f")),
            (self.worst_ssim, _show(self.worst_ssim, ".3f")),
            (self.fraction_recovered, _show(self.fraction_recovered, ".0%")),
            (self.epsilon, _show(self.epsilon, ".3g", promised)),
            (self.epsilon_in_all, _show(self.epsilon_in_all, ".3g", promised)),
        ]

    @property
    def standing(self) -> str:
        """Where it is, in words."""
        if self.reference:
            return "reference"
        words = (("Pareto front", self.pareto), ("noise level", self.at_noise_level))
        return ", ".join(word for word, said in words if said)


@dataclass(frozen=True, kw_only=True)
class Tradeoff:
    """All defenses, the reference last."""

    rounds: int
    test_images: int
    seeds: int
    margin_db: float | None
    points: tuple[Point, ...]
    notes: tuple[str, ...]

    @property
    def private(self) -> bool:
        """Whether some defense has an epsilon."""
        return any(point.delta is not None for point in self.points)


COLUMNS = (
    ("Accuracy", "of the federation on images that no client has, mean over seeds"),
    ("PSNR", "decibels, mean over the images of the worst trial"),
    ("Worst image", "the highest PSNR of any image in any trial"),
    ("SSIM", "the highest of any image in any trial"),
    ("Recovered", "share of the images in the worst trial"),
    ("Epsilon", "up to the attacked round"),
    ("Epsilon in all", "after all rounds of the federation"),
)


def read_tradeoff(path: Path) -> Tradeoff | None:
    """What `undelta defend` wrote; None if it did not."""
    if not path.is_file():
        return None
    values = Fields(read_json(path), path)
    if values.values.get("schema") != SCHEMA:
        raise DataError(f"{path}: expected a trade-off of schema {SCHEMA}")
    points = [_point(number, fields) for number, fields in enumerate(values.tables("points"), 1)]
    nothing = _point(len(points) + 1, Fields(values.table("reference"), path), reference=True)
    seeds, notes = values.values.get("seeds"), values.values.get("notes")
    return Tradeoff(
        rounds=values.whole("rounds"),
        test_images=values.whole("test_images"),
        seeds=len(seeds) if isinstance(seeds, list) else 0,
        margin_db=values.number("margin_db"),
        points=(*points, nothing),
        notes=tuple(map(str, notes)) if isinstance(notes, list) else (),
    )


def _point(number: int, fields: Fields, *, reference: bool = False) -> Point:
    return Point(
        number=number,
        defense=fields.text("defense"),
        attack=fields.optional_text("attack"),
        psnr=fields.number("psnr"),
        worst_psnr=fields.number("worst_psnr"),
        worst_ssim=fields.number("worst_ssim"),
        fraction_recovered=fields.number("fraction_recovered"),
        accuracy=fields.number("accuracy"),
        epsilon=fields.number("epsilon"),
        epsilon_in_all=fields.number("epsilon_in_all"),
        delta=fields.number("delta"),
        at_noise_level=bool(fields.flag("at_noise_level")),
        pareto=bool(fields.flag("pareto")),
        reference=reference,
    )


def tradeoff_chart(tradeoff: Tradeoff) -> Chart | None:
    """Accuracy against PSNR: better is to the right and below; None where no accuracy was measured."""
    front = sorted((point for point in tradeoff.points if point.pareto), key=lambda point: point.accuracy or 0.0)
    others = [point for point in tradeoff.points if not point.pareto and not point.reference]
    nothing = [point for point in tradeoff.points if point.reference]
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


def _series(name: str, style: int, points: list[Point], *, line: bool = False) -> Series:
    known = [(point, point.accuracy, point.psnr) for point in points]
    places = [(100 * x, y) for _, x, y in known if x is not None and y is not None]
    drawn = [point for point, x, y in known if x is not None and y is not None]
    return Series(
        name=name,
        style=style,
        points=places,
        texts=[
            f"{point.defense}, accuracy {_show(point.accuracy, '.1%')}, PSNR {_show(point.psnr, '.2f')} dB"
            for point in drawn
        ],
        labels=[str(point.number) for point in drawn],
        line=line,
    )


def _show(value: float | None, form: str, missing: str = MISSING) -> str:
    return missing if value is None else format(value, form)
