"""Figures of a reproduction: metrics over cases as SVG, and pictures of one seed as a PNG, from records alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch

from undelta.evaluation.measures import METRICS
from undelta.files import write_bytes
from undelta.report.charts import Mark, Series, chart
from undelta.report.pictures import read_pictures
from undelta.report.svg import svg
from undelta.report.tables import value_of
from undelta.report.ticks import named_axis
from undelta.report.tuning import tuning as drawn_tuning
from undelta.studies.reproduce.published import PRINTED
from undelta.studies.reproduce.reproductions import Reproduction
from undelta.studies.reproduce.results import Cell, Results
from undelta.trials.pictures import write_sheet
from undelta.trials.tuning_file import TuningFile

MOST_IMAGES = 64  # of one client in a picture
WIDE = (760, 300)
PAPER_STYLE = 7


def write_charts(reproduction: Reproduction, results: Results, directory: Path) -> list[str]:
    """Each metric over the cases, or over the methods where there is one case; returns the files' names.

    A point per seed, a line through the means. Where they can be told apart the paper's own figures are drawn, too.
    They come from larger images, so only the shape of the lines can be compared.
    """
    names = []
    single = len(results.rows) == 1
    x_title, categories = ("method", results.methods) if single else _short(results)
    for metric in PRINTED:
        measure = METRICS[metric]
        if all(one.value(metric) is None for one in results.cells):
            continue  # the paper's lines alone would be nobody's results
        drawn = chart(
            f"{reproduction.title}: {measure.title}",
            x_title,
            f"{measure.title} in dB" if metric == "psnr" else measure.title,
            _over_methods(results, metric) if single else _over_cases(results, metric),
            x_axis=partial(named_axis, categories),
            size=WIDE,
        )
        if drawn is None:
            continue
        names.append(f"{reproduction.name}-{metric}.svg")
        write_bytes(directory / names[-1], svg(drawn).encode())
    return names


def _short(results: Results) -> tuple[str, list[str]]:
    """What tells the cases at this scale apart, as a title and a name each: N=4, E=2, B=2 may be just 2."""
    parts = [[part.replace("=", " ").split() for part in results.here(row).split(", ")] for row in results.rows]
    varying = [place for place in range(len(parts[0])) if len({case[place][1] for case in parts}) > 1]
    title = ", ".join(parts[0][place][0] for place in varying)
    return title, [", ".join(case[place][1] for place in varying) for case in parts]


def _over_cases(results: Results, metric: str) -> list[Series]:
    series = []
    lines = {method: [results.at(row, method) for row in results.rows] for method in results.methods}
    for style, (method, cells) in enumerate(lines.items()):
        series += _measured(method, style, cells, metric)
    printed = [method for method in lines if results.printed(method)]
    return (
        [*series, *_printed(f"{printed[0]} in the paper", lines[printed[0]], metric)] if len(printed) == 1 else series
    )


def _over_methods(results: Results, metric: str) -> list[Series]:
    cells = [results.at(results.rows[0], method) for method in results.methods]
    return [*_measured("here", 0, cells, metric), *_printed("in the paper", cells, metric)]


def _measured(name: str, style: int, cells: Sequence[Cell], metric: str) -> list[Series]:
    """All seeds as points, and a line through their means."""
    points = [
        Mark(place, value, f"{cell.method}, {cell.here}, seed {record.seed}: {METRICS[metric].show(value)}")
        for place, cell in enumerate(cells)
        for record in cell.scored
        if (value := value_of(record, metric)) is not None
    ]
    means = [Mark(place, mean) for place, cell in enumerate(cells) if (mean := cell.value(metric)) is not None]
    return _drawn(name, style, points, means)


def _printed(name: str, cells: Sequence[Cell], metric: str) -> list[Series]:
    values = [(place, cell.method, getattr(cell.figures, metric, None)) for place, cell in enumerate(cells)]
    points = [
        Mark(place, value, f"{method}: {METRICS[metric].show(value)}")
        for place, method, value in values
        if value is not None
    ]
    return _drawn(name, PAPER_STYLE, points, points)


def _drawn(name: str, style: int, marks: Sequence[Mark], line: Sequence[Mark]) -> list[Series]:
    return [
        Series(name=name, style=style, points=marks, line=False),
        Series(name=name, style=style, points=line, marks=False),
    ]


def write_pictures(
    reproduction: Reproduction, results: Results, files: Mapping[str, Path], directory: Path
) -> str | None:
    """Originals of the first seed, and below them what each method made of every case with the same originals."""
    rows = []
    originals: torch.Tensor | None = None
    for one in results.cells:
        path = files.get(one.records[0].key) if one.records else None
        if path is None:
            continue
        pictures = read_pictures(path, most=MOST_IMAGES)
        if originals is None:
            originals = pictures.originals
            rows.append((f"Private images (seed {one.records[0].seed})", originals / 255))
        if originals.shape == pictures.originals.shape and torch.equal(originals, pictures.originals):
            numbers = f"PSNR {METRICS['psnr'].show(one.records[0].psnr)} dB"
            rows.append((f"{one.method}, {one.here}: {numbers}", pictures.reconstruction / 255))
    if not rows:
        return None
    name = f"{reproduction.name}.png"
    write_sheet(directory / name, rows)
    return name


def write_tuning(reproduction: Reproduction, file: TuningFile, directory: Path) -> str | None:
    """The cumulative minimum over the trials of a tuning (AWA fig_loss_BO)."""
    found = drawn_tuning(file)
    if found is None:
        return None
    name = f"{reproduction.name}-minimum.svg"
    write_bytes(directory / name, svg(found.chart).encode())
    return name
