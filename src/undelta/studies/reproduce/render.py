"""A reproduction on paper: NAME.md, NAME.csv and NAME.tex with the paper's figures beside ours, from records alone."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from undelta.evaluation.measures import METRICS, MISSING
from undelta.files import write_bytes
from undelta.report.exports import Table
from undelta.report.read import Audit
from undelta.report.templates import escape
from undelta.studies.reproduce import published
from undelta.studies.reproduce.figures import write_charts, write_pictures, write_tuning
from undelta.studies.reproduce.findings import Finding, findings_of
from undelta.studies.reproduce.published import PRINTED
from undelta.studies.reproduce.reproductions import Reproduction
from undelta.studies.reproduce.results import Measured, Results
from undelta.studies.reproduce.scales import Scale
from undelta.trials.tuning_file import Evaluation

DASH = "–"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How a directory's trials were made."""

    scale: Scale
    data: str
    seeds: tuple[int, ...]


def write_reproduction(reproduction: Reproduction, results: Results, audit: Audit, setting: Setting) -> list[Finding]:
    """Write all files of one reproduction beside its records, and say which claims hold."""
    file = audit.tuning if reproduction.tunes else None
    tuning = file.trials if file else ()
    findings = findings_of(reproduction, results, tuning, random=setting.scale.tuning_random)
    figures = write_charts(reproduction, results, audit.directory)
    if file and (minimum := write_tuning(reproduction, file, audit.directory)):
        figures.insert(0, minimum)
    pictures = write_pictures(reproduction, results, audit.pictures, audit.directory)
    contents = {
        "md": "\n".join(_markdown(reproduction, results, setting, findings, tuning, figures, pictures)) + "\n",
        "csv": _csv(results, setting),
        "tex": _latex(reproduction, results, setting),
    }
    for suffix, content in contents.items():
        _write(audit.directory / f"{reproduction.name}.{suffix}", content)
    return findings


def _write(path: Path, content: str) -> None:
    write_bytes(path, content.encode("utf-8", "replace"))


def _markdown(
    reproduction: Reproduction,
    results: Results,
    setting: Setting,
    findings: Sequence[Finding],
    tuning: Sequence[Evaluation],
    figures: Sequence[str],
    pictures: str | None,
) -> Iterator[str]:
    yield from (f"# {reproduction.title}", "")
    yield f"Paper: `{reproduction.label}`. Here: `undelta reproduce {reproduction.name} --scale {setting.scale.name}`,"
    seeds = ", ".join(map(str, setting.seeds))
    yield f"that is {setting.scale.says}; data {escape(setting.data)}, seeds {seeds}."
    if setting.scale.name != "paper":
        yield "Images, model and iterations differ from the paper's, so compare orders and trends, not numbers."
    yield from (f"{results.done} of {results.wanted} trials have numbers.", "")
    yield _table(results, case="Paper's case", reasons=True).markdown()
    yield from (
        "",
        "Ours: mean ± sample standard deviation over seeds. SSIM and LPIPS as docs/metrics.md defines them.",
    )
    if tuning:
        yield from ("", "## Tuned weights", "", _weights(tuning))
    for name in figures:
        yield from ("", f"![{name}]({name})")
    if pictures:
        yield from ("", f"![The private images and their reconstructions]({pictures})")
    yield from ("", "## Which of the paper's claims hold here", "")
    if setting.scale.name == "smoke":
        yield from ("Nothing follows from the smoke scale: these sentences show the form only.", "")
    for finding in findings:
        yield f"- **{finding.outcome}**: {escape(finding.says)}. {escape(finding.numbers)}"
    yield from _problems(results)


def _columns(results: Results) -> Iterator[str]:
    for method in results.methods:
        yield from (f"{method}, paper", f"{method}, ours") if results.printed(method) else (method,)


def _printed(one: Measured, metric: str) -> str:
    return DASH if one.cell.figures is None else METRICS[metric].show(getattr(one.cell.figures, metric))


def _weights(tuning: Sequence[Evaluation]) -> str:
    valued = [(trial.value, trial) for trial in tuning if trial.value is not None]
    best = min(valued, key=lambda pair: pair[0])[1] if valued else None
    rows = []
    for name, (low, high) in published.SEARCH_RANGES.items():
        found = best.parameters.get(name) if best else None
        ours = f"{found:.4g}" if isinstance(found, int | float) else MISSING
        rows.append([name, f"{low:g} to {high:g}", f"{published.TUNED_Q[name]:g}", ours])
    return Table(words=["Parameter"], numbers=["Search range", "Paper", "Ours"], rows=rows).markdown()


def _problems(results: Results) -> Iterator[str]:
    errors = {record.key: record for one in results.cells for record in one.records if record.error}
    if errors:
        yield from ("", "## Trials without numbers", "")
    for record in errors.values():
        words = f"{escape(record.name)}, {record.attack}, seed {record.seed}: {record.status}"
        yield f"- {words}: {escape(record.error or '')}"


def _csv(results: Results, setting: Setting) -> str:
    content = io.StringIO()
    writer = csv.writer(content, lineterminator="\n")
    writer.writerow(
        ["paper_case", "case", "method", "metric", "paper", "scale", "mean", "spread", "seeds", "trials", "note"]
    )
    for one in results.cells:
        for metric in PRINTED:
            mean = one.mean(metric)
            writer.writerow(
                [
                    one.cell.row,
                    one.cell.here,
                    one.cell.method,
                    metric,
                    None if one.cell.figures is None else getattr(one.cell.figures, metric),
                    setting.scale.name,
                    mean.mean,
                    mean.spread,
                    len(one.scored),
                    len(one.records),
                    one.cell.reason,
                ]
            )
    return content.getvalue()


def _latex(reproduction: Reproduction, results: Results, setting: Setting) -> str:
    # A reason as long as a sentence has no place in a column of numbers.
    table = _table(results, case="Case in the paper", reasons=False)
    caption = f"{reproduction.title} ({setting.scale.name} scale: {setting.scale.says})"
    return table.latex(caption, "Ours: mean and sample standard deviation over seeds.")


def _table(results: Results, *, case: str, reasons: bool) -> Table:
    rows = []
    for row in results.rows:
        for metric in PRINTED:
            cells = [row, results.here(row), METRICS[metric].title]
            for method in results.methods:
                one = results.at(row, method)
                ours = DASH if one.cell.reason and not reasons else one.show(metric)
                cells += [_printed(one, metric), ours] if results.printed(method) else [ours]
            rows.append(cells)
    return Table(words=[case, "Ours", "Metric"], numbers=list(_columns(results)), rows=rows)
