"""The tables for elsewhere: Markdown, CSV, and LaTeX with booktabs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from undelta.report.bounds import COLUMNS, ceiling_of, lines, remarks
from undelta.report.read import Audit
from undelta.report.scope import facts, gravest
from undelta.report.tables import AVERAGED, MEASURES, Setting, flat, value_of
from undelta.report.templates import escape, fill
from undelta.report.words import limits
from undelta.trials.record import UNDEFENDED, Record

NUMBERS = ("psnr", "gain", "ssim", "lpips", "mse", "fraction_recovered", "mismatch", "floor", "iterations", "seconds")
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # how a spreadsheet recognizes one


@dataclass(frozen=True, kw_only=True)
class Table:
    """Titles and rows of text: columns of words, of numbers, which are aligned to the right, and of words again."""

    words: Sequence[str]
    numbers: Sequence[str]
    remarks: Sequence[str] = ()
    rows: Sequence[Sequence[str]]

    @property
    def titles(self) -> list[str]:
        return [*self.words, *self.numbers, *self.remarks]

    def markdown(self) -> str:
        """The lines of the table, without the last one's end."""
        rule = ["---"] * len(self.words) + ["---:"] * len(self.numbers) + ["---"] * len(self.remarks)
        lines = [list(map(escape, self.titles)), rule, *(list(map(escape, row)) for row in self.rows)]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def latex(self, caption: str, note: str) -> str:
        """A floating table; the note is a comment beside what the table needs."""
        return fill("table.tex", table=self, caption=caption, note=note)


def csv_table(audit: Audit, labels: Mapping[str, str]) -> str:
    """One line per trial, in full precision; empty cells were not measured."""
    rows: list[dict[str, Any]] = [
        {
            "key": record.key,
            "scenario": record.name,
            "defense": record.defense,
            "attack": labels[record.key],
            "arguments": json.dumps(record.arguments, sort_keys=True),
            "seed": record.seed,
            **{key: value_of(record, key) for key in NUMBERS},
            **_ceiling(audit, record),
            "status": record.status,
            "error": record.error,
            **{f"scenario.{key}": value for key, value in flat(record.scenario).items()},
            "date": record.date,
        }
        for record in audit.records
    ]
    names = [*dict.fromkeys(name for row in rows for name in row if name != "date"), "date"]
    content = io.StringIO()
    writer = csv.writer(content, lineterminator="\n")
    writer.writerow(map(_cell, names))
    writer.writerows([_cell(row.get(name)) for name in names] for row in rows)
    return content.getvalue()


def _ceiling(audit: Audit, record: Record) -> dict[str, Any]:
    """Two columns where bounds were asked for."""
    found = ceiling_of(audit, record)
    return {"ceiling": found.value, "headroom": found.headroom} if audit.bounds else {}


def _cell(value: Any) -> Any:
    """Lists and truths as JSON has them; a name that a spreadsheet would take for a formula is marked as text."""
    if isinstance(value, list | bool):
        return json.dumps(value, sort_keys=True)
    if not isinstance(value, str):
        return value
    text = value.replace("\r\n", "\n").replace("\r", " ")  # a bare return begins another row in some readers
    return f"'{text}" if text.startswith(FORMULA) else text


def markdown(audit: Audit, settings: Sequence[Setting], labels: Mapping[str, str], date: str) -> str:
    """Verdicts and both tables."""
    trials = Table(
        words=["Scenario", "Defense", "Attack", "Seed"],
        numbers=[measure.title for measure in MEASURES],
        remarks=["Status"],
        rows=[
            [
                *(record.name, record.defense, labels[record.key], str(record.seed)),
                *(measure.show(value_of(record, measure.key)) for measure in MEASURES),
                f"{record.status}: {record.error}" if record.error else record.status,
            ]
            for record in audit.records
        ],
    )
    means = Table(
        words=["Scenario", "Defense", "Attack", "Seeds"],
        numbers=[measure.title for measure in AVERAGED],
        rows=[[one.name, one.defense, one.attack, one.scored, *one.cells] for one in settings],
    )
    bounds = Table(
        words=["Scenario", "Defense", "Seed"],
        numbers=[column.title for column in COLUMNS],
        remarks=["Remark"],
        rows=[
            [one.name, one.defense, str(one.seed), *(text for _, text in one.cells), one.reason or ""]
            for one in lines(audit)
        ],
    )
    return fill(
        "report.md",
        audit=audit,
        facts=facts(audit, ()),
        limits=limits(gravest(audit.judgment.verdicts)),
        trials=trials,
        means=means,
        bounds=bounds if bounds.rows else None,
        bound_remarks=remarks(audit),
        date=date,
    )


def latex(audit: Audit, settings: Sequence[Setting]) -> str:
    """Means over seeds as a booktabs table."""
    defended = any(one.defense != UNDEFENDED for one in settings)
    table = Table(
        words=["Scenario", *(["Defense"] if defended else []), "Attack"],
        numbers=["Seeds", *(measure.title for measure in AVERAGED)],
        rows=[
            [one.name, *([one.defense] if defended else []), one.attack, str(len(one.seeds)), *one.cells]
            for one in settings
        ],
    )
    note = "Means over seeds, with the sample standard deviation where there are several."
    return table.latex(audit.title, note)
