"""What changes the result: a metric against every field that varies in an audit, and against the defense."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from undelta.evaluation.measures import Metric
from undelta.report.charts import SMALL, Chart, Series, chart
from undelta.report.tables import MEASURES, flat, grouped, value_of
from undelta.trials.record import Record

SHOWN = tuple(measure for measure in MEASURES if measure.key in ("psnr", "ssim", "lpips", "fraction_recovered"))
TITLES = {
    "epochs": "epochs E",
    "num_samples": "images N",
    "batches": "mini-batches B",
    "learning_rate": "learning rate",
    "rounds": "rounds before the attack",
}
MOST_NAMES = 12  # on one axis; of more, nothing could be read
WIDE = 8  # ratio of the largest to the smallest value from which an axis is logarithmic


@dataclass(frozen=True, kw_only=True)
class Trend:
    """Every metric against one thing that varies."""

    title: str
    charts: tuple[Chart, ...]


def trends(records: Sequence[Record], labels: Mapping[str, str], styles: Mapping[str, int]) -> list[Trend]:
    """Charts per field that varies, and for the defense; empty if nothing varies."""
    scored = [record for record in records if record.scored]
    fields = varying(scored)
    found = []
    named = 1 < len({record.defense for record in scored}) <= MOST_NAMES
    # A scenario's defenses are tables; the named defense, which has them, is the axis that people can read.
    for name in [*(field for field in fields if field != "defenses"), *(["defense"] if named else [])]:
        axis = _axis(name, fields, scored) if name in fields else _defense_axis(scored)
        charts = [_against(measure, axis, scored, labels, styles) for measure in SHOWN]
        found.append(Trend(title=axis.title, charts=tuple(one for one in charts if one)))
    return found


def varying(records: Sequence[Record]) -> list[str]:
    """The fields of the scenario that take more than one value, the known ones first."""
    flats = [flat(record.scenario) for record in records]
    names = dict.fromkeys((*TITLES, *(key for values in flats for key in values)))
    # A scored run notes the seed of its data among the scenario's fields.
    return [name for name in names if name != "seed" and len({_text(values.get(name)) for values in flats}) > 1]


@dataclass(frozen=True, kw_only=True)
class _Axis:
    """What a metric is drawn against."""

    title: str
    ticks: Sequence[tuple[float, str]]
    place: Callable[[Record], float]
    setting: Callable[[Record], tuple[Any, ...]]
    """All else that varies."""
    log: bool = False
    numeric: bool = True


def _axis(name: str, fields: Sequence[str], records: Sequence[Record]) -> _Axis:
    others = [field for field in fields if field != name]
    values: list[Any] = [flat(record.scenario).get(name) for record in records]
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    known = {_text(value): value for value in values}
    ordered = sorted(known, key=lambda text: known[text]) if numeric else list(known)
    places = {text: float(known[text]) if numeric else float(index) for index, text in enumerate(ordered)}
    low, high = min(places.values()), max(places.values())

    def setting(record: Record) -> tuple[Any, ...]:
        values = flat(record.scenario)
        return (record.seed, *(_text(values.get(field)) for field in others))

    return _Axis(
        title=TITLES.get(name, name),
        ticks=[(places[text], text) for text in ordered],
        place=lambda record: places[_text(flat(record.scenario).get(name))],
        setting=setting,
        log=numeric and 0 < WIDE * low <= high,
        numeric=numeric,
    )


def _defense_axis(records: Sequence[Record]) -> _Axis:
    names = list(dict.fromkeys(record.defense for record in records))
    return _Axis(
        title="defense",
        ticks=[(float(index), name) for index, name in enumerate(names)],
        place=lambda record: float(names.index(record.defense)),
        setting=lambda record: (record.seed, record.name),
        numeric=False,
    )


def _against(
    measure: Metric, axis: _Axis, records: Sequence[Record], labels: Mapping[str, str], styles: Mapping[str, int]
) -> Chart | None:
    """Points per trial, and per attack a line through means over settings that were measured at every value.

    Where something else varies too, a mean over whatever happens to be there would compare different things.
    """
    names = dict(axis.ticks)
    measured = [record for record in records if value_of(record, measure.key) is not None]
    series = []
    for label, trials in grouped(measured, lambda record: labels[record.key]).items():
        places = sorted({axis.place(record) for record in trials})
        by_place = {at: [record for record in trials if axis.place(record) == at] for at in places}
        series.append(
            Series(
                name=label,
                style=styles[label],
                points=[(axis.place(record), _value(record, measure)) for record in trials],
                texts=[
                    f"{record.name}, defense {record.defense}, seed {record.seed}: "
                    f"{measure.title} {measure.show(_value(record, measure))}"
                    for record in trials
                ],
                line=False,
            )
        )
        common = set.intersection(*({axis.setting(record) for record in found} for found in by_place.values()))
        if len(by_place) < 2 or not common:
            continue
        means = [
            (at, statistics.fmean(_value(record, measure) for record in found if axis.setting(record) in common))
            for at, found in by_place.items()
        ]
        texts = [f"{axis.title} {names[at]}: mean {measure.title} {measure.show(mean)}" for at, mean in means]
        series.append(Series(name=label, style=styles[label], points=means, texts=texts, marks=False))
    y_title = f"{measure.title} in dB" if measure.key == "psnr" else measure.title
    y_range = (0.0, 1.0) if measure.key == "fraction_recovered" else ()
    return chart(
        measure.title,
        axis.title,
        y_title,
        series,
        x_values=axis.ticks if axis.numeric else (),
        categories=() if axis.numeric else [text for _, text in axis.ticks],
        log_x=axis.log,
        y_range=y_range,
        size=SMALL,
    )


def _value(record: Record, measure: Metric) -> float:
    value = value_of(record, measure.key)
    assert value is not None  # noqa: S101 (chosen so by the caller)
    return value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
