"""Sheets: all tiles of a trial in one picture, encoded so that a page of fifty trials stays small.

Originals and reconstructions are kept exact (PNG) while there is room, then become JPEG, then smaller. Pictures on the
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
FINE = 80  # from this quality of JPEG on, colors are as sharp as brightness
HOPELESS = 60  # pixels per byte that hardly any picture reaches

# (longest side, quality), best first
STILLS = ((None, None), (None, 92), (None, 85), (128, 88), (96, 85), (64, 82), (64, 70), (48, 65), (32, 60))
# (frames, longest side, quality), best first
ON_THE_WAY = (
    *((frames, 128, 85) for frames in (MOST_FRAMES, 16)),
    *((frames, 64, 80) for frames in (16, 12)),
    *((frames, 64, 65) for frames in (12, 8)),
    *((frames, 48, 50) for frames in (8, 6, 4)),
    (4, 32, 40),
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
        exact_pays = True
        for rung in rungs:
            # Large pictures are slow to encode; what cannot fit is not tried.
            if rung is not rungs[-1] and rung.pixels > HOPELESS * room:
                continue
            sheet = rung.encode(exact_too=exact_pays)
            if _size(sheet) <= room:
                break
            exact_pays = sheet.exact and rung.quality is not None
        return self._keep(sheet)

    def _keep(self, sheet: Sheet) -> Sheet:
        return self.all.setdefault(sheet.id, sheet)


def fingerprint(images: Tensor) -> str:
    """Tells sets of originals apart."""
    return hashlib.sha256(f"{tuple(images.shape)}".encode() + images.contiguous().numpy().tobytes()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class _Rung:
    """One way to encode tiles (R, n, C, H, W): shrunk to a longest side, at a quality of JPEG; None is exact."""

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

    def encode(self, *, exact_too: bool) -> Sheet:
        """JPEG, or PNG where that takes less: pictures of few pixels or colors."""
        shrunk = _shrink(self.tiles, self.side)
        sheets = [_sheet(shrunk, self.quality)]
        if self.quality and exact_too:
            sheets.append(_sheet(shrunk, None))
        best = min(sheets, key=_size)
        return replace(best, exact=best.exact and shrunk is self.tiles, frames=self.frames)


def _sheet(tiles: Tensor, quality: int | None) -> Sheet:
    rows, columns, channels, height, width = tiles.shape
    # A tile that ends within one of JPEG's blocks would bleed into the next.
    block = 1 if quality is None else 8 if quality >= FINE else 16
    pad_right, pad_below = -width % block, -height % block
    # Repeated borders, not black ones: an edge would ring into the picture.
    padded = F.pad(tiles.flatten(0, 1).float(), (0, pad_right, 0, pad_below), mode="replicate").to(torch.uint8)
    step = (width + pad_right, height + pad_below)
    grid = padded.view(rows, columns, channels, step[1], step[0]).permute(0, 3, 1, 4, 2)  # (R, H, n, W, C)
    pixels = grid.reshape(rows * step[1], columns * step[0], channels)
    picture = Image.fromarray((pixels.squeeze(2) if channels == 1 else pixels).contiguous().numpy())
    content = io.BytesIO()
    if quality:
        picture.save(content, "JPEG", quality=quality, subsampling=0 if quality >= FINE else 2)
    else:
        picture.save(content, "PNG")
    return Sheet(
        id="p" + hashlib.sha256(content.getvalue()).hexdigest()[:12],
        uri=f"data:image/{'jpeg' if quality else 'png'};base64,{base64.b64encode(content.getvalue()).decode()}",
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


def _size(sheet: Sheet) -> int:
    return len(sheet.uri) * 3 // 4
