"""Contact sheets: rows of images, the truth on top."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from undelta.files import write_bytes

TILE = 96  # least width of an image in the sheet
GAP = 4
CAPTION = 20
MOST = 16  # images in one line; more continue below


def write_sheet(path: Path, rows: Sequence[tuple[str, Tensor]]) -> None:
    """Write captioned rows of images (N, C, H, W) in [0, 1] as one PNG, cut into blocks of 16 columns."""
    count, _, height, width = rows[0][1].shape
    scale = max(1, -(-TILE // width))
    tile_width, tile_height = width * scale, height * scale
    columns, blocks = min(count, MOST), -(-count // MOST)
    row_height = CAPTION + tile_height + GAP
    font = ImageFont.load_default(14)
    widest = max(math.ceil(font.getlength(caption)) for caption, _ in rows)
    size = (GAP + max(columns * (tile_width + GAP), widest + GAP), GAP + blocks * len(rows) * row_height)
    sheet = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(sheet)
    top = GAP
    for block in range(blocks):
        for caption, images in rows:
            draw.text((GAP, top), caption, fill="black", font=font)
            for column, image in enumerate(images[block * MOST : (block + 1) * MOST]):
                tile = _tile(image).resize((tile_width, tile_height), Image.Resampling.NEAREST)
                sheet.paste(tile, (GAP + column * (tile_width + GAP), top + CAPTION))
            top += row_height
    content = io.BytesIO()
    sheet.save(content, "PNG")
    write_bytes(path, content.getvalue(), private=True)


def _tile(image: Tensor) -> Image.Image:
    pixels = (image.detach().cpu().float().clamp(0, 1) * 255).round().to(torch.uint8)
    pixels = pixels.expand(3, -1, -1) if pixels.shape[0] == 1 else pixels[:3]
    return Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
