"""What changes the result: a metric against every field that varies in an audit, and against the defense."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from undelta.evaluation.measures import METRICS, Metric
from undelta.report.charts import SMALL, Chart, Mark, Panel, Series, chart
from undelta.report.curves import rules
from undelta.report.tables import flat, grouped, value_of
from undelta.report.ticks import Axis, measured_axis, named_axis
from undelta.trials.record import UNDEFENDED, Record

SHOWN = tuple(METRICS[key] for key in ("psnr", "ssim", "lpips", "fraction_recovered"))
TITLES = {
    "epochs": "epochs E",
    "num_samples": "images N",
    "batches": "mini-batches B",
    "learning_rate": "learning rate",
    "rounds": "rounds before the attack",
}
DEFENSE = "defense"
MOST_NAMES = 12  # on one axis; of more, nothing could be read
WIDE = 8  # ratio of the largest to the smallest value from which an axis is logarithmic


def trends(records: Sequence[Record], labels: Mapping[str, str], styles: Mapping[str, int]) -> list[Panel]:
    """Every metric against each thing that varies; empty if nothing does.

    Where there are defenses, they have an axis of their own, and the others are about trials without one.
    """
    scored = [record for record in records if record.scored]
    named = 1 < len({record.defense for record in scored}) <= MOST_NAMES
    plain = [record for record in scored if record.defense == UNDEFENDED] if named else scored
    panels = []
    for name, measured in [*((field, plain) for field in varying(plain)), *([(DEFENSE, scored)] if named else [])]:
        if name == "defenses":  # tables; the named defense, which has them, is the axis that people can read
            continue
        against = _against(name, measured)
        charts = (_chart(measure, against, measured, labels, styles) for measure in SHOWN)
        panels.append(Panel(against.title, tuple(one for one in charts if one)))
    return panels


def varying(records: Sequence[Record]) -> list[str]:
    """The fields of the scenario that take more than one value, the known ones first."""
    flats = [flat(record.scenario) for record in records]
    names = dict.fromkeys((*TITLES, *(key for values in flats for key in values)))
    # A scored run notes the seed of its data among the scenario's fields.
    return [name for name in names if name != "seed" and len({_text(values.get(name)) for values in flats}) > 1]


@dataclass(frozen=True, kw_only=True)
class _Against:
    """What a metric is drawn against."""

    title: str
    axis: Callable[[float, float], Axis]
    place: Callable[[Record], float]
    names: Mapping[float, str]
    """What is at a place."""
    setting: Callable[[Record], tuple[Any, ...]]
    """All else that varies."""
    numeric: bool
    """Whether values have an order and distances; between names there is nothing to join by a line."""


def _against(name: str, records: Sequence[Record]) -> _Against:
    others = [field for field in varying(records) if field != name]

    def value(record: Record) -> Any:
        return record.defense if name == DEFENSE else flat(record.scenario).get(name)

    def setting(record: Record) -> tuple[Any, ...]:
        if name == DEFENSE:  # which changes other fields, too
            return record.seed, record.name
        values = flat(record.scenario)
        return (record.seed, *(_text(values.get(field)) for field in others))

    values = {_text(value(record)): value(record) for record in records}
    numeric = all(isinstance(one, int | float) and not isinstance(one, bool) for one in values.values())
    ordered = sorted(values, key=lambda text: values[text]) if numeric else list(values)
    places = {text: float(values[text]) if numeric else float(index) for index, text in enumerate(ordered)}
    ticks = [(place, text) for text, place in places.items()]
    log = numeric and 0 < WIDE * min(places.values()) <= max(places.values())
    return _Against(
        title=TITLES.get(name, name),
        axis=partial(measured_axis, ticks, log=log) if numeric else partial(named_axis, ordered),
        place=lambda record: places[_text(value(record))],
        names=dict(ticks),
        setting=setting,
        numeric=numeric,
    )


def _chart(
    measure: Metric, against: _Against, records: Sequence[Record], labels: Mapping[str, str], styles: Mapping[str, int]
) -> Chart | None:
    """Points per trial, and per attack a line through means over settings that were measured at every value.

    Where something else varies too, a mean over whatever happens to be there would compare different things.
    """
    values = {record.key: number for record in records if (number := value_of(record, measure.key)) is not None}
    measured = [record for record in records if record.key in values]
    series = []
    for label, trials in grouped(measured, lambda record: labels[record.key]).items():
        points = [
            Mark(
                against.place(record),
                values[record.key],
                f"{record.name}, defense {record.defense}, seed {record.seed}: "
                f"{measure.title} {measure.show(values[record.key])}",
            )
            for record in trials
        ]
        series.append(Series(name=label, style=styles[label], points=points, line=False))
        by_place = dict(sorted(grouped(trials, against.place).items()))
        common = set.intersection(*({against.setting(record) for record in found} for found in by_place.values()))
        if len(by_place) < 2 or not common or not against.numeric:
            continue
        means = []
        for place, found in by_place.items():
            mean = statistics.fmean(values[record.key] for record in found if against.setting(record) in common)
            text = f"{against.title} {against.names[place]}: mean {measure.title} {measure.show(mean)}"
            means.append(Mark(place, mean, text))
        series.append(Series(name=label, style=styles[label], points=means, marks=False))
    return chart(
        measure.title,
        against.title,
        f"{measure.title} in dB" if measure.key == "psnr" else measure.title,
        series,
        x_axis=against.axis,
        y_range=() if measure.key == "psnr" else (0.0, 1.0),
        rules=rules(measured, measure.key) if measure.key in ("psnr", "ssim") else (),
        size=SMALL,
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
