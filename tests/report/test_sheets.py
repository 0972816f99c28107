"""Pictures for a page: exact while there is room, small when there are many, never in the wrong place."""

from __future__ import annotations

import base64
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from undelta.errors import DataError
from undelta.files import FORMAT, write_tensors
from undelta.report import write_report
from undelta.report.grids import exhibit, make_grids
from undelta.report.pictures import MOST_FRAMES, MOST_IMAGES, Pictures, read_pictures
from undelta.report.read import read_audit
from undelta.report.sheets import BUDGET, MOST_SHEET, Sheet, Sheets
from undelta.report.tables import attack_labels

from .audits import AuditCopy


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def pictures(count: int = 3, channels: int = 3, height: int = 8, width: int = 12, frames: int = 5) -> Pictures:
    return Pictures(
        originals=noise(count, channels, height, width),
        reconstruction=noise(count, channels, height, width, seed=1),
        iterates=noise(frames, count, channels, height, width, seed=2),
        iterations=tuple(range(frames)),
        places=tuple(range(count)),
        total=count,
    )


def decode(sheet: Sheet) -> np.ndarray[Any, Any]:
    """(height, width, channels) of the whole sheet."""
    picture = Image.open(io.BytesIO(base64.b64decode(sheet.uri.partition(",")[2])))
    assert picture.size == (sheet.width, sheet.height)
    return np.asarray(picture.convert("RGB"))


def tile(sheet: Sheet, row: int, column: int) -> Tensor:
    """What the page shows of a sheet, (C, H, W)."""
    x, y = column * sheet.step[0], row * sheet.step[1]
    pixels = decode(sheet)[y : y + sheet.tile[1], x : x + sheet.tile[0]]
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1)


@pytest.mark.parametrize("channels", [1, 3])
def test_with_room_every_pixel_stays_as_it_was(channels: int) -> None:
    given, sheets = pictures(channels=channels), Sheets(trials=1, originals=1)
    for sheet, images in (
        (sheets.originals(given), given.originals),
        (sheets.reconstruction(given), given.reconstruction),
    ):
        assert sheet.exact
        assert sheet.tile == (12, 8)
        assert all(torch.equal(tile(sheet, 0, index), image.expand(3, -1, -1)) for index, image in enumerate(images))


def test_iterates_are_rows_in_their_order() -> None:
    frames = torch.arange(0, 250, 10, dtype=torch.uint8).view(25, 1, 1, 1, 1).expand(25, 3, 3, 9, 9)
    given = pictures(height=9, width=9)
    given = Pictures(**{**vars(given), "iterates": frames, "iterations": tuple(range(25))})
    sheet = Sheets(trials=1, originals=1).iterates(given)
    assert sheet is not None
    assert len(sheet.frames) == MOST_FRAMES
    assert (sheet.frames[0], sheet.frames[-1]) == (0, 24)
    for row, frame in enumerate(sheet.frames):
        for column in range(3):
            assert (tile(sheet, row, column).int() - 10 * frame).abs().max() <= 2


