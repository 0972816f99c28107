"""Grids of pictures: the originals, below them what each attack made of them, and the way there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from undelta.evaluation.measures import METRICS
from undelta.evaluation.score import ImageScore
from undelta.report.pictures import Pictures, read_pictures
from undelta.report.sheets import Sheet, Sheets, fingerprint
from undelta.report.tables import grouped
from undelta.trials.record import Record

ROOM = 1080  # pixels of a page for one row of tiles
LEAST, MOST = 64, 128  # pixels of one tile


@dataclass(frozen=True, kw_only=True)
class Row:
    """One attack's pictures."""

    id: str
    record: Record
    label: str
    final: Sheet
    iterates: Sheet | None
    frames: tuple[tuple[int, float | None], ...]
    """Iteration and PSNR of each row of the sheet of iterates."""
    saved: int
    """How many iterates the trial kept."""
    tips: tuple[str, ...]
    """Metrics of each image."""

    @property
    def end(self) -> str:
        """When the slider is at its end."""
        return "result" if self.record.iterations is None else f"result after {self.record.iterations} iterations"

    @property
    def result(self) -> str:
        """What is said of the row then."""
        return f"{self.end}: {_metrics(self.record)}"

    @property
    def data(self) -> dict[str, Any]:
        """What the slider and the dialog need."""
        return {
            "label": self.label,
            "iterations": self.record.iterations,
            "end": self.end,
            "result": self.result,
            "final": self.final.id,
            "iterates": self.iterates.id if self.iterates else None,
            "frames": self.frames,
        }


@dataclass(frozen=True, kw_only=True)
class Grid:
    """One private batch and the attacks on it."""

    id: str
    seed: int
    originals: Sheet
    original_tips: tuple[str, ...]
    rows: tuple[Row, ...]
    shown: int
    total: int
    size: tuple[int, int]
    """Width and height of a tile on the page."""
    native: tuple[int, int]
    """Width and height of the pictures that were measured."""

    @property
    def positions(self) -> list[int]:
        """Iterations that the slider stops at; the last is the result."""
        found = {iteration for row in self.rows for iteration, _ in row.frames}
        found |= {row.record.iterations for row in self.rows if row.record.iterations is not None}
        return sorted(found) if any(row.frames for row in self.rows) else []

    @property
    def pixelated(self) -> bool:
        """Whether pixels are to stay visible squares."""
        return max(self.native) <= LEAST

    @property
    def remarks(self) -> list[str]:
        """How the pictures differ from those that were measured."""
        stills = [self.originals, *(row.final for row in self.rows)]
        remarks = []
        if any(sheet.tile != self.native for sheet in stills):
            remarks.append("The pictures are {} x {} pixels; some are shown smaller.".format(*self.native))
        if not all(sheet.exact for sheet in stills):
            remarks.append("Pictures are compressed for this page; all metrics were measured on the exact ones.")
        return remarks


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """The private image that was reconstructed best, and its reconstruction."""

    row: Row
    grid: Grid
    index: int


def exhibit(grids: Sequence[Grid]) -> Exhibit | None:
    """The closest reconstruction among all that the grids show, by SSIM where there is one, else by PSNR."""
    found = [
        ((-1.0 if image.ssim is None else image.ssim, image.psnr), Exhibit(row=row, grid=grid, index=index))
        for grid in grids
        for row in grid.rows
        for index, image in enumerate(row.record.images[: grid.shown])
        if image.psnr is not None
    ]
    return max(found, key=lambda pair: pair[0])[1] if found else None


def make_grids(
    records: Sequence[Record], files: Mapping[str, Path], labels: Mapping[str, str]
) -> tuple[dict[tuple[str, str], list[Grid]], Sheets]:
    """The grids of each scenario and defense, one per seed, and the sheets they show."""
    with_pictures = [record for record in records if record.key in files]
    # Two passes over the files: how much room a sheet gets depends on how many there are, and all of them at once
    # would not fit into memory.
    truths = {record.key: fingerprint(read_pictures(files[record.key]).originals) for record in with_pictures}
    sheets = Sheets(trials=len(with_pictures), originals=len({*truths.values()}))
    batches = grouped(with_pictures, lambda record: (record.group, record.seed, truths[record.key]))
    found: dict[tuple[str, str], list[Grid]] = {}
    for number, ((group, _, _), trials) in enumerate(batches.items()):
        pictures = read_pictures(files[trials[0].key])
        shown = len(pictures.originals)
        height, width = pictures.originals.shape[-2:]
        grid = Grid(
            id=f"grid{number}",
            seed=trials[0].seed,
            originals=sheets.originals(pictures),
            original_tips=tuple(f"Original {index + 1}{_class(index, trials[0])}" for index in range(shown)),
            rows=tuple(
                _row(f"grid{number}row{place}", record, labels[record.key], read_pictures(files[record.key]), sheets)
                for place, record in enumerate(trials)
            ),
            shown=shown,
            total=pictures.total,
            size=_tile_size(width, height, shown),
            native=(width, height),
        )
        found.setdefault(group, []).append(grid)
    return found, sheets


def _row(id_: str, record: Record, label: str, pictures: Pictures, sheets: Sheets) -> Row:
    iterates = sheets.iterates(pictures)
    psnrs = {point.iteration: point.psnr for point in record.curve}
    steps = [pictures.iterations[frame] for frame in iterates.frames] if iterates else []
    return Row(
        id=id_,
        record=record,
        label=label,
        final=sheets.reconstruction(pictures),
        iterates=iterates,
        frames=tuple((step, psnrs.get(step)) for step in steps),
        saved=len(pictures.iterations),
        tips=tuple(_tip(index, record) for index in range(len(pictures.originals))),
    )


def _class(index: int, record: Record) -> str:
    return f", class {record.images[index].label}" if index < len(record.images) else ""


def _tip(index: int, record: Record) -> str:
    """What is said of one reconstruction when it is pointed at."""
    image = record.images[index] if index < len(record.images) else None
    return f"Image {index + 1}{_class(index, record)}; result: {_metrics(image)}"


def _metrics(of: Record | ImageScore | None) -> str:
    """The three that exist per image."""
    psnr, ssim, lpips = (METRICS[key].show(getattr(of, key, None)) for key in ("psnr", "ssim", "lpips"))
    unit = " dB" if of and of.psnr is not None else ""
    return f"PSNR {psnr}{unit}, SSIM {ssim}, LPIPS {lpips}"


def _tile_size(width: int, height: int, count: int) -> tuple[int, int]:
    """As large as the page allows; small pictures by a whole factor, so that every pixel is the same square."""
    longest = max(width, height)
    room = min(MOST, max(LEAST, ROOM // count - 4))
    factor = max(1, room // longest, -(-LEAST // longest)) if longest <= room else room / longest
    return round(width * factor), round(height * factor)
