"""The page: values into the template; style, script and pictures inside, so that it needs nothing else.

Text from records reaches the page through the template's escaping only. The page's policy forbids it to load anything,
and to run any script but the one whose hash it names.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from undelta.errors import DataError
from undelta.report.charts import Panel
from undelta.report.curves import curves
from undelta.report.grids import Grid, exhibit, make_grids
from undelta.report.read import Audit
from undelta.report.repeat import command
from undelta.report.tables import AVERAGED, MEASURES, Setting, grouped, value_of
from undelta.report.templates import PARTS, fill
from undelta.report.tradeoff import COLUMNS, rows, tradeoff_chart
from undelta.report.trends import trends
from undelta.report.tuning import tuning
from undelta.report.words import LIMITS
from undelta.trials.record import Record
from undelta.trials.verdict import Verdict

SCRIPTS = ("tables.js", "pictures.js", "charts.js", "page.js")
MOST_SHEET = 3_000_000  # bytes of a run's contact sheet that a page takes in


class Weights(NamedTuple):
    """The layer weights that an attack used, for the seeds that share them."""

    label: str
    seeds: list[int]
    bars: list[tuple[str, float, float]]
    """Name, weight, and length of the bar in percent of the longest."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """One scenario with one defense: its pictures and curves."""

    id: str
    name: str
    defense: str
    grids: Sequence[Grid]
    curves: Sequence[Panel]
    weights: Sequence[Weights]
    pictureless: Sequence[Record]
    """Trials with nothing to look at."""


def render(
    audit: Audit, verdicts: Sequence[Verdict], settings: Sequence[Setting], labels: Mapping[str, str], date: str
) -> str:
    """The whole page."""
    styles = {label: number for number, label in enumerate(dict.fromkeys(labels.values()))}
    grids, sheets = make_grids(audit.records, audit.pictures, labels)
    groups = {
        group: Group(
            id=f"scenario-{number}",
            name=group[0],
            defense=group[1],
            grids=grids.get(group, ()),
            curves=curves(trials, labels, styles),
            weights=_weights(trials, labels),
            pictureless=[record for record in trials if record.key not in audit.pictures],
        )
        for number, (group, trials) in enumerate(grouped(audit.records, lambda record: record.group).items())
    }
    errors = dict.fromkeys(record.error for record in audit.records if record.error)
    style = (PARTS / "style.css").read_text("utf-8")
    script = "".join((PARTS / name).read_text("utf-8") for name in SCRIPTS)
    return fill(
        "report.html",
        audit=audit,
        averaged=AVERAGED,
        command=command,
        data={
            "rows": {row.id: row.data for of_group in grids.values() for grid in of_group for row in grid.rows},
            "sheets": {sheet.id: [*sheet.tile, *sheet.step] for sheet in sheets.all.values()},
        },
        date=date,
        exhibit=exhibit,
        groups=groups,
        labels=labels,
        limits=LIMITS,
        measures=MEASURES,
        policy=_policy(style, script),
        reasons={error: number for number, error in enumerate(errors, 1)},
        script=script,
        settings=settings,
        sheet=_sheet(audit.sheet) if audit.sheet else None,
        sheets=sheets.all.values(),
        style=style,
        trends=trends(audit.records, labels, styles),
        tradeoff_columns=COLUMNS,
        tradeoff_rows=rows(audit.tradeoff) if audit.tradeoff else [],
        tradeoff_chart=tradeoff_chart(audit.tradeoff) if audit.tradeoff else None,
        tuning=tuning(audit.tuning) if audit.tuning else None,
        value_of=value_of,
        verdicts=verdicts,
    )


def _policy(style: str, script: str) -> str:
    """What the page may do: show pictures that it carries, and use exactly this style and this script."""
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)]
    return (
        f"default-src 'none'; img-src data:; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _weights(trials: Sequence[Record], labels: Mapping[str, str]) -> list[Weights]:
    found = []
    alike = grouped(trials, lambda record: (labels[record.key], tuple((record.layer_weights or {}).items())))
    for (label, values), same in alike.items():
        longest = max((abs(weight) for _, weight in values), default=0.0) or 1.0
        bars = [(name, weight, round(abs(weight) / longest * 100, 2)) for name, weight in values]
        found.append(Weights(label, [record.seed for record in same], bars))
    return [weights for weights in found if weights.bars]


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
