"""Charts as positions: lines with marks over two axes. The page's template draws them as SVG.

Lines are told apart by color, dashes and the shape of their marks, so that color alone is never needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from undelta.report.pictures import spread_out
from undelta.report.ticks import Axis, linear_axis, log_axis, short

LARGE = (460, 270)
SMALL = (330, 240)
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 14, 46
STYLES = 8
"""Combinations of color, dashes and marks that the page's style sheet knows."""
MOST_POINTS = 150  # of a line; more cannot be seen
MOST_MARKS = 12
LETTER = 7  # width of one, about
LINE = 10  # height of a label


@dataclass(frozen=True, kw_only=True)
class Series:
    """Values to draw."""

    name: str
    style: int
    points: Sequence[tuple[float, float]]
    texts: Sequence[str]
    """What each point says when pointed at."""
    line: bool = True
    marks: bool = True
    stairs: bool = False
    """Whether values stay until the next one."""
    labels: Sequence[str] = ()
    """What is written beside each point, if anything."""


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A point that can be pointed at."""

    x: float
    y: float
    text: str
    label: str = ""
    label_at: tuple[float, float] = (0.0, 0.0)


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
    note: str = ""

    @property
    def box(self) -> tuple[int, int, int, int]:
        """Left, right, top and bottom of the plot."""
        return _box(self.size)

    @property
    def legend(self) -> list[tuple[int, str]]:
        """Style and name of each group of lines that look alike."""
        names: dict[int, str] = {}
        for line in self.lines:
            names.setdefault(line.style, line.name)
        return list(names.items())


def chart(
    title: str,
    x_title: str,
    y_title: str,
    series: Sequence[Series],
    *,
    log_y: bool = False,
    x_values: Sequence[tuple[float, str]] = (),
    log_x: bool = False,
    categories: Sequence[str] = (),
    y_range: tuple[float, ...] = (),
    size: tuple[int, int] = LARGE,
) -> Chart | None:
    """Lay the series out; None if there is nothing to draw.

    Args:
        title: What it shows.
        x_title: Below the axis.
        y_title: Beside the axis.
        series: What to draw. On a logarithmic axis values that are not positive are left out, and a note says so.
        log_y: Whether the vertical axis is logarithmic.
        x_values: Ticks at these places rather than at round numbers.
        log_x: Whether the horizontal axis is logarithmic.
        categories: Names for the places 0, 1, 2, ... of an axis that has no numbers.
        y_range: Values that the vertical axis shows in any case.
        size: Width and height in pixels, to be scaled by the page.
    """
    kept = [_positive(one) for one in series] if log_y else list(series)
    lost = sum(len(one.points) for one in series) - sum(len(one.points) for one in kept)
    kept = [one for one in kept if one.points]
    if not kept:
        return None
    xs = [x for one in kept for x, _ in one.points]
    ys = [*(y for one in kept for _, y in one.points), *y_range]
    left, right, top, bottom = _box(size)
    if categories:
        x_axis = _slots(categories, left, right)
    else:
        x_axis = _given(x_values, left, right, log=log_x) if x_values else linear_axis(xs, left, right)
    y_axis = log_axis(ys, bottom, top) if log_y else linear_axis(ys, bottom, top)
    note = f"{lost} values that are not positive have no place on this logarithmic axis." if lost else ""
    lines = _labeled([_line(one, x_axis, y_axis) for one in kept])
    return Chart(title=title, x_title=x_title, y_title=y_title, x=x_axis, y=y_axis, lines=lines, note=note, size=size)


def _box(size: tuple[int, int]) -> tuple[int, int, int, int]:
    return LEFT, size[0] - RIGHT, TOP, size[1] - BOTTOM


def _positive(series: Series) -> Series:
    kept = [index for index, (_, y) in enumerate(series.points) if y > 0]
    return Series(
        name=series.name,
        style=series.style,
        points=[series.points[index] for index in kept],
        texts=[series.texts[index] for index in kept],
        line=series.line,
        marks=series.marks,
        stairs=series.stairs,
    )


def _given(values: Sequence[tuple[float, str]], left: float, right: float, *, log: bool) -> Axis:
    """An axis with ticks at the values that were measured; half a step of air on both sides."""
    places = [value for value, _ in values]
    low, high = min(places), max(places)
    if low == high:
        low, high = (low / 2, high * 2) if log else (low - 1, high + 1)
    air = (right - left) * 0.08
    bare = Axis(low=low, high=high, start=left + air, end=right - air, log=log)
    ticks: list[tuple[float, str]] = []
    free = -math.inf
    for value, text in values:
        # Labels that would overlap are left out; the grid line stays.
        half = LETTER * (len(text) + 1) / 2
        fits = bare.position(value) - half >= free
        ticks.append((value, text if fits else ""))
        free = bare.position(value) + half if fits else free
    return Axis(low=low, high=high, start=left + air, end=right - air, log=log, ticks=tuple(ticks))


def _slots(names: Sequence[str], left: float, right: float) -> Axis:
    """An axis of names, each with as much room as the others; what does not fit is cut, and marks say it in full."""
    half = (right - left) / len(names) / 2
    most = max(1, int(2 * half / LETTER) - 1)
    texts = [name if len(name) <= most else name[: most - 1] + "…" for name in names]
    last = max(1, len(names) - 1)  # a single name sits at the start of a range that is never empty
    end = right - half if len(names) > 1 else right
    return Axis(low=0, high=last, start=left + half, end=end, ticks=tuple(enumerate(texts)))


def _line(series: Series, x: Axis, y: Axis) -> Line:
    count = len(series.points)
    places = [(x.position(a), y.position(b)) for a, b in series.points]
    path = ""
    if series.line and count > 1:
        drawn = [places[index] for index in spread_out(count, MOST_POINTS)]
        if series.stairs:
            drawn = [
                corner
                for before, after in zip(drawn, [*drawn[1:], drawn[-1]], strict=True)
                for corner in (before, (after[0], before[1]))
            ]
        path = "M" + " ".join(f"{short(a)},{short(b)}" for a, b in drawn)
    shown = spread_out(count, MOST_MARKS if series.line else count) if series.marks else []
    labels = series.labels or [""] * count
    marks = tuple(
        Mark(x=places[index][0], y=places[index][1], text=series.texts[index], label=labels[index]) for index in shown
    )
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
                return replace(mark, label_at=at)
        return replace(mark, label="")

    return tuple(replace(line, marks=tuple(map(place, line.marks))) for line in lines)