def test_a_compressed_tile_keeps_the_colors_of_its_neighbors_out() -> None:
    """One black and one white picture side by side, of a size that does not fit WebP's blocks."""
    plain = torch.stack([torch.zeros(3, 27, 27), torch.full((3, 27, 27), 255)]).to(torch.uint8)
    speckled = (plain.int() + torch.where(plain > 0, -1, 1) * (noise(2, 3, 27, 27) // 16)).to(torch.uint8)
    given = pictures(count=2, height=27, width=27)
    given = Pictures(**{**vars(given), "originals": speckled})
    sheet = Sheets(trials=1, originals=10_000).originals(given)
    assert sheet.uri.startswith("data:image/webp")
    assert not sheet.exact
    assert tile(sheet, 0, 0).float().mean() < 20
    assert tile(sheet, 0, 1).float().mean() > 235


def test_large_pictures_stay_within_what_webp_can_hold() -> None:
    sheet = Sheets(trials=1, originals=1).originals(pictures(count=16, height=64, width=1100))
    assert max(sheet.width, sheet.height) <= 16_383


def test_nothing_on_the_way_is_no_sheet() -> None:
    assert Sheets(trials=1, originals=1).iterates(pictures(frames=0)) is None


def test_equal_originals_are_kept_once() -> None:
    sheets = Sheets(trials=2, originals=1)
    given = pictures()
    assert sheets.originals(given) is sheets.originals(given)
    assert len(sheets.all) == 1


@pytest.mark.parametrize(("side", "frames"), [(32, 30), (160, 5)])
def test_fifty_trials_of_noise_fit_into_a_page(side: int, frames: int) -> None:
    """Noise is the worst case of any compression; every trial gets the same, so one stands for all."""
    given = pictures(count=MOST_IMAGES, height=side, width=side, frames=frames)
    sheets = Sheets(trials=50, originals=10)
    sizes = [len(sheets.originals(given).uri) / 5, len(sheets.reconstruction(given).uri)]
    iterates = sheets.iterates(given)
    assert iterates is not None
    assert len(iterates.frames) >= 4
    assert 50 * (sum(sizes) + len(iterates.uri)) < 1.4 * BUDGET


def test_a_single_trial_does_not_fill_the_page_for_nothing() -> None:
    sheet = Sheets(trials=1, originals=1).iterates(pictures(count=16, height=32, width=32, frames=40))
    assert sheet is not None
    assert len(sheet.uri) < 1.4 * MOST_SHEET


# Files


def stored(path: Path, **tensors: Tensor) -> Path:
    values = {name: value for name, value in vars(pictures()).items() if isinstance(value, Tensor)}
    values["iterations"] = torch.arange(5)
    write_tensors(path, {**values, **tensors}, {"format": FORMAT, "kind": "pictures"})
    return path


@pytest.mark.parametrize(
    ("tensors", "complaint"),
    [
        ({"originals": torch.zeros(3, 3, 8, 12)}, "uint8"),
        ({"iterations": torch.zeros(5)}, "int64"),
        ({"originals": noise(3, 2, 8, 12)}, "1 or 3 channels"),
        ({"originals": noise(3, 8, 12)}, r"\(N, C, H, W\)"),
        ({"reconstruction": noise(2, 3, 8, 12)}, r"reconstruction \(3, 3, 8, 12\), got \(2, 3, 8, 12\)"),
        ({"iterations": torch.arange(4)}, r"iterates \(4, 3, 3, 8, 12\), got \(5, 3, 3, 8, 12\)"),
    ],
)
def test_pictures_of_another_shape_are_refused(tmp_path: Path, tensors: dict[str, Tensor], complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        read_pictures(stored(tmp_path / "pictures", **tensors))


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    path = tmp_path / "pictures"
    write_tensors(path, {"originals": noise(1, 3, 8, 8)}, {"format": FORMAT, "kind": "pictures"})
    with pytest.raises(DataError, match="reconstruction, iterates, iterations is missing"):
        read_pictures(path)


# Grids


def test_grids_hold_one_batch_and_the_attacks_on_it(finished: Path) -> None:
    audit = read_audit(finished)
    labels = attack_labels(audit.records)
    grids, sheets = make_grids(audit.records, audit.pictures, labels)
    assert [len(of_group) for of_group in grids.values()] == [2, 2, 2, 2]
    grid = grids["epochs=1", "none"][0]
    assert [row.label for row in grid.rows] == ["awa", "ig"]
    assert (grid.seed, grid.places, grid.shown, grid.total, grid.remarks) == (0, (0, 1, 2), "", 3, [])
    # One set of originals per seed, whatever the scenario: they were drawn from the same source.
    assert len({of_seed.originals.id for of_group in grids.values() for of_seed in of_group if of_seed.originals}) == 2
    row = grid.rows[0]
    record = row.record
    assert row.tips[1].startswith("Image 2, class ")
    assert f"PSNR {record.images[1].psnr:.2f} dB, SSIM {record.images[1].ssim:.3f}" in row.tips[1]
    assert row.frames == tuple((point.iteration, point.psnr) for point in record.curve)
    assert grid.positions[-1] == record.iterations == 25
    assert set(grid.positions) >= {iteration for iteration, _ in row.frames}
    assert row.final.id in sheets.all


def test_tiles_are_whole_multiples_of_small_pictures(finished: Path) -> None:
    audit = read_audit(finished)
    grids, _ = make_grids(audit.records, audit.pictures, attack_labels(audit.records))
    grid = grids["epochs=1", "none"][0]
    assert grid.native == (12, 12)
    assert grid.pixelated
    assert grid.size[0] % 12 == grid.size[1] % 12 == 0


def test_the_exhibit_is_the_closest_picture_of_all(finished: Path) -> None:
    audit = read_audit(finished)
    grids, _ = make_grids(audit.records, audit.pictures, attack_labels(audit.records))
    verdict = audit.judgment.verdicts[0]
    found = exhibit(grids["epochs=1", "none"], verdict.exposed)
    assert found is not None
    best = max(
        image.ssim or -1.0
        for record in audit.records
        if record.group == ("epochs=1", "none")
        for image in record.images
    )
    assert found.row.record.images[found.index].ssim == best
    assert exhibit([], verdict.exposed) is None


def test_of_many_images_the_first_and_the_most_exposed_are_shown(audit: AuditCopy) -> None:
    path = audit.records(attack="awa")[0].parent / "pictures.safetensors"
    key, images = path.parent.name, json.loads((path.parent / "record.json").read_text())["images"]
    images = [{**images[0], "ssim": index / 20} for index in range(20)]
    audit.change(path.parent / "record.json", images=images)
    (audit.path / "verdict.json").unlink()
    many = {"originals": noise(20, 3, 8, 8), "reconstruction": noise(20, 3, 8, 8), "iterates": noise(2, 20, 3, 8, 8)}
    write_tensors(path, {**many, "iterations": torch.tensor([0, 9])}, {"format": FORMAT, "kind": "pictures"})
    read = read_audit(audit.path)
    exposed = [verdict.exposed for verdict in read.judgment.verdicts if verdict.exposed]
    grids, _ = make_grids(read.records, read.pictures, attack_labels(read.records), exposed)
    grid = next(grid for of_group in grids.values() for grid in of_group if grid.total == 20)
    assert grid.places == (*range(MOST_IMAGES - 1), 19)
    assert grid.shown == "16 of 20: the first ones and the most exposed"
    assert len(grid.rows[0].tips) == MOST_IMAGES
    found = exhibit([grid], next(one for one in exposed if one.key == key))
    assert found is not None
    assert (found.index, found.place) == (15, 19)
    named = set(re.findall(r"[Mm]ost exposed: image (\d+)", write_report(audit.path).read_text()))
    assert "20" in named
    assert "image 20 of 20" in (audit.path / "report.html").read_text()
