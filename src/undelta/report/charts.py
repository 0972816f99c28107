"""Charts as positions: lines with marks over two axes. The templates draw them as SVG.

Lines are told apart by color, dashes and the shape of their marks, so that color alone is never needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from undelta.report.pictures import spread_out
from undelta.report.ticks import LETTER, Axis, linear_axis, log_axis, short

LARGE = (460, 270)
SMALL = (330, 240)
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 14, 46
STYLES = 8
"""Combinations of color, dashes and marks that the page's style sheet knows."""
MOST_POINTS = 150  # of a line; more cannot be seen
MOST_MARKS = 12
LINE = 10  # height of a label


class Rule(NamedTuple):
    """A value to compare with, drawn across the chart."""

    value: float
    name: str


class Mark(NamedTuple):
    """A point that can be pointed at: of a series in its own units, of a line in pixels."""

    x: float
    y: float
    text: str = ""
    """What it says when pointed at."""
    label: str = ""
    """What is written beside it, if anything."""
    label_at: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True, kw_only=True)
class Series:
    """Values to draw."""

    name: str
    style: int
    points: Sequence[Mark]
    line: bool = True
    marks: bool = True
    stairs: bool = False
    """Whether values stay until the next one."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """A series on its way to the page."""

    name: str
    style: int
    path: str
    marks: tuple[Mark, ...]


@dataclass(frozen=True, kw_only=True)
class Chart:
    """All that the template needs."""

    title: str
    x_title: str
    y_title: str
    x: Axis
    y: Axis
    lines: tuple[Line, ...]
    size: tuple[int, int]
    box: tuple[int, int, int, int]
    """Left, right, top and bottom of the plot."""
    rules: tuple[Rule, ...] = ()
    note: str = ""

    @property
    def legend(self) -> list[tuple[int, str]]:
        """Style and name of each group of lines that look alike."""
        names: dict[int, str] = {}
        for line in self.lines:
            names.setdefault(line.style, line.name)
        return list(names.items())


class Panel(NamedTuple):
    """Charts that are shown side by side, over the same horizontal axis."""

    title: str
    charts: tuple[Chart, ...]


FARTHEST = 1e100  # from zero, or on a logarithmic axis as near to it: beyond lies no measurement


def chart(
    title: str,
    x_title: str,
    y_title: str,
    series: Sequence[Series],
    *,
    x_axis: Callable[[float, float], Axis] | None = None,
    log_y: bool = False,
    y_range: tuple[float, ...] = (),
    rules: Sequence[Rule] = (),
    size: tuple[int, int] = LARGE,
) -> Chart | None:
    """Lay the series out; None if there is nothing to draw.

    The horizontal axis has round ticks, unless ``x_axis`` makes another one between two positions. The vertical one
    shows ``y_range`` and all ``rules`` in any case, so that no small difference looks large; values without a place on
    a logarithmic one are left out, and a note says so.
    """
    least = 1 / FARTHEST if log_y else -FARTHEST
    kept = [
        replace(one, points=[at for at in one.points if least <= at.y <= FARTHEST and abs(at.x) <= FARTHEST])
        for one in series
    ]
    lost = sum(len(one.points) for one in series) - sum(len(one.points) for one in kept)
    kept = [one for one in kept if one.points]
    if not kept:
        return None
    points = [point for one in kept for point in one.points]
    left, right, top, bottom = box = LEFT, size[0] - RIGHT, TOP, size[1] - BOTTOM
    x = x_axis(left, right) if x_axis else linear_axis([point.x for point in points], left, right)
    shown = [*y_range, *(rule.value for rule in rules)]
    y = (log_axis if log_y else linear_axis)([*(point.y for point in points), *shown], bottom, top)
    return Chart(
        title=title,
        x_title=x_title,
        y_title=y_title,
        x=x,
        y=y,
        lines=_labeled([_line(one, x, y) for one in kept]),
        size=size,
        box=box,
        rules=tuple(rules),
        note=f"{lost} values have no place on {'this logarithmic' if log_y else 'an'} axis." if lost else "",
    )


def _line(series: Series, x: Axis, y: Axis) -> Line:
    places = [point._replace(x=x.position(point.x), y=y.position(point.y)) for point in series.points]
    count = len(places)
    path = ""
    if series.line and count > 1:
        drawn = [places[index][:2] for index in spread_out(count, MOST_POINTS)]
        if series.stairs:
            drawn = [
                corner
                for before, after in zip(drawn, [*drawn[1:], drawn[-1]], strict=True)
                for corner in (before, (after[0], before[1]))
            ]
        path = "M" + " ".join(f"{short(a)},{short(b)}" for a, b in drawn)
    shown = spread_out(count, MOST_MARKS if series.line else count) if series.marks else []
    marks = tuple(places[index] for index in shown)
    return Line(name=series.name, style=series.style % STYLES, path=path, marks=marks)


def _labeled(lines: Sequence[Line]) -> tuple[Line, ...]:
    """Labels beside their marks where there is room; one that would lie on another is left out, its mark says it."""
    taken: list[tuple[float, float]] = []

    def place(mark: Mark) -> Mark:
        width = LETTER * len(mark.label)
        for across, down in ((5, -4), (5, 12), (-5 - width, -4), (-5 - width, 12)):
            at = (mark.x + across, mark.y + down)
            if mark.label and all(abs(at[0] - x) > 2 * LETTER or abs(at[1] - y) > LINE for x, y in taken):
                taken.append(at)
                return mark._replace(label_at=at)
        return mark._replace(label="")

    return tuple(replace(line, marks=tuple(map(place, line.marks))) for line in lines)
