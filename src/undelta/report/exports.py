"""The tables for elsewhere: Markdown, CSV, and LaTeX with booktabs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from undelta.report.read import Audit
from undelta.report.tables import AVERAGED, MEASURES, Setting, flat, value_of
from undelta.report.words import LIMITS
from undelta.trials.record import Record
from undelta.trials.verdict import Verdict

LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "±": r"$\pm$",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
}
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # how a spreadsheet recognizes one


def csv_table(records: Sequence[Record], labels: Mapping[str, str]) -> str:
    """One line per trial, in full precision; empty cells were not measured."""
    scenarios = [flat(record.scenario) for record in records]
    fields = list(dict.fromkeys(key for values in scenarios for key in values))
    numbers = ["psnr", "ssim", "lpips", "mse", "fraction_recovered", "mismatch", "floor", "iterations", "seconds"]
    head = ["key", "scenario", "defense", "attack", "arguments", "seed", *numbers, "status", "error"]
    content = io.StringIO()
    writer = csv.writer(content, lineterminator="\n")
    writer.writerow([*head, *(_cell(f"scenario.{field}") for field in fields), "date"])
    for record, values in zip(records, scenarios, strict=True):
        cells: list[Any] = [
            record.key,
            record.name,
            record.defense,
            labels[record.key],
            _json(record.arguments),
            record.seed,
        ]
        cells += [value_of(record, key) for key in numbers]
        cells += [record.status, record.error, *(_plain(values.get(field)) for field in fields), record.date]
        writer.writerow([_cell(cell) for cell in cells])
    return content.getvalue()


def _cell(value: Any) -> Any:
    """A name that a spreadsheet would take for a formula is marked as text."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def _plain(value: Any) -> Any:
    return _json(value) if isinstance(value, list | bool) else value


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def markdown(
    audit: Audit, verdicts: Sequence[Verdict], settings: Sequence[Setting], labels: Mapping[str, str], date: str
) -> str:
    """Verdicts and both tables."""
    lines = [f"# {escape(audit.title)}", "", f"Report of {date}.", "", "## Verdict", ""]
    for verdict in verdicts:
        title = ", ".join(escape(word) for word in _naming(verdict.scenario, verdict.defense))
        level = f" [{escape(verdict.level)}]" if verdict.level else ""
        lines += [f"- **{title}**{level}: {escape(verdict.text)}"]
    lines += ["", "## What this audit does not prove", "", *(f"- {limit}" for limit in LIMITS)]
    titles = [measure.title for measure in MEASURES]
    lines += ["", "## Trials", "", *table_rule(["Scenario", "Defense", "Attack", "Seed"], titles, ["Status"])]
    for record in audit.records:
        status = f"{record.status}: {record.error}" if record.error else record.status
        cells = [record.name, record.defense, labels[record.key], str(record.seed)]
        cells += [measure.show(value_of(record, measure.key)) for measure in MEASURES]
        lines.append(table_row([*cells, status]))
    lines += ["", "## Means over seeds, ± sample standard deviation", ""]
    lines += table_rule(["Scenario", "Defense", "Attack", "Seeds"], [measure.title for measure in AVERAGED], [])
    for setting in settings:
        cells = [setting.name, setting.defense, setting.attack, _seeds(setting)]
        lines.append(table_row([*cells, *(setting.means[measure.key].show(measure) for measure in AVERAGED)]))
    return "\n".join(lines) + "\n"


def _naming(name: str, defense: str) -> list[str]:
    return [name] if defense == "none" else [name, f"defense {defense}"]


def _seeds(setting: Setting) -> str:
    seeds = ", ".join(map(str, setting.seeds)) or "none"
    return (
        seeds if len(setting.seeds) == setting.trials else f"{seeds} ({len(setting.seeds)} of {setting.trials} scored)"
    )


def table_rule(left: Sequence[str], numbers: Sequence[str], right: Sequence[str]) -> list[str]:
    """The head of a Markdown table and the line below it; numbers are aligned to the right."""
    rule = ["---"] * len(left) + ["---:"] * len(numbers) + ["---"] * len(right)
    return [table_row([*left, *numbers, *right]), f"| {' | '.join(rule)} |"]


def table_row(cells: Sequence[str]) -> str:
    """A line of a Markdown table."""
    return f"| {' | '.join(escape(cell) for cell in cells)} |"


def escape(text: str) -> str:
    """Text that is to be read as text: no markup, no table cells, no HTML."""
    line = " ".join(text.split())
    for character in "\\`*_[]|#!~":
        line = line.replace(character, f"\\{character}")
    return line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def latex(audit: Audit, settings: Sequence[Setting]) -> str:
    """Means over seeds as a booktabs table."""
    defended = any(setting.defense != "none" for setting in settings)
    words = ["Scenario", *(["Defense"] if defended else []), "Attack", "Seeds"]
    lines = [
        "% Needs \\usepackage{booktabs}. Means over seeds, with the sample standard deviation where there are several.",
        "\\begin{table}",
        "  \\centering",
        f"  \\caption{{{tex(audit.title)}}}",
        f"  \\begin{{tabular}}{{{'l' * (len(words) - 1)}r{'r' * len(AVERAGED)}}}",
        "    \\toprule",
        f"    {' & '.join([*words, *(measure.title for measure in AVERAGED)])} \\\\",
        "    \\midrule",
    ]
    for setting in settings:
        cells = [setting.name, *([setting.defense] if defended else []), setting.attack, str(len(setting.seeds))]
        cells += [setting.means[measure.key].show(measure) for measure in AVERAGED]
        lines.append(f"    {' & '.join(tex(cell) for cell in cells)} \\\\")
    return "\n".join([*lines, "    \\bottomrule", "  \\end{tabular}", "\\end{table}", ""])


def tex(text: str) -> str:
    """Text with LaTeX's own characters escaped, on one line."""
    return "".join(LATEX.get(character, character) for character in " ".join(text.split()))
