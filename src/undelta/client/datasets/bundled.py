"""Data sets that come inside the wheels of scikit-image and scikit-learn: nothing is downloaded."""

from __future__ import annotations

from functools import lru_cache, partial
from importlib import resources
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from undelta.client.datasets.arrays import array_dataset
from undelta.client.datasets.dataset import GREY, Dataset, color_dataset
from undelta.client.datasets.folders import read_picture
from undelta.errors import DataError

PHOTOS = {
    "portrait": "astronaut.png",
    "cat": "chelsea.png",
    "coffee": "coffee.png",
    "rocket": "rocket.jpg",
    "motorcycle": "motorcycle_left.png",
    "galaxies": "hubble_deep_field.jpg",
    "retina": "retina.jpg",
    "histology": "ihc.png",
}
"""What each picture shows, in order of the classes, and its file in scikit-image."""
GRID = 6
"""Patches along each side of a photograph."""


def photos() -> Dataset:
    """Eight color photographs, among them a portrait, a retina scan and a tissue slide; a class each."""
    return _photographs("photos", grid=1)


def patches() -> Dataset:
    """288 color patches: each of the eight photographs cut into 6 x 6; the photograph is the class."""
    return _photographs("patches", grid=GRID)


def _photographs(name: str, *, grid: int) -> Dataset:
    """The photographs, each cut into grid x grid."""
    for file in PHOTOS.values():
        _scikit_image(file)  # complains now
    labels = torch.arange(len(PHOTOS)).repeat_interleave(grid**2)
    return color_dataset(name, labels, classes=len(PHOTOS), read=partial(_read_patch, grid))


def faces() -> Dataset:
    """100 faces (label 1), then 100 patches of background (label 0), grey, 25 x 25, from LFW."""
    file = _scikit_image("lfw_subset.npy")
    try:
        with file.open("rb") as stream:
            images = np.load(stream, allow_pickle=False)
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"cannot read {str(file)!r} ({error}); reinstall scikit-image.") from error
    if images.shape != (200, 25, 25):
        raise DataError(f"expected {str(file)!r} to hold (200, 25, 25), got {images.shape}.")
    if images.dtype != np.uint8:  # stored as floats in [0, 1]
        images = np.rint(images * 255).astype(np.uint8)
    labels = np.repeat([1, 0], 100)
    return array_dataset("faces", images[..., None], labels, classes=2, statistics=GREY)


def digits() -> Dataset:
    """1797 handwritten digits, grey, 8 x 8, from scikit-learn; its 17 grey levels span [0, 1]."""
    found = find_spec("sklearn")
    if found is None or not found.submodule_search_locations:
        raise DataError('digits come with scikit-learn: pip install "undelta[digits]".')
    # Read as a file: to import scikit-learn takes longer than many a trial.
    file = Path(found.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    try:
        rows = np.loadtxt(file, delimiter=",", dtype=np.float64)
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"cannot read {str(file)!r} ({error}); reinstall scikit-learn.") from error
    if rows.shape != (1797, 65):
        raise DataError(f"expected {str(file)!r} to hold (1797, 65), got {rows.shape}.")
    images = np.rint(rows[:, :64].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    return array_dataset("digits", images[..., None], rows[:, 64].astype(np.int64), classes=10, statistics=GREY)


def _scikit_image(name: str) -> Traversable:
    # By path rather than through skimage.data, which may ask the network for some files.
    file = resources.files("skimage") / "data" / name
    if not file.is_file():
        raise DataError(f"scikit-image is installed without {name}; reinstall it from its wheel.")
    return file


def _read_patch(grid: int, index: int, side: int) -> Tensor:
    photo, place = divmod(index, grid**2)
    row, column = divmod(place, grid)
    whole = _read_whole(list(PHOTOS.values())[photo], grid * side)
    return whole[:, row * side : (row + 1) * side, column * side : (column + 1) * side].clone()


@lru_cache(maxsize=len(PHOTOS))
def _read_whole(name: str, side: int) -> Tensor:
    # Kept, since a draw of many patches would decode the same few photographs again and again.
    with resources.as_file(_scikit_image(name)) as path:
        return read_picture(path, side)
