"""Grids of pictures: the originals, below them what each attack made of them, and the way there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from undelta.client.private import UNKNOWN
from undelta.evaluation.baselines import COLOR, Guess
from undelta.evaluation.measures import METRICS
from undelta.evaluation.score import ImageScore
from undelta.report.pictures import Pictures, read_pictures
from undelta.report.sheets import Sheet, Sheets, fingerprint
from undelta.report.tables import grouped
from undelta.trials.record import Record
from undelta.trials.verdict import Exposed

ROOM = 1080  # pixels of a page for one row of tiles
LARGE = 220  # pixels of a picture on the first screen
LEAST, MOST = 96, 160  # pixels of one tile


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
    originals: Sheet | None
    """None where nobody knows them."""
    colors: tuple[str, ...]
    """Each original's mean color, the simplest guess of all."""
    original_tips: tuple[str, ...]
    rows: tuple[Row, ...]
    places: tuple[int, ...]
    """Which images of the batch are shown, from 0."""
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
    def shown(self) -> str:
        """Which images these are, in words; nothing if they are all."""
        if self.total == len(self.places):
            return ""
        others = "" if self.places[-1] < len(self.places) else " and the most exposed"
        return f"{len(self.places)} of {self.total}: the first ones{others}"

    @property
    def pixelated(self) -> bool:
        """Whether pixels are to stay visible squares."""
        return max(self.native) <= 64

    @property
    def remarks(self) -> list[str]:
        """How the pictures differ from those that were measured."""
        stills = [row.final for row in self.rows] + ([self.originals] if self.originals else [])
        remarks = []
        if any(sheet.tile != self.native for sheet in stills):
            remarks.append("The pictures are {} x {} pixels; some are shown smaller.".format(*self.native))
        if not all(sheet.exact for sheet in stills):
            remarks.append("Pictures are compressed for this page; all metrics were measured on the exact ones.")
        return remarks


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """The most exposed private image, its reconstruction, and what a guess without the update is worth."""

    row: Row
    grid: Grid
    index: int
    """The column of the grid."""

    @property
    def place(self) -> int:
        """Its place in the batch."""
        return self.grid.places[self.index]

    @property
    def guess(self) -> str:
        color = self.row.record.baselines.get(COLOR)
        return _metrics(color.images[self.place] if color and self.place < len(color.images) else None)

    @property
    def result(self) -> str:
        return _metrics(self.row.record.images[self.place])

    @property
    def scale(self) -> tuple[int, int]:
        """Width and height on the first screen; small pictures by a whole factor."""
        width, height = self.grid.native
        factor = max(1, LARGE // max(width, height)) if max(width, height) <= LARGE else LARGE / max(width, height)
        return round(width * factor), round(height * factor)


def unseen(grids: Sequence[Grid]) -> list[Exhibit]:
    """What explains its update best, where nobody knows the originals: its first pictures."""
    rows = [(row, grid) for grid in grids if grid.originals is None for row in grid.rows]
    if not rows:
        return []
    row, grid = min(rows, key=lambda pair: 9.0 if pair[0].record.mismatch is None else pair[0].record.mismatch)
    return [Exhibit(row=row, grid=grid, index=index) for index in range(min(3, len(grid.places)))]


def exhibit(grids: Sequence[Grid], exposed: Exposed | None) -> Exhibit | None:
    """The image that a verdict names, where its pictures are known."""
    if exposed is None:
        return None
    for grid in grids:
        for row in grid.rows:
            known = grid.originals and exposed.image in grid.places and exposed.image < len(row.record.images)
            if row.record.key == exposed.key and known:
                return Exhibit(row=row, grid=grid, index=grid.places.index(exposed.image))
    return None


def make_grids(
    records: Sequence[Record], files: Mapping[str, Path], labels: Mapping[str, str], exposed: Sequence[Exposed] = ()
) -> tuple[dict[tuple[str, str], list[Grid]], Sheets]:
    """The grids of each scenario and defense, one per seed, with the exposed images, and the sheets they show."""
    with_pictures = [record for record in records if record.key in files]
    # Two passes over the files: how much room a sheet gets depends on how many there are, and all of them at once
    # would not fit into memory.
    truths = {record.key: fingerprint(read_pictures(files[record.key]).originals) for record in with_pictures}
    sheets = Sheets(trials=len(with_pictures), originals=len({*truths.values()}))
    batches = grouped(with_pictures, lambda record: (record.group, record.seed, truths[record.key]))
    found: dict[tuple[str, str], list[Grid]] = {}
    for number, ((group, _, _), trials) in enumerate(batches.items()):
        keys = {record.key for record in trials}
        read = partial(read_pictures, keep={one.image for one in exposed if one.key in keys})
        pictures = read(files[trials[0].key])
        known = bool(len(pictures.originals))
        height, width = pictures.reconstruction.shape[-2:]
        grid = Grid(
            id=f"grid{number}",
            seed=trials[0].seed,
            originals=sheets.originals(pictures) if known else None,
            colors=tuple(map(_mean_color, pictures.originals)),
            original_tips=tuple(f"Original {one + 1}{_class(one, trials[0])}" for one in pictures.places if known),
            rows=tuple(
                _row(f"grid{number}row{place}", record, labels[record.key], read(files[record.key]), sheets)
                for place, record in enumerate(trials)
            ),
            places=pictures.places,
            total=pictures.total,
            size=_tile_size(width, height, len(pictures.places)),
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
        tips=tuple(_tip(place, record) for place in pictures.places),
    )


def _class(index: int, record: Record) -> str:
    label = record.images[index].label if index < len(record.images) else UNKNOWN
    return "" if label == UNKNOWN else f", class {label}"


def _mean_color(image: Tensor) -> str:
    color = image.float().mean((1, 2)).round().int().tolist()
    return "#{:02x}{:02x}{:02x}".format(*(color * 3)[:3])


def _tip(index: int, record: Record) -> str:
    """What is said of one reconstruction when it is pointed at."""
    image = record.images[index] if index < len(record.images) else None
    return f"Image {index + 1}{_class(index, record)}; result: {_metrics(image)}"


def _metrics(of: Record | ImageScore | Guess | None) -> str:
    """Those of the three metrics per image that were measured."""
    known = [
        (METRICS[key], value) for key in ("psnr", "ssim", "lpips") if (value := getattr(of, key, None)) is not None
    ]
    units = {"psnr": " dB"}
    return ", ".join(f"{one.title} {one.show(value)}{units.get(one.key, '')}" for one, value in known) or "not measured"


def _tile_size(width: int, height: int, count: int) -> tuple[int, int]:
    """As large as the page allows; small pictures by a whole factor, so that every pixel is the same square."""
    longest = max(width, height)
    room = min(MOST, max(LEAST, ROOM // count - 4))
    factor = max(1, room // longest, -(-LEAST // longest)) if longest <= room else room / longest
    return round(width * factor), round(height * factor)
