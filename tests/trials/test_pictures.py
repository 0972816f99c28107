"""Contact sheets: sizes, positions and colors of the tiles."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from undelta.errors import ConfigError
from undelta.trials.pictures import write_sheet

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def plain(*colors: tuple[int, int, int], height: int = 32, width: int = 32) -> Tensor:
    """Images of one color each."""
    return torch.tensor(colors).div(255).view(-1, 3, 1, 1).expand(-1, 3, height, width)


def sheet(path: Path, *rows: tuple[str, Tensor]) -> Image.Image:
    write_sheet(path / "sheet.png", rows)
    with Image.open(path / "sheet.png") as image:
        assert image.format == "PNG"
        return image.convert("RGB")


def test_tiles_stand_where_they_should(tmp_path: Path) -> None:
    image = sheet(tmp_path, ("original", plain(RED, GREEN, BLUE)), ("guess", plain(BLUE, RED, GREEN)))
    assert image.size == (4 + 3 * 100, 4 + 2 * (20 + 96 + 4))
    for column, (above, below) in enumerate([(RED, BLUE), (GREEN, RED), (BLUE, GREEN)]):
        left, right = 4 + 100 * column, 99 + 100 * column
        for x in (left, right):
            assert [image.getpixel((x, y)) for y in (24, 119)] == [above, above]
            assert [image.getpixel((x, y)) for y in (144, 239)] == [below, below]
        assert image.getpixel((right + 1, 60)) == (255, 255, 255)


def test_pixels_are_enlarged_without_smoothing(tmp_path: Path) -> None:
    pattern = torch.tensor([[0.0, 1.0], [0.5, 0.2]]).view(1, 1, 2, 2)
    image = sheet(tmp_path, ("", pattern)).crop((4, 24, 100, 120))
    assert sorted(image.getcolors() or []) == [(48 * 48, (value,) * 3) for value in (0, 51, 128, 255)]
    corners = [image.getpixel(place) for place in ((0, 0), (95, 0), (0, 95), (95, 95))]
    assert corners == [(0, 0, 0), (255, 255, 255), (128, 128, 128), (51, 51, 51)]


def test_large_and_oblong_images_keep_their_shape(tmp_path: Path) -> None:
    assert sheet(tmp_path, ("", plain(RED, height=50, width=200))).size == (4 + 204, 4 + 20 + 50 + 4)
    assert sheet(tmp_path, ("", plain(RED, height=16, width=32))).size == (4 + 100, 4 + 20 + 48 + 4)


def test_more_than_sixteen_images_go_on_below(tmp_path: Path) -> None:
    top, bottom = plain(*[RED] * 16, GREEN), plain(*[BLUE] * 16, RED)
    image = sheet(tmp_path, ("original", top), ("guess", bottom))
    assert image.size == (4 + 16 * 100, 4 + 4 * 120)
    assert [image.getpixel((50, 70 + 120 * row)) for row in range(4)] == [RED, BLUE, GREEN, RED]
    assert image.getpixel((150, 70 + 120 * 2)) == (255, 255, 255)


def test_values_out_of_range_are_clamped(tmp_path: Path) -> None:
    values = torch.tensor([-3.0, 7.0]).view(2, 1, 1, 1).expand(2, 3, 32, 32)
    image = sheet(tmp_path, ("", values))
    assert [image.getpixel((x, 60)) for x in (50, 150)] == [(0, 0, 0), (255, 255, 255)]


def test_captions_are_written_above_their_rows(tmp_path: Path) -> None:
    def dark(image: Image.Image, top: int) -> bool:
        return image.crop((4, top, 100, top + 20)).convert("L").getextrema()[0] < 128  # type: ignore[operator]

    image = sheet(tmp_path, ("original", plain(RED)), ("", plain(RED)))
    assert dark(image, 4)
    assert not dark(image, 124)


def test_equal_images_give_equal_files(tmp_path: Path) -> None:
    for name in ("one.png", "two.png"):
        write_sheet(tmp_path / name, [("original", plain(RED, GREEN))])
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="absent"):
        write_sheet(tmp_path / "absent" / "sheet.png", [("", plain(RED))])


def test_a_sheet_has_room_for_its_captions(tmp_path: Path) -> None:
    short, long = "AWA", "strongest (ours), N=2, E=8, B=1: PSNR 9.07 dB"
    assert sheet(tmp_path, (short, plain(RED))).width == 4 + 100
    image = sheet(tmp_path, (short, plain(RED)), (long, plain(RED)))
    assert image.width > 104
    inked = [x for x in range(image.width) if any(image.getpixel((x, y)) != (255, 255, 255) for y in range(124, 144))]
    assert 200 < max(inked) < image.width - 1  # its last letter is there, and ends within the sheet
