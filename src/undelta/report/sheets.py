"""Sheets: all tiles of a trial in one picture, encoded so that a page of fifty trials stays small.

All are WebP: originals and reconstructions exact while there is room, then compressed, then smaller. Pictures on the
way may be coarser and fewer. Metrics never depend on any of this: they were measured on the full pictures.
"""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace

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

# (longest side, quality), best first
STILLS = ((None, None), (None, 90), (None, 75), (128, 80), (64, 75), (48, 65), (32, 60))
# (frames, longest side, quality), best first
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
    frames: tuple[int, ...] = ()
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
        return self._still(pictures.originals, "originals")

    def reconstruction(self, pictures: Pictures) -> Sheet:
        """The attack's result in one row."""
        return self._still(pictures.reconstruction, "reconstruction")

    def iterates(self, pictures: Pictures) -> Sheet | None:
        """The pictures on the way, one row each; None if there are none."""
        if not len(pictures.iterates):
            return None
        rungs = []
        for count, side, quality in ON_THE_WAY:
            frames = spread_out(len(pictures.iterates), count)
            rungs.append(_Rung(tiles=pictures.iterates[frames], side=side, quality=quality, frames=tuple(frames)))
        return self._first_that_fits(rungs, "iterates")

    def _still(self, images: Tensor, kind: str) -> Sheet:
        tiles = images.unsqueeze(0)
        return self._first_that_fits([_Rung(tiles=tiles, side=side, quality=quality) for side, quality in STILLS], kind)

    def _first_that_fits(self, rungs: Sequence[_Rung], kind: str) -> Sheet:
        """The best rung within the room; the last one in any case."""
        room = self._room[kind]
        for rung in rungs:
            # Large pictures are slow to encode; what cannot fit is not tried.
            if rung is not rungs[-1] and (rung.pixels > HOPELESS * room or rung.longest > MOST_PIXELS):
                continue
            sheet = rung.encode()
            if len(sheet.uri) * 3 // 4 <= room:
                break
        return self.all.setdefault(sheet.id, sheet)


def fingerprint(images: Tensor) -> str:
    """Tells sets of originals apart."""
    return hashlib.sha256(f"{tuple(images.shape)}".encode() + images.contiguous().numpy().tobytes()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class _Rung:
    """One way to encode tiles (R, n, C, H, W): shrunk to a longest side, at a quality of WebP; None is exact."""

    tiles: Tensor
    side: int | None
    quality: int | None
    frames: tuple[int, ...] = ()

    @property
    def pixels(self) -> float:
        """Of the whole sheet."""
        longest = max(self.tiles.shape[-2:])
        factor = 1.0 if self.side is None else min(1.0, self.side / longest)
        return self.tiles.numel() / self.tiles.shape[2] * factor**2

    @property
    def longest(self) -> float:
        """Pixels of the sheet's longer side, at most."""
        rows, columns, _, height, width = self.tiles.shape
        factor = 1.0 if self.side is None else min(1.0, self.side / max(height, width))
        return max(rows * (factor * height + BLOCK), columns * (factor * width + BLOCK))

    def encode(self) -> Sheet:
        """The sheet."""
        shrunk = _shrink(self.tiles, self.side)
        sheet = _sheet(shrunk, self.quality)
        return replace(sheet, exact=sheet.exact and shrunk is self.tiles, frames=self.frames)


def _sheet(tiles: Tensor, quality: int | None) -> Sheet:
    rows, columns, channels, height, width = tiles.shape
    block = 1 if quality is None else BLOCK
    pad_right, pad_below = -width % block, -height % block
    # Repeated borders, not black ones: an edge would ring into the picture.
    padded = F.pad(tiles.flatten(0, 1).float(), (0, pad_right, 0, pad_below), mode="replicate").to(torch.uint8)
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
        exact=quality is None,
    )


def _shrink(tiles: Tensor, side: int | None) -> Tensor:
    longest = max(tiles.shape[-2:])
    if side is None or longest <= side:
        return tiles
    size = [max(1, round(length * side / longest)) for length in tiles.shape[-2:]]
    images = tiles.flatten(0, 1).float()
    small = F.interpolate(images, size=size, mode="bilinear", antialias=True, align_corners=False)
    return small.round().clamp(0, 255).to(torch.uint8).view(*tiles.shape[:3], *size)
