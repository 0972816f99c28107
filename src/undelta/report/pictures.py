"""A trial's pictures: read, checked, and cut to what a page can show."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from undelta.errors import DataError
from undelta.files import read_tensors

MOST_IMAGES = 16
"""Images of one trial that a page shows; it says how many there are beyond."""
MOST_FRAMES = 24
"""Pictures on the way, of each trial."""

NAMES = ("originals", "reconstruction", "iterates", "iterations")


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """Some images of a trial; reconstructions are in the order of the originals, if these are known."""

    originals: Tensor  # (n, C, H, W) uint8; (0, C, H, W) without a truth
    reconstruction: Tensor  # (n, C, H, W) uint8
    iterates: Tensor  # (K, n, C, H, W) uint8
    iterations: tuple[int, ...]  # (K,)
    places: tuple[int, ...]  # (n,)
    """Which images of the batch these are, from 0."""
    total: int
    """How many images there are in all."""


def read_pictures(path: Path, *, most: int = MOST_IMAGES, keep: Collection[int] = ()) -> Pictures:
    """The pictures of one trial, as an audit wrote them; of many images those to be kept, and the first ones."""
    tensors, _ = read_tensors(path, kind="pictures", error=DataError)
    missing = [name for name in NAMES if name not in tensors]
    if missing:
        raise DataError(f"{path}: expected {', '.join(NAMES)}; {', '.join(missing)} is missing")
    originals, reconstruction, iterates, iterations = (tensors[name] for name in NAMES)
    if {originals.dtype, reconstruction.dtype, iterates.dtype} != {torch.uint8} or iterations.dtype != torch.int64:
        raise DataError(f"{path}: expected pictures of uint8 and iterations of int64")
    known = originals.dim() != 4 or len(originals) > 0
    shape = tuple((originals if known else reconstruction).shape)
    if len(shape) != 4 or 0 in shape or shape[1] not in (1, 3):
        raise DataError(f"{path}: expected originals (N, C, H, W) of 1 or 3 channels, got {shape}")
    for name, expected in (("reconstruction", shape), ("iterates", (len(iterations), *shape))):
        found = tuple(tensors[name].shape)
        if found != expected or iterations.dim() != 1:
            raise DataError(f"{path}: expected {name} {expected}, got {found}")
    total = len(reconstruction)
    order = sorted(range(total), key=lambda place: (place not in keep, place))
    places = sorted(order[:most])
    return Pictures(
        originals=originals[places] if len(originals) else originals,
        reconstruction=reconstruction[places],
        iterates=iterates[:, places],
        iterations=tuple(iterations.tolist()),
        places=tuple(places),
        total=total,
    )


def spread_out(count: int, most: int) -> list[int]:
    """At most that many of ``count`` places, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return [round(index * (count - 1) / (most - 1)) for index in range(most)] if most > 1 else [0]
