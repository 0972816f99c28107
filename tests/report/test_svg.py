"""A chart as a file: well-formed, complete, and with the page's own colors."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from functools import partial

from undelta.report.charts import Mark, Series, chart
from undelta.report.svg import svg
from undelta.report.ticks import named_axis

SVG = "{http://www.w3.org/2000/svg}"


def drawn() -> str:
    series = [
        Series(name="ours & theirs", style=0, points=[Mark(0, 1, "one"), Mark(1, 3, "<two>")]),
        Series(name="paper", style=7, points=[Mark(0, 2, "three")]),
    ]
    found = chart("A <chart>", "x", "y", series, x_axis=partial(named_axis, ["a", "b"]))
    assert found is not None
    return svg(found)


def test_a_chart_is_a_picture_of_its_own() -> None:
    root = ET.fromstring(drawn())  # noqa: S314 (our own text)
    words = [element.text for element in root.iter(f"{SVG}text")]
    assert words[0] == "A <chart>"
    assert {"a", "b", "x", "y", "ours & theirs", "paper"} <= set(words)
    marks = [use.get("href", "") for use in root.iter(f"{SVG}use")]
    assert sorted(marks) == ["#mark0"] * 3 + ["#mark7"] * 2  # a mark per point and one in the legend
    defined = {path.get("id") for path in root.iter(f"{SVG}path")}
    assert {"mark0", "mark7"} <= defined
    assert {title.text for title in root.iter(f"{SVG}title")} == {"one", "<two>", "three"}


def test_everything_lies_within_the_picture() -> None:
    root = ET.fromstring(drawn())  # noqa: S314
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    for use in root.iter(f"{SVG}use"):
        assert 0 < float(use.get("x", -1)) < width
        assert 0 < float(use.get("y", -1)) < height - 5


def test_colors_and_dashes_are_those_of_the_page() -> None:
    style = next(ET.fromstring(drawn()).iter(f"{SVG}style")).text or ""  # noqa: S314
    assert "--c0: #0b5fa5; " in style
    assert style.count("--c") == 8 + 8  # defined once and used once
    assert ".s7 { color: var(--c7); } .s7 .line { stroke-dasharray:" in style
    assert "light-dark" not in style
