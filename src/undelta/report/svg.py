"""A chart as a picture file of its own: SVG with its style inside, for documents and slides."""

from __future__ import annotations

import re
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from undelta.report.charts import Chart

PARTS = Path(__file__).parent / "page"
LEGEND = 18  # height of a line of the legend
_COLOR = re.compile(r"(--c\d): light-dark\((#\w+),")
_STYLE = re.compile(r"^\.s\d .*$", re.MULTILINE)


def svg(chart: Chart) -> str:
    """The chart with its title above and its legend below."""
    page = (PARTS / "style.css").read_text("utf-8")
    colors = "".join(f"{name}: {color}; " for name, color in _COLOR.findall(page))
    environment = Environment(
        loader=FileSystemLoader(PARTS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("figure.svg").render(
        chart=chart,
        height=chart.size[1] + LEGEND * (len(chart.legend) + 2),
        line=LEGEND,
        style=f"svg {{ {colors}}}\n" + "\n".join(_STYLE.findall(page)),
    )
