"""Sheets: all tiles of a trial in one picture, encoded so that a page of fifty trials stays small.

All are WebP: originals and reconstructions exact while there is room, then compressed, then smaller. Pictures on the
way may be coarser and fewer. Metrics never depend on any of this: they were measured on the full pictures.
"""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (the name everyone uses)

from undelta.report.pictures import MOST_FRAMES, Pictures, spread_out

BUDGET = 2_600_000
"""Bytes of all pictures of a page before base64, which adds a third."""
MOST_SHEET = 200_000
"""Bytes of one sheet of iterates, however much room there is; they are shown for a moment each."""
SHARES = {"originals": 0.15, "reconstruction": 0.3, "iterates": 0.55}
BLOCK = 16  # WebP's; a tile that ends within one would bleed into the next
MOST_PIXELS = 16_000  # WebP takes 16 383 a side
HOPELESS = 60  # pixels per byte that hardly any picture reaches

# Ways to encode tiles, best first: at most so many rows, shrunk to a longest side, at a quality of WebP; None is exact.
STILLS = ((1, None, None), (1, None, 90), (1, None, 75), (1, 128, 80), (1, 64, 75), (1, 48, 65), (1, 32, 60))
ON_THE_WAY = (
    (MOST_FRAMES, 128, 80),
    (16, 128, 75),
    (16, 64, 75),
    (12, 64, 60),
    (8, 48, 50),
    (4, 48, 40),
    (4, 32, 25),
    (4, 24, 10),
)


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A grid of tiles as one encoded picture; rows are moments, columns are images."""

    id: str
    uri: str
    width: int
    height: int
    tile: tuple[int, int]
    """Width and height of a tile's picture."""
    step: tuple[int, int]
    """From one tile to the next."""
    exact: bool
    """Whether every pixel is as it was."""
    frames: tuple[int, ...]
    """Which of the given moments its rows are."""


class Sheets:
    """Encodes each distinct sheet once, within one page's budget."""

    def __init__(self, *, trials: int, originals: int) -> None:
        """Share the budget out.

        Args:
            trials: How many trials have pictures.
            originals: How many different sets of originals they attack.
        """
        counts = {"originals": originals, "reconstruction": trials, "iterates": trials}
        self._room = {name: BUDGET * share / max(1, counts[name]) for name, share in SHARES.items()}
        self._room["iterates"] = min(self._room["iterates"], MOST_SHEET)
        self.all: dict[str, Sheet] = {}

    def originals(self, pictures: Pictures) -> Sheet:
        """The private images in one row."""
        return self._first_that_fits(pictures.originals.unsqueeze(0), STILLS, "originals")

    def reconstruction(self, pictures: Pictures) -> Sheet:
        """The attack's result in one row."""
        return self._first_that_fits(pictures.reconstruction.unsqueeze(0), STILLS, "reconstruction")

    def iterates(self, pictures: Pictures) -> Sheet | None:
        """The pictures on the way, one row each; None if there are none."""
        return self._first_that_fits(pictures.iterates, ON_THE_WAY, "iterates") if len(pictures.iterates) else None

    def _first_that_fits(self, tiles: Tensor, rungs: Sequence[tuple[int, int | None, int | None]], kind: str) -> Sheet:
        """Tiles (R, n, C, H, W) by the best rung within the room; by the last one in any case."""
        room = self._room[kind]
        for rung in rungs:
            count, side, quality = rung
            frames = spread_out(len(tiles), count)
            height, width = _size(tiles, side)
            rows, columns = len(frames), tiles.shape[1]
            pixels, longest = rows * columns * height * width, max(rows * (height + BLOCK), columns * (width + BLOCK))
            # Large pictures are slow to encode; what cannot fit is not tried.
            if rung is not rungs[-1] and (pixels > HOPELESS * room or longest > MOST_PIXELS):
                continue
            sheet = _encode(tiles[frames], side, quality, tuple(frames))
            if len(sheet.uri) * 3 // 4 <= room:
                break
        return self.all.setdefault(sheet.id, sheet)


def fingerprint(images: Tensor) -> str:
    """Tells sets of originals apart."""
    return hashlib.sha256(f"{tuple(images.shape)}".encode() + images.contiguous().numpy().tobytes()).hexdigest()


def _size(tiles: Tensor, side: int | None) -> tuple[int, int]:
    """Height and width of each, once its longest side is at most this."""
    height, width = tiles.shape[-2:]
    factor = 1.0 if side is None else min(1.0, side / max(height, width))
    return max(1, round(height * factor)), max(1, round(width * factor))


def _shrink(tiles: Tensor, size: tuple[int, int]) -> Tensor:
    images = tiles.flatten(0, 1).float()
    small = F.interpolate(images, size=size, mode="bilinear", antialias=True, align_corners=False)
    return small.round().clamp(0, 255).to(torch.uint8).view(*tiles.shape[:3], *size)


def _encode(tiles: Tensor, side: int | None, quality: int | None, frames: tuple[int, ...]) -> Sheet:
    size = height, width = _size(tiles, side)
    whole = size == tiles.shape[-2:]
    rows, columns, channels = tiles.shape[:3]
    block = 1 if quality is None else BLOCK
    pad_right, pad_below = -width % block, -height % block
    images = (tiles if whole else _shrink(tiles, size)).flatten(0, 1).float()
    # Repeated borders, not black ones: an edge would ring into the picture.
    padded = F.pad(images, (0, pad_right, 0, pad_below), mode="replicate").to(torch.uint8)
    step = (width + pad_right, height + pad_below)
    grid = padded.view(rows, columns, channels, step[1], step[0]).permute(0, 3, 1, 4, 2)  # (R, H, n, W, C)
    pixels = grid.reshape(rows * step[1], columns * step[0], channels)
    picture = Image.fromarray((pixels.squeeze(2) if channels == 1 else pixels).contiguous().numpy())
    content = io.BytesIO()
    picture.save(content, "WEBP", lossless=quality is None, exact=True, quality=quality or 100, method=2)
    return Sheet(
        id="p" + hashlib.sha256(content.getvalue()).hexdigest()[:12],
        uri=f"data:image/webp;base64,{base64.b64encode(content.getvalue()).decode()}",
        width=picture.width,
        height=picture.height,
        tile=(width, height),
        step=step,
        exact=quality is None and whole,
        frames=frames,
    )
