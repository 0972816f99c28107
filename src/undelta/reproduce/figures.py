"""Figures of a reproduction: metrics over cases as SVG, and pictures of one seed as a PNG, from records alone."""

from __future__ import annotations

from pathlib import Path

import torch

from undelta.audit.pictures import write_sheet
from undelta.recording import write_bytes
from undelta.report.charts import Series, chart
from undelta.report.pictures import read_pictures
from undelta.report.read import TuningTrial
from undelta.report.svg import svg
from undelta.report.tuning import tuning as drawn_tuning
from undelta.reproduce.published import METRICS
from undelta.reproduce.reproductions import Reproduction
from undelta.reproduce.results import QUALITY, Results

MOST_IMAGES = 64  # of one client in a picture
WIDE = (760, 300)
FEW = 3  # methods beside which the paper's own line can still be told apart
PAPER_STYLE = 7


def write_charts(reproduction: Reproduction, results: Results, directory: Path) -> list[str]:
    """Each metric over the cases: a point per seed, a line through the means; returns the files' names.

    Where there are few methods the paper's own figures are drawn, too. They come from larger images, so only the
    shape of the two lines can be compared.
    """
    names = []
    for metric in METRICS:
        measure = QUALITY[metric]
        drawn = chart(
            f"{reproduction.title}: {measure.title}",
            "scenario at this scale",
            f"{measure.title} in dB" if metric == "psnr" else measure.title,
            _series(results, metric),
            categories=[results.here(row) for row in results.rows],
            size=WIDE,
        )
        if drawn is None:
            continue
        names.append(f"{reproduction.name}-{metric}.svg")
        write_bytes(directory / names[-1], svg(drawn).encode())
    return names


def _series(results: Results, metric: str) -> list[Series]:
    measure, rows = QUALITY[metric], results.rows
    series = []
    for style, method in enumerate(results.methods):
        cells = [(place, results.at(row, method)) for place, row in enumerate(rows)]
        points = [
            (float(place), value, f"{method}, {cell.cell.here}, seed {entry.seed}: {measure.show(value)}")
            for place, cell in cells
            for entry in cell.scored
            if (value := entry.metrics[metric]) is not None
        ]
        means = [(float(place), mean) for place, cell in cells if (mean := cell.value(metric)) is not None]
        series.append(_points(method, style, points))
        series.append(Series(name=method, style=style, points=means, texts=[""] * len(means), marks=False))
    if len(results.methods) > FEW:
        return series
    for method in results.methods:
        figures = [(place, results.at(row, method).cell.figures) for place, row in enumerate(rows)]
        printed = [
            (float(place), getattr(one, metric), f"{method} in the paper: {measure.show(getattr(one, metric))}")
            for place, one in figures
            if one is not None
        ]
        one = _points(f"in the paper: {', '.join(results.methods)}", PAPER_STYLE, printed)
        series += [one, Series(name=one.name, style=PAPER_STYLE, points=one.points, texts=one.texts, marks=False)]
    return series


def _points(name: str, style: int, points: list[tuple[float, float, str]]) -> Series:
    return Series(
        name=name,
        style=style,
        points=[(x, y) for x, y, _ in points],
        texts=[text for _, _, text in points],
        line=False,
    )


def write_pictures(reproduction: Reproduction, results: Results, directory: Path) -> str | None:
    """Originals of the first seed, and below them what each method made of every case with the same originals."""
    rows = []
    originals: torch.Tensor | None = None
    for one in results.cells:
        path = one.entries[0].pictures if one.entries else None
        if path is None:
            continue
        pictures = read_pictures(path, most=MOST_IMAGES)
        if originals is None:
            originals = pictures.originals
            rows.append((f"Private images (seed {one.entries[0].seed})", originals / 255))
        if originals.shape == pictures.originals.shape and torch.equal(originals, pictures.originals):
            numbers = f"PSNR {QUALITY['psnr'].show(one.entries[0].metrics['psnr'])} dB"
            rows.append((f"{one.cell.method}, {one.cell.here}: {numbers}", pictures.reconstruction / 255))
    if not rows:
        return None
    name = f"{reproduction.name}.png"
    write_sheet(directory / name, rows)
    return name


def write_tuning(reproduction: Reproduction, trials: tuple[TuningTrial, ...], directory: Path) -> str | None:
    """The cumulative minimum over the trials of a tuning (AWA fig_loss_BO)."""
    found = drawn_tuning(trials)
    if found is None:
        return None
    name = f"{reproduction.name}-minimum.svg"
    write_bytes(directory / name, svg(found.chart).encode())
    return name
