"""Charts: axes that tell the truth, lines through what may be compared, nothing made up."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undelta.report.charts import MOST_MARKS, MOST_POINTS, Chart, Mark, Panel, Series, chart
from undelta.report.curves import curves, with_result
from undelta.report.pictures import spread_out
from undelta.report.read import Audit
from undelta.report.tables import attack_labels
from undelta.report.ticks import linear_axis, log_axis, named_axis
from undelta.report.trends import trends, varying
from undelta.report.tuning import tuning
from undelta.trials.record import Quality, Record
from undelta.trials.tuning_file import Evaluation, TuningFile

FINITE = st.floats(-1e12, 1e12)
ANY = st.floats(allow_nan=False, allow_infinity=False)
POSITIVE = st.floats(1e-12, 1e12)


# Axes


@given(st.lists(FINITE, min_size=1, max_size=5))
def test_a_linear_axis_holds_its_values_between_ticks_that_rise(values: list[float]) -> None:
    axis = linear_axis(values, 0, 100)
    ticks = [value for value, _ in axis.ticks]
    assert ticks == sorted(ticks)
    assert 2 <= len(ticks) <= 8
    slack = 1e-6 * (axis.high - axis.low)
    assert axis.low - slack <= min(values) <= max(values) <= axis.high + slack
    assert all(-0.1 <= axis.position(value) <= 100.1 for value in values)


@given(st.lists(POSITIVE, min_size=1, max_size=5))
def test_a_logarithmic_axis_holds_its_values(values: list[float]) -> None:
    axis = log_axis(values, 0, 100)
    assert all(0 <= axis.position(value) <= 100 for value in values)
    assert all(0 <= axis.position(tick) <= 100 for tick, _ in axis.ticks)
    assert len(axis.ticks) <= 10


@given(st.lists(st.tuples(ANY, ANY), min_size=1, max_size=5), st.booleans())
def test_no_number_is_too_extreme_for_a_chart(values: list[tuple[float, float]], log: bool) -> None:
    drawn = chart("", "", "", [Series(name="", style=0, points=[Mark(x, y, "") for x, y in values])], log_y=log)
    if drawn is not None:
        marks = [mark for line in drawn.lines for mark in line.marks]
        assert all(math.isfinite(mark.x) and math.isfinite(mark.y) for mark in marks)
        assert 2 <= len(drawn.x.ticks) <= 9
        assert len(drawn.y.ticks) <= 12


def test_equal_ratios_are_equal_lengths_on_a_logarithmic_axis() -> None:
    axis = log_axis([0.001, 1.0], 0, 300)
    assert axis.position(0.1) - axis.position(0.01) == pytest.approx(axis.position(1) - axis.position(0.1), abs=0.2)
    assert [text for _, text in axis.ticks] == ["0.001", "0.01", "0.1", "1"]


def test_round_ticks() -> None:
    assert [text for _, text in linear_axis([0, 200], 0, 1).ticks] == ["0", "50", "100", "150", "200"]
    assert [text for _, text in linear_axis([0.0, 0.31], 0, 1).ticks] == ["0", "0.1", "0.2", "0.3", "0.4"]


# Lines


def test_larger_values_are_higher_up_and_later_ones_further_right() -> None:
    series = Series(name="a", style=0, points=[Mark(0, 1.0, "first"), Mark(10, 3.0, "last")])
    drawn = chart("", "", "", [series])
    assert drawn is not None
    first, last = drawn.lines[0].marks
    assert first.x < last.x
    assert first.y > last.y  # pixels count from the top
    assert (first.text, last.text) == ("first", "last")


def test_values_without_a_logarithm_are_left_out_and_counted() -> None:
    series = Series(name="a", style=0, points=[Mark(0, 1.0, "x"), Mark(1, 0.0, "y"), Mark(2, 0.1, "z")])
    drawn = chart("", "", "", [series], log_y=True)
    assert drawn is not None
    assert [mark.text for mark in drawn.lines[0].marks] == ["x", "z"]
    assert drawn.note.startswith("1 values")


def test_nothing_to_draw_is_no_chart() -> None:
    assert chart("", "", "", [Series(name="a", style=0, points=[])]) is None
    assert chart("", "", "", [Series(name="a", style=0, points=[Mark(0, -1.0, "x")])], log_y=True) is None


def test_long_lines_keep_their_ends() -> None:
    count = 1000
    points = [Mark(index, index, str(index)) for index in range(count)]
    drawn = chart("", "", "", [Series(name="a", style=0, points=points)])
    assert drawn is not None
    (line,) = drawn.lines
    assert line.path.count(",") == MOST_POINTS
    assert len(line.marks) == MOST_MARKS
    assert (line.marks[0].text, line.marks[-1].text) == ("0", "999")


@given(st.integers(0, 50), st.integers(1, 20))
def test_spread_out_places_rise_from_the_first_to_the_last(count: int, most: int) -> None:
    places = spread_out(count, most)
    assert places == sorted(set(places))
    assert len(places) == min(count, most)
    if count:
        assert places[0] == 0
    if most > 1 and count:
        assert places[-1] == count - 1


def test_names_on_an_axis_are_cut_to_their_slot() -> None:
    series = Series(name="a", style=0, points=[Mark(0, 1.0), Mark(1, 2.0)])
    names = ["none", "a defense with a very long name, longer than any slot"]
    drawn = chart("", "", "", [series], x_axis=partial(named_axis, names))
    assert drawn is not None
    texts = [text for _, text in drawn.x.ticks]
    assert texts[0] == "none"
    assert texts[1].endswith("…")
    assert len(texts[1]) < 30


# Curves


def test_curves_show_each_measured_value_over_both_axes(read: Audit) -> None:
    trials = [record for record in read.records if record.group == ("epochs=1", "none")]
    labels = attack_labels(read.records)
    found = curves(trials, labels, {"awa": 0, "ig": 1, "analytic": 2})
    assert [one.title for one in found] == ["iterations", "seconds"]
    for one in found:
        mismatch, psnr = one.charts
        assert mismatch.y.log
        assert not psnr.y.log
        assert len(mismatch.lines) == len(psnr.lines) == 4  # two attacks, two seeds; one attack was not applicable
        assert [name for _, name in mismatch.legend] == ["awa", "ig"]
    record = trials[0]
    last = found[0].charts[1].lines[0].marks[-1]
    assert last.text.endswith(f"PSNR {record.psnr:.2f} dB")


def points(*iterations: int) -> tuple[Quality, ...]:
    return tuple(Quality(iteration=iteration, seconds=1.0 * iteration, psnr=1.0) for iteration in iterations)


def test_the_result_ends_a_curve_but_not_that_of_one_restart_among_several(read: Audit) -> None:
    record = replace(read.records[0], curve=points(0, 10, 30, 60), iterations=100, seconds=99.0)
    ended = with_result(record)
    assert (ended[-1].iteration, ended[-1].psnr) == (100, record.psnr)
    assert [point.iteration for point in with_result(replace(record, iterations=300))] == [0, 10, 30, 60]
    assert with_result(replace(record, curve=())) == ()


# Trends


def shown(records: tuple[Record, ...]) -> dict[str, Panel]:
    labels = attack_labels(records)
    found = trends(records, labels, {label: index for index, label in enumerate(dict.fromkeys(labels.values()))})
    return {trend.title: trend for trend in found}


def lines_of(drawn: Chart, name: str) -> tuple[int, int]:
    """Marks and lines of an attack."""
    mine = [line for line in drawn.lines if line.name == name]
    return sum(len(line.marks) for line in mine), sum(bool(line.path) for line in mine)


def test_every_field_that_varies_has_its_charts(read: Audit) -> None:
    assert varying(read.records) == ["epochs", "learning_rate"]
    found = shown(read.records)
    assert list(found) == ["epochs E", "defense"]  # the defense is what changes the learning rate
    for name, trend in found.items():
        # LPIPS was not measured without its weights, or was with them: never drawn from nothing.
        measured = 3 + any(record.lpips is not None for record in read.records)
        assert len(trend.charts) == measured
        # Undefended trials alone, joined by a line; or all of them, and none between names.
        assert lines_of(trend.charts[0], "awa") == ((4, 1) if name == "epochs E" else (8, 0))
        assert lines_of(trend.charts[0], "analytic") == (0, 0)


def test_charts_show_what_to_compare_with(read: Audit) -> None:
    psnr, ssim, *_ = shown(read.records)["defense"].charts
    assert [rule.name for rule in psnr.rules] == ["recovered", "mean color", "pure noise"]
    assert [rule.name for rule in ssim.rules] == ["recognizable", "mean color", "pure noise"]
    assert psnr.rules[0].value == 20
    assert psnr.y.low <= min(rule.value for rule in psnr.rules)
    assert psnr.y.high >= 20
    assert (ssim.y.low, ssim.y.high) == (0, 1)  # no zoom into noise


def test_nothing_varies_in_a_single_scenario(read: Audit) -> None:
    assert shown(tuple(record for record in read.records if record.group == ("epochs=1", "none"))) == {}


def valued(record: Record, psnr: float, **fields: Any) -> Record:
    scenario = {**record.scenario, **fields}
    return replace(record, psnr=psnr, scenario=scenario, defense="none")


def test_means_compare_only_what_was_measured_at_every_value(read: Audit) -> None:
    one = read.records[0]
    records = (
        replace(valued(one, 10.0, epochs=1, batches=1), key="a"),
        replace(valued(one, 20.0, epochs=4, batches=1), key="b"),
        replace(valued(one, 90.0, epochs=4, batches=2), key="c"),  # nothing at epochs=1 compares with it
    )
    epochs = shown(records)["epochs E"].charts[0]
    line = next(line for line in epochs.lines if line.path)
    assert [mark.text for mark in line.marks] == []
    ends = [float(pair.split(",")[1]) for pair in line.path[1:].split()]
    assert ends == [epochs.y.position(10.0), epochs.y.position(20.0)]
    assert lines_of(epochs, "awa") == (3, 1)


def test_no_line_joins_trials_that_differ_in_something_else_too(read: Audit) -> None:
    one = read.records[0]
    records = (
        replace(valued(one, 10.0, epochs=1, batches=1), key="a"),
        replace(valued(one, 20.0, epochs=4, batches=2), key="b"),
    )
    assert lines_of(shown(records)["epochs E"].charts[0], "awa") == (2, 0)


def test_wide_ranges_of_a_field_get_a_logarithmic_axis(read: Audit) -> None:
    one = read.records[0]
    values = (0.001, 0.01, 0.1)
    records = tuple(replace(valued(one, 10.0, learning_rate=value), key=str(value)) for value in values)
    axis = shown(records)["learning rate"].charts[0].x
    assert axis.log
    middle = (axis.position(0.001) + axis.position(0.1)) / 2
    assert axis.position(0.01) == pytest.approx(middle, abs=0.2)
    assert [text for _, text in axis.ticks] == ["0.001", "0.01", "0.1"]


def test_fields_that_are_no_numbers_are_shown_by_name(read: Audit) -> None:
    one = read.records[0]
    records = tuple(replace(valued(one, 10.0, model=model), key=model) for model in ("cnn", "lenet"))
    assert [text for _, text in shown(records)["model"].charts[0].x.ticks] == ["cnn", "lenet"]


# Tuning


def test_the_cumulative_minimum_never_rises() -> None:
    values = [0.5, 0.7, None, 0.3, 0.4]
    trials = (Evaluation(number=number, value=value, parameters={"q": number}) for number, value in enumerate(values))
    found = tuning(TuningFile(trials=tuple(trials)))
    assert found is not None
    assert (found.best.number, found.trials, found.failed) == (3, 5, 1)
    scatter, stairs = found.chart.lines
    assert len(scatter.marks) == 4
    heights = [float(pair.split(",")[1]) for pair in stairs.path[1:].split()]
    assert heights == sorted(heights)  # pixels count from the top: values fall
    assert heights[-1] == found.chart.y.position(0.3)


def test_where_more_is_better_the_cumulative_maximum_never_falls() -> None:
    trials = (Evaluation(number=number, value=value, parameters={}) for number, value in enumerate([9.0, 7.0, 12.0]))
    found = tuning(TuningFile(trials=tuple(trials), direction="maximize"))
    assert found is not None
    assert (found.best.number, found.superlative) == (2, "largest")
    assert found.chart.title == "Cumulative maximum of the objective"
    heights = [float(pair.split(",")[1]) for pair in found.chart.lines[1].path[1:].split()]
    assert heights == sorted(heights, reverse=True)


def test_trials_ended_early_are_told_from_those_that_failed() -> None:
    states = [("completed", 0.5), ("pruned", None), ("pruned", None), ("diverged", None)]
    trials = tuple(
        Evaluation(number=number, value=value, parameters={}, state=state)
        for number, (state, value) in enumerate(states)
    )
    found = tuning(TuningFile(trials=trials, importance={"conv": 0.2, "linear": 0.8, "odd": -3.0}))
    assert found is not None
    assert (found.trials, found.pruned, found.failed) == (4, 2, 1)
    assert found.importance == (("linear", 0.8, 80.0), ("conv", 0.2, 20.0), ("odd", -3.0, 0.0))


@pytest.mark.parametrize("values", [[], [None]])
def test_without_a_value_there_is_no_history_of_tuning(values: list[float | None]) -> None:
    trials = tuple(Evaluation(number=0, value=value, parameters={}) for value in values)
    assert tuning(TuningFile(trials=trials)) is None


def test_positions_are_finite_for_a_single_point() -> None:
    drawn = chart("", "", "", [Series(name="a", style=0, points=[Mark(3, 0.0, "x")])])
    assert drawn is not None
    mark = drawn.lines[0].marks[0]
    assert math.isfinite(mark.x)
    assert math.isfinite(mark.y)
