"""The page: values into the template; style, script and pictures inside, so that it needs nothing else.

Text from records reaches the page through the template's escaping only. The page's policy forbids it to load anything,
and to run any script but the one whose hash it names.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from PIL import Image

from undelta.errors import DataError
from undelta.report.charts import Chart
from undelta.report.curves import Curves, curves
from undelta.report.grids import Exhibit, Grid, Row, exhibit, make_grids
from undelta.report.read import Audit
from undelta.report.repeat import command
from undelta.report.tables import AVERAGED, MEASURES, Setting, grouped, value_of
from undelta.report.tradeoff import COLUMNS, rows, tradeoff_chart
from undelta.report.trends import trends
from undelta.report.tuning import tuning
from undelta.report.words import LIMITS
from undelta.trials.record import Record
from undelta.trials.verdict import Verdict

PARTS = Path(__file__).parent / "page"
SCRIPTS = ("tables.js", "pictures.js", "charts.js", "page.js")
MOST_SHEET = 3_000_000  # bytes of a run's contact sheet that a page takes in


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The layer weights that an attack used, for the seeds that share them."""

    label: str
    values: Mapping[str, float]
    seeds: tuple[int, ...]

    @property
    def bars(self) -> list[tuple[str, float, float]]:
        """Name, weight, and length of the bar in percent of the longest."""
        longest = max(map(abs, self.values.values())) or 1.0
        return [(name, weight, round(abs(weight) / longest * 100, 2)) for name, weight in self.values.items()]


@dataclass(frozen=True, kw_only=True)
class Group:
    """One scenario with one defense: its pictures and curves."""

    id: str
    name: str
    defense: str
    records: tuple[Record, ...]
    grids: tuple[Grid, ...]
    curves: tuple[Curves, ...]

    weights: tuple[Weights, ...]
    exhibit: Exhibit | None

    pictureless: tuple[Record, ...]
    """Trials with nothing to look at."""


def render(
    audit: Audit, verdicts: Sequence[Verdict], settings: Sequence[Setting], labels: Mapping[str, str], date: str
) -> str:
    """The whole page."""
    styles = {label: number for number, label in enumerate(dict.fromkeys(labels.values()))}
    grids, sheets = make_grids(audit.records, audit.pictures, labels)
    groups = [
        Group(
            id=f"scenario-{number}",
            name=group[0],
            defense=group[1],
            records=tuple(trials),
            pictureless=tuple(record for record in trials if record.key not in audit.pictures),
            grids=tuple(grids.get(group, ())),
            curves=tuple(curves(trials, labels, styles)),
            weights=tuple(_weights(trials, labels)),
            exhibit=exhibit(grids.get(group, ())),
        )
        for number, (group, trials) in enumerate(grouped(audit.records, lambda record: record.group).items())
    ]
    errors = dict.fromkeys(record.error for record in audit.records if record.error)
    of = {(group.name, group.defense): group for group in groups}
    style = (PARTS / "style.css").read_text("utf-8")
    script = "".join((PARTS / name).read_text("utf-8") for name in SCRIPTS)
    environment = Environment(
        loader=FileSystemLoader(PARTS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["class_name"] = _class_name
    return environment.get_template("report.html").render(
        audit=audit,
        averaged=AVERAGED,
        chart_description=_describe,
        command=command,
        data={
            "rows": {row.id: _row_data(row) for group in groups for grid in group.grids for row in grid.rows},
            "sheets": {sheet.id: [*sheet.tile, *sheet.step] for sheet in sheets.all.values()},
        },
        date=date,
        dates=sorted(record.date for record in audit.records if record.date),
        groups=groups,
        hints=_hints(audit.records),
        labels=labels,
        limits=LIMITS,
        measures=MEASURES,
        policy=_policy(style, script),
        reasons={error: number for number, error in enumerate(errors, 1)},
        script=script,
        settings=settings,
        sheet=_sheet(audit.sheet) if audit.sheet else None,
        sheets=list(sheets.all.values()),
        style=style,
        trends=trends(audit.records, labels, styles),
        tradeoff=audit.tradeoff,
        tradeoff_columns=COLUMNS,
        tradeoff_rows=rows(audit.tradeoff) if audit.tradeoff else [],
        tradeoff_chart=tradeoff_chart(audit.tradeoff) if audit.tradeoff else None,
        tuning=tuning(audit.tuning) if audit.tuning else None,
        value_of=value_of,
        verdicts=[(verdict, of.get((verdict.scenario, verdict.defense))) for verdict in verdicts],
    )


def _policy(style: str, script: str) -> str:
    """What the page may do: show pictures that it carries, and use exactly this style and this script."""
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)]
    return (
        f"default-src 'none'; img-src data:; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _weights(trials: Sequence[Record], labels: Mapping[str, str]) -> list[Weights]:
    found: list[Weights] = []
    for record in trials:
        if not record.layer_weights:
            continue
        label = labels[record.key]
        same = [one for one in found if (one.label, one.values) == (label, record.layer_weights)]
        if same:
            found[found.index(same[0])] = replace(same[0], seeds=(*same[0].seeds, record.seed))
        else:
            found.append(Weights(label=label, values=record.layer_weights, seeds=(record.seed,)))
    return found


def _row_data(row: Row) -> dict[str, Any]:
    """What the slider and the dialog need of one attack's pictures."""
    return {
        "label": row.label,
        "iterations": row.record.iterations,
        "end": row.end,
        "result": row.result,
        "final": row.final.id,
        "iterates": row.iterates.id if row.iterates else None,
        "frames": row.frames,
    }


def _hints(records: Sequence[Record]) -> list[tuple[str, str]]:
    """What the reader may wonder about, and a command that helps."""
    hints = []
    if any(record.scored and record.lpips is None for record in records):
        hints.append(("LPIPS is n/a where its weights were not installed; to fetch them:", "undelta fetch lpips"))
    if any(record.scored and record.ssim is None for record in records):
        hints.append(("SSIM is n/a for images smaller than its 11 x 11 window.", ""))
    if any(not record.scored and record.status == "completed" for record in records):
        hints.append(("Metrics are n/a until a run is scored:", "undelta score RUN --truth TRUTH"))
    return hints


def _describe(chart: Chart) -> str:
    """A chart in words, for those who cannot see it."""
    names = ", ".join(dict.fromkeys(line.name for line in chart.lines))
    return f"{chart.title}. Lines: {names}. Use the arrow keys to read the values."


def _class_name(text: str) -> str:
    """A word from a record as part of a class."""
    return re.sub(r"[^a-z]+", "-", text.lower())[:40]


def _sheet(path: Path) -> dict[str, Any] | None:
    """A run's contact sheet; left out if it is too large for a page."""
    try:
        content = path.read_bytes()
        with Image.open(path, formats=["PNG"]) as picture:
            width, height = picture.size
    except (OSError, Image.DecompressionBombError) as problem:
        raise DataError(f"{path}: not a readable PNG ({problem})") from problem
    if len(content) > MOST_SHEET:
        return None
    return {"uri": "data:image/png;base64," + base64.b64encode(content).decode(), "width": width, "height": height}
