"""Data sets that come inside the wheels of scikit-image and scikit-learn: nothing is downloaded."""

from __future__ import annotations

from functools import lru_cache, partial
from importlib import resources
from importlib.resources.abc import Traversable

import numpy as np
import torch
from torch import Tensor

from undelta.client.datasets.arrays import array_dataset
from undelta.client.datasets.dataset import GREY, IMAGENET, Dataset
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
    files = [_scikit_image(name) for name in PHOTOS.values()]
    return Dataset(
        name="photos",
        labels=torch.arange(len(files)),
        classes=len(files),
        channels=3,
        mean=IMAGENET[0],
        std=IMAGENET[1],
        read=partial(_read_photo, files),
        native_size=None,
    )


def patches() -> Dataset:
    """288 color patches: each of the eight photographs cut into 6 x 6; the photograph is the class."""
    files = [_scikit_image(name) for name in PHOTOS.values()]
    return Dataset(
        name="patches",
        labels=torch.arange(len(files)).repeat_interleave(GRID**2),
        classes=len(files),
        channels=3,
        mean=IMAGENET[0],
        std=IMAGENET[1],
        read=partial(_read_patch, files),
        native_size=None,
    )


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
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataError('digits come with scikit-learn: pip install "undelta[digits]".') from error
    bunch = load_digits()
    images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
    return array_dataset("digits", images[..., None], bunch.target, classes=10, statistics=GREY)


def _scikit_image(name: str) -> Traversable:
    # By path rather than through skimage.data, which may ask the network for some files.
    file = resources.files("skimage") / "data" / name
    if not file.is_file():
        raise DataError(f"scikit-image is installed without {name}; reinstall it from its wheel.")
    return file


def _read_photo(files: list[Traversable], index: int, side: int) -> Tensor:
    with resources.as_file(files[index]) as path:
        return read_picture(path, side)


def _read_patch(files: list[Traversable], index: int, side: int) -> Tensor:
    photo, place = divmod(index, GRID**2)
    row, column = divmod(place, GRID)
    whole = _read_whole(files[photo].name, GRID * side)
    return whole[:, row * side : (row + 1) * side, column * side : (column + 1) * side].clone()


@lru_cache(maxsize=len(PHOTOS))
def _read_whole(name: str, side: int) -> Tensor:
    # Kept, since a draw of many patches would decode the same few photographs again and again.
    with resources.as_file(_scikit_image(name)) as path:
        return read_picture(path, side)
