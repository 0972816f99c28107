"""A reproduction on paper: NAME.md, NAME.csv and NAME.tex with the paper's figures beside ours, from records alone."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from string import ascii_lowercase

from undelta.attacker.weights import SEARCH_RANGES
from undelta.evaluation.baselines import COLOR, NOISE
from undelta.evaluation.measures import METRICS, MISSING
from undelta.files import write_bytes
from undelta.report.exports import Table
from undelta.report.read import Audit
from undelta.report.templates import escape
from undelta.studies.reproduce import published
from undelta.studies.reproduce.figures import write_charts, write_pictures, write_tuning
from undelta.studies.reproduce.finding import Finding
from undelta.studies.reproduce.findings import findings_of
from undelta.studies.reproduce.published import PRINTED
from undelta.studies.reproduce.reproductions import Asked, Reproduction
from undelta.studies.reproduce.results import Cell, Results
from undelta.trials.tuning_file import Evaluation

DASH = "–"


def write_reproduction(reproduction: Reproduction, results: Results, audit: Audit, asked: Asked) -> list[Finding]:
    """Write all files of one reproduction beside its records, and say which claims hold."""
    file = audit.tuning if reproduction.tunes else None
    tuning = file.trials if file else ()
    findings = findings_of(reproduction, results, tuning, random=asked.size.tuning_random)
    figures = write_charts(reproduction, results.attempted, audit.directory)
    if file and (minimum := write_tuning(reproduction, file, audit.directory)):
        figures.insert(0, minimum)
    pictures = write_pictures(reproduction, results, audit.pictures, audit.directory)
    contents = {
        "md": "\n".join(_markdown(reproduction, results, asked, findings, tuning, figures, pictures)) + "\n",
        "csv": _csv(results, asked.scale),
        "tex": _latex(reproduction, results, asked),
    }
    for suffix, content in contents.items():
        write_bytes(audit.directory / f"{reproduction.name}.{suffix}", content.encode("utf-8", "replace"))
    return findings


def _markdown(
    reproduction: Reproduction,
    results: Results,
    asked: Asked,
    findings: Sequence[Finding],
    tuning: Sequence[Evaluation],
    figures: Sequence[str],
    pictures: str | None,
) -> Iterator[str]:
    yield from (f"# {reproduction.title}", "")
    yield f"Paper: `{reproduction.label}`. Here: `undelta reproduce {reproduction.name} --scale {asked.scale}`,"
    seeds = ", ".join(map(str, asked.seeds))
    yield f"that is {escape(asked.says)}; data {escape(asked.data)}, seeds {seeds}."
    if asked.scale != "paper" or asked.scenario or asked.settings:
        yield "Images, model and iterations differ from the paper's, so compare orders and trends, not numbers."
    records = [record for cell in results.cells for record in cell.records]
    yield from (f"{sum(record.scored for record in records)} of {len(records)} trials have numbers.", "")
    # A reason as long as a sentence has no place in a column of numbers, nor has a row of nothing but reasons.
    attempted, left_out = results.attempted, results.left_out
    reasons = dict.fromkeys(cell.reason for cell in attempted.cells if cell.reason)
    marks = {reason: f"({letter})" for reason, letter in zip(reasons, ascii_lowercase, strict=False)}
    yield _table("Paper's case", attempted, lambda one, metric: marks.get(one.reason) or one.show(metric)).markdown()
    yield ""
    yield "Ours: mean ± sample standard deviation over seeds. SSIM and LPIPS as docs/metrics.md defines them."
    yield f"Iterations: {_iterations(results)}."
    if marks:
        yield from ("", *(f"- {mark} {reason}" for reason, mark in marks.items()))
    if left_out:
        why = "; ".join(dict.fromkeys(reason.removeprefix("not run: ") for own in left_out.values() for reason in own))
        yield from ("", f"Left out: {'; '.join(left_out)}. Reasons: {why}.")
        yield f"The paper's figures of these cases are in {reproduction.name}.csv."
    if any(cell.scored for cell in results.cells):
        yield from ("", "## Baselines and floors", "")
        yield "PSNR (dB) of each image's mean color, and of what AWA makes of pure noise; then each method's mismatch,"
        yield "unweighted: where it ended, in brackets its replay's at the private images. Below that it fits errors."
        yield from ("", _baselines(results).markdown())
    if tuning:
        yield from ("", "## Tuned weights", "", _weights(tuning))
    for name in figures:
        yield from ("", f"![{name}]({name})")
    if pictures:
        yield from ("", f"![The private images and their reconstructions]({pictures})")
    yield from ("", "## Which of the paper's claims hold here", "")
    if asked.scale == "smoke":
        yield from ("Nothing follows from the smoke scale: these sentences show the form only.", "")
    yield from (finding.markdown for finding in findings)
    if errors := {record.key: record for record in records if record.error}:
        yield from ("", "## Trials without numbers", "")
    for record in errors.values():
        words = f"{escape(record.name)}, {record.attack}, seed {record.seed}: {record.status}"
        yield f"- {words}: {escape(record.error or '')}"


def _table(case: str, results: Results, show: Callable[[Cell, str], str]) -> Table:
    """A row for each case and metric, the paper's numbers beside ours where it prints some of a method."""
    pairs = [[f"{name}, paper", f"{name}, ours"] if results.printed(name) else [name] for name in results.methods]
    rows = []
    for row, metric in product(results.rows, PRINTED):
        cells = [row, results.here(row), METRICS[metric].title]
        for one in (results.at(row, method) for method in results.methods):
            if results.printed(one.method):
                cells.append(DASH if one.figures is None else METRICS[metric].show(getattr(one.figures, metric)))
            cells.append(show(one, metric))
        rows.append(cells)
    return Table(words=[case, "Ours", "Metric"], numbers=[title for pair in pairs for title in pair], rows=rows)


