"""A chart as a picture file of its own: SVG with its style inside, for documents and slides."""

from __future__ import annotations

import re

from undelta.report.charts import Chart
from undelta.report.templates import PARTS, fill

_COLOR = re.compile(r"(--c\d): light-dark\((#\w+),")
_STYLE = re.compile(r"^\.s\d .*$", re.MULTILINE)


def svg(chart: Chart) -> str:
    """The chart with its title above and its legend below."""
    page = (PARTS / "style.css").read_text("utf-8")
    colors = "".join(f"{name}: {color}; " for name, color in _COLOR.findall(page))
    return fill("figure.svg", chart=chart, style=f"svg {{ {colors}}}\n" + "\n".join(_STYLE.findall(page)))
