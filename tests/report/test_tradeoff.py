"""The trade-off of `undelta defend` on the page: a table, and a chart with the Pareto front."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from undelta.errors import DataError
from undelta.report import write_report
from undelta.report.charts import Mark, Series, chart
from undelta.report.tradeoff import columns, rows, tradeoff_chart
from undelta.trials.bound_file import Bounded, Limit
from undelta.trials.tradeoff import Point, Tradeoff, compare, read_tradeoff, sentences

from .audits import AuditCopy
from .browsing import Browser, find, find_all

UNSET: dict[str, Any] = {
    "attack": "awa",
    "worst_psnr": 31.5,
    "worst_ssim": None,
    "fraction_recovered": 0.5,
    "recognizable": 1,
    "images": 2,
    "accuracies": (),
    "epsilon": None,
    "epsilon_in_all": None,
    "delta": None,
}


def point(defense: str, psnr: float | None, accuracy: float | None, **fields: Any) -> Point:
    return Point(defense=defense, psnr=psnr, accuracy=accuracy, **{**UNSET, **fields})


def tradeoff(**fields: Any) -> Tradeoff:
    reference = point("pure noise", 9.0, 0.1)
    points = [
        point("none", 25.0, 0.9),
        point("<b>clipping</b>", 25.5, 0.8),
        point("private", 9.5, 0.3, epsilon=7.99, epsilon_in_all=31.0, delta=1e-5),
        point("unmeasured", None, None),
    ]
    values: dict[str, Any] = {"name": "A", "rounds": 5, "seeds": (0, 1), "test_images": 120, "reference": reference}
    values |= {"date": "2026-01-01T00:00:00+00:00", "versions": {}}
    return Tradeoff(**{**values, "points": compare(points, reference), "notes": ("left out: x",), **fields})


def write(path: Path, values: Any) -> Path:
    path.write_text(json.dumps(values))
    return path


def test_a_directory_without_one_has_none(tmp_path: Path) -> None:
    assert read_tradeoff(tmp_path) is None


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    write(tmp_path / "defend.json", asdict(tradeoff()))
    read = read_tradeoff(tmp_path)
    assert read == tradeoff()
    shown = rows(read)
    assert [one.point.defense for one in shown] == ["none", "<b>clipping</b>", "private", "unmeasured", "pure noise"]
    assert [one.standing for one in shown] == ["Pareto front", "", "Pareto front, noise level", "", "reference"]
    assert [text for _, text in shown[2].cells] == ["30.0%", "9.50", "31.50", "n/a", "50%", "7.99", "31"]
    assert [text for _, text in shown[3].cells][:2] == ["n/a", "n/a"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, "schema: unknown value '2'"),
        ({"rounds": "5"}, "rounds: expected a whole number"),
        ({"points": [{**vars(point("a", 1.0, 0.5)), "defense": 3}]}, "defense: expected a text"),
        ({"points": [{**vars(point("a", 1.0, 0.5)), "pareto": "yes"}]}, "pareto: expected true or false"),
        ({"points": [{"defense": "a"}]}, "missing psnr"),
        ({"reference": None}, "reference: expected a table"),
    ],
)
def test_a_damaged_one_is_a_line_that_names_the_file(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    write(tmp_path / "defend.json", {**asdict(tradeoff()), **change})
    with pytest.raises(DataError, match=rf"defend\.json: .*{message}"):
        read_tradeoff(tmp_path)


def test_the_chart_has_the_front_as_a_line_and_names_points_by_number(tmp_path: Path) -> None:
    write(tmp_path / "defend.json", asdict(tradeoff()))
    read = read_tradeoff(tmp_path)
    assert read is not None
    drawn = tradeoff_chart(read)
    assert drawn is not None
    front, others, nothing = drawn.lines
    assert [mark.label for mark in front.marks] == ["3", "1"]  # from left to right
    assert front.path
    assert front.marks[0].x < front.marks[1].x
    assert front.marks[0].y > front.marks[1].y, "less leakage is further down"
    assert not others.path
    assert "<b>clipping</b>, accuracy 80.0%, PSNR 25.50 dB" in others.marks[0].text
    assert [mark.label for mark in nothing.marks] == ["5"]


def test_without_any_accuracy_there_is_a_table_and_no_chart(tmp_path: Path) -> None:
    alone = tradeoff(points=(point("none", 25.0, None),), reference=point("pure noise", 9.0, None))
    write(tmp_path / "defend.json", asdict(alone))
    read = read_tradeoff(tmp_path)
    assert read is not None
    assert tradeoff_chart(read) is None


def test_ceilings_are_columns_and_marks_where_they_were_asked_for() -> None:
    numbers: dict[str, Any] = {"seed": 0, "sigma": 0.01, "update_rms": 0.02, "least_mse": 16.5, "error": 0.2}
    row = Bounded(**numbers, bound=27.0, gap=0.1, images=(27.0,), linear=(28.5,), fixed=0.2, products=40, reached=25.0)
    tight, loose = Limit(row=row), Limit(row=replace(row, gap=9.0))
    points = (
        point("none", 25.0, 0.9, bound=loose),
        point("noisy", 25.0, 0.8, bound=tight),
        point("mixed up", 12.0, 0.7, bound=Limit(reason="got mixup")),
    )
    read = tradeoff(points=points)
    assert [column.title for column in columns(read)][1:4] == ["PSNR", "Ceiling", "Headroom"]
    shown = [[text for _, text in one.cells][2:4] for one in rows(read)]
    assert shown == [["<28.5", "<3.5"], ["28.5", "3.5"], ["n/a", "n/a"], ["n/a", "n/a"]]
    assert "Ceiling" not in [column.title for column in columns(tradeoff())]
    drawn = tradeoff_chart(read)
    assert drawn is not None
    assert [mark.text for mark in drawn.lines[-1].marks] == ["noisy, accuracy 80.0%, ceiling 28.50 dB"]
    assert "No bound for mixed up: got mixup." in sentences(read)


def test_labels_do_not_lie_on_each_other() -> None:
    places = [(1.0, 1.0)] * 6 + [(2.0, 2.0)]
    points = [Mark(x, y, "t", str(n)) for n, (x, y) in enumerate(places)]
    series = Series(name="a", style=0, points=points, line=False)
    drawn = chart("t", "x", "y", [series])
    assert drawn is not None
    shown = [mark for mark in drawn.lines[0].marks if mark.label]
    assert len(shown) == 5, "four around the first place, one at the other"
    assert len({mark.label_at for mark in shown}) == 5


def test_the_page_has_it_and_escapes_names(audit: AuditCopy) -> None:
    write(audit.path / "defend.json", asdict(tradeoff()))
    page = write_report(audit.path).read_text()
    section = page[page.index('<section id="tradeoff"') : page.index('<section id="summary"')]
    assert 'href="#tradeoff"' in page
    assert section.count("<tr") == 6
    assert "&lt;b&gt;clipping&lt;/b&gt;" in section
    assert "<b>clipping" not in section
    assert re.search(r"after 5 rounds.*on\s+120 images", section)


def test_a_page_without_it_does_not_mention_it(finished: Path, written: Path) -> None:
    assert "tradeoff-title" not in written.read_text()


def test_a_reader_sees_chart_and_table(audit: AuditCopy, browser: Browser) -> None:
    write(audit.path / "defend.json", asdict(tradeoff()))
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.get_log("browser")  # type: ignore[no-untyped-call]  # what other pages said
    browser.get(write_report(audit.path).as_uri())
    labels = [label.text for label in find_all(browser, "#tradeoff .label")]
    assert sorted(labels) == ["1", "2", "3", "5"]
    find(browser, "#defenses th:nth-child(3) button").click()  # by accuracy
    rows = [row.text for row in find_all(browser, "#defenses tbody th")]
    assert rows.index("private") < rows.index("<b>clipping</b>") < rows.index("none")
    chart_box, page = find(browser, "#tradeoff svg").rect, find(browser, "main").rect
    assert chart_box["width"] <= page["width"]
    assert not [line for line in browser.get_log("browser") if line["level"] == "SEVERE"]  # type: ignore[no-untyped-call]
