"""The page: values into the template; style, script and pictures inside, so that it needs nothing else.

Text from records reaches the page through the template's escaping only. The page's policy forbids it to load anything,
and to run any script but the one whose hash it names.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import NamedTuple

from undelta.evaluation.metrics import RECOVERED_PSNR
from undelta.report.bounds import COLUMNS as BOUND_COLUMNS
from undelta.report.bounds import ceiling_of, estimates, lines, remarks
from undelta.report.charts import Panel
from undelta.report.curves import curves
from undelta.report.grids import Grid, exhibit, make_grids, unseen
from undelta.report.read import Audit
from undelta.report.repeat import command
from undelta.report.scope import facts, gravest
from undelta.report.tables import AVERAGED, MEASURES, Setting, grouped, value_of
from undelta.report.templates import PARTS, fill
from undelta.report.tradeoff import columns, rows, tradeoff_chart
from undelta.report.trends import trends
from undelta.report.tuning import tuning
from undelta.report.words import MEANINGS, limits
from undelta.trials.diagnosis import DEFAULT
from undelta.trials.diagnosis import MEANINGS as LEVELS
from undelta.trials.record import Record, summary
from undelta.trials.verdict import closeness

SCRIPTS = ("tables.js", "pictures.js", "charts.js", "page.js")


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


def render(audit: Audit, settings: Sequence[Setting], labels: Mapping[str, str], date: str) -> str:
    """The whole page."""
    styles = {label: number for number, label in enumerate(dict.fromkeys(labels.values()))}
    exposed = [verdict.exposed for verdict in audit.judgment.verdicts if verdict.exposed]
    linear, linear_pictures = estimates(audit)
    grids, sheets = make_grids(
        [*audit.records, *linear],
        {**audit.pictures, **linear_pictures},
        {**labels, **{record.key: record.attack for record in linear}},
        exposed,
    )
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
    every = [grid for of_group in grids.values() for grid in of_group]
    thresholds = next((one.thresholds for one in audit.judgment.verdicts), DEFAULT)
    errors = dict.fromkeys(record.error for record in audit.records if record.error)
    style = (PARTS / "style.css").read_text("utf-8")
    script = "".join((PARTS / name).read_text("utf-8") for name in SCRIPTS)
    return fill(
        "report.html",
        audit=audit,
        averaged=AVERAGED,
        bound_columns=BOUND_COLUMNS,
        bound_lines=lines(audit),
        bound_remarks=remarks(audit),
        ceiling_of=partial(ceiling_of, audit),
        command=command,
        data={
            "rows": {row.id: row.data for of_group in grids.values() for grid in of_group for row in grid.rows},
            "sheets": {sheet.id: [*sheet.tile, *sheet.step] for sheet in sheets.all.values()},
        },
        date=date,
        exhibit=exhibit,
        facts=facts(audit, [grid.native for grid in every]),
        first=exhibit(every, max(exposed, key=closeness, default=None)),
        unseen=unseen(every),
        gravest=gravest(audit.judgment.verdicts),
        groups=groups,
        labels=labels,
        levels=LEVELS,
        limits=limits(gravest(audit.judgment.verdicts)),
        meanings={word: text.format(recovered=RECOVERED_PSNR, **asdict(thresholds)) for word, text in MEANINGS.items()},
        measures=MEASURES,
        name_of=summary,
        policy=_policy(style, script),
        reasons={error: number for number, error in enumerate(errors, 1)},
        script=script,
        settings=settings,
        sheets=sheets.all.values(),
        style=style,
        trends=trends(audit.records, labels, styles),
        tradeoff_columns=columns(audit.tradeoff) if audit.tradeoff else (),
        tradeoff_rows=rows(audit.tradeoff) if audit.tradeoff else [],
        tradeoff_chart=tradeoff_chart(audit.tradeoff) if audit.tradeoff else None,
        tuning=tuning(audit.tuning) if audit.tuning else None,
        value_of=value_of,
        verdicts=audit.judgment.verdicts,
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