def _iterations(results: Results) -> str:
    known = {
        method: sorted(
            {trial.arguments.get("steps", 0) for one in results.cells for trial in one.trials if one.method == method}
        )
        for method in results.methods
    }
    return ", ".join(f"{method} {_range(steps)}" for method, steps in known.items() if steps)


def _range(steps: list[int]) -> str:
    """The least and the most; none where our own attack has its own."""
    if not steps[-1]:
        return "as by default"
    return f"{steps[0]} to {steps[-1]}" if steps[0] < steps[-1] else str(steps[0])


def _baselines(results: Results) -> Table:
    """What guesses without the update are worth in each case, and how each method's replay explains the truth.

    Cases in which nothing has been measured are left out.
    """
    rows = []
    for row in results.rows:
        cells = [results.at(row, method) for method in results.methods]
        if not any(one.scored for one in cells):
            continue
        guesses = [[one.baseline(name) for one in cells] for name in (COLOR, NOISE)]
        found = [next((value for value in values if value is not None), None) for values in guesses]
        floors = [one.floor() for one in cells]
        rows.append(
            [
                results.here(row),
                *(METRICS["psnr"].show(value) for value in found),
                *(f"{pair[0]:.4f} ({pair[1]:.4f})" if pair else MISSING for pair in floors),
            ]
        )
    return Table(words=["Case"], numbers=["Mean color", "Pure noise", *results.methods], rows=rows)


def _weights(tuning: Sequence[Evaluation]) -> str:
    valued = [(trial.value, trial.parameters) for trial in tuning if trial.value is not None]
    _, best = min(valued, key=lambda pair: pair[0], default=(None, dict[str, float]()))
    rows = [
        [name, f"{low:g} to {high:g}", f"{published.TUNED_Q[name]:g}", f"{best[name]:.4g}" if name in best else MISSING]
        for name, (low, high) in SEARCH_RANGES.items()
    ]
    return Table(words=["Parameter"], numbers=["Search range", "Paper", "Ours"], rows=rows).markdown()


def _csv(results: Results, scale: str) -> str:
    content = io.StringIO()
    writer = csv.writer(content, lineterminator="\n")
    writer.writerow(
        ["paper_case", "case", "method", "metric", "paper", "scale", "mean", "spread", "seeds", "trials", "note"]
    )
    for one, metric in product(results.cells, PRINTED):
        mean, paper = one.mean(metric), getattr(one.figures, metric, None)
        counts = (len(one.scored), len(one.records))
        writer.writerow(
            [one.row, one.here, one.method, metric, paper, scale, mean.mean, mean.spread, *counts, one.reason]
        )
    return content.getvalue()


def _latex(reproduction: Reproduction, results: Results, asked: Asked) -> str:
    table = _table("Case in the paper", results, lambda one, metric: DASH if one.reason else one.show(metric))
    caption = f"{reproduction.title} ({asked.scale} scale: {asked.says})"
    return table.latex(caption, "Ours: mean and sample standard deviation over seeds.")
