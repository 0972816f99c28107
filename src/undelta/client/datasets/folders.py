"""Folders of pictures, and folders of the classic data sets (see `arrays`), told apart by their content."""

from __future__ import annotations

import re
import struct
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from undelta.client.datasets.arrays import has_pickled_cifar, open_cifar, open_idx
from undelta.client.datasets.dataset import Dataset, color_dataset, square
from undelta.errors import DataError
from undelta.models.checks import MOST_CLASSES

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF")
"""What a picture may be, whatever its name says; Pillow knows others that start programs (EPS) or are seldom tried."""
MOST_FILES = 3_000_000  # looked at in a folder: more than ImageNet, less than a whole disk
_NUMBERED = re.compile(r"([0-9]{1,6})[_-]")
_SPLITS = frozenset({"train", "val", "valid", "validation", "test"})


def open_folder(folder: Path) -> Dataset:
    """What a folder holds: idx files, CIFAR's binary files, or pictures.

    The first two are also found one level down and in ``*/raw``, as torchvision lays out its root.
    """
    nested = [path for path in sorted(folder.iterdir()) if path.is_dir()]
    places = [folder, *nested, *(path / "raw" for path in nested if (path / "raw").is_dir())]
    found = [data for place in places for data in (open_idx(place), open_cifar(place)) if data]
    if len(found) > 1:
        names = ", ".join(data.name for data in found)
        raise DataError(f"{str(folder)!r} holds several data sets ({names}); give the folder of one.")
    if found:
        return found[0]
    for place in places:
        if has_pickled_cifar(place):
            raise DataError(
                f"{str(place)!r} holds pickles, which are not opened because they can run code; use CIFAR's "
                "binary version, or an .npz with images (M, 32, 32, 3) uint8 and labels (M,)."
            )
    return open_pictures(folder)


def open_pictures(folder: Path) -> Dataset:
    """A folder of pictures; they are opened when drawn.

    Subfolders with pictures are the classes, in sorted order. In a flat folder the class is the number
    in front of each name (``0966_red_wine.jpg``), with room for all classes up to the largest one; if a
    name lacks a number, or has one of more than five digits, every picture is a class of its own.
    """
    if folder == folder.parent:
        raise DataError(f"{str(folder)!r} is the whole disk; give the folder of the pictures.")
    flat = [path for path in sorted(folder.iterdir()) if _is_picture(path)]
    names = [path.name for path in sorted(folder.iterdir()) if path.is_dir() and path.name[0] != "."]
    nested = [(path, label) for label, name in enumerate(names) for path in sorted(_pictures_under(folder / name))]
    if flat and nested:
        raise DataError(
            f"{str(folder)!r} holds pictures both beside and inside its subfolders; keep either a flat "
            "folder or one subfolder per class."
        )
    if nested and _SPLITS.issuperset(names):
        raise DataError(f"the subfolders of {str(folder)!r} are no classes; give one of {', '.join(names)}.")
    if nested:
        files, labels, classes = [path for path, _ in nested], [label for _, label in nested], len(names)
    elif flat:
        files, labels = flat, _numbers(flat) or list(range(len(flat)))
        classes = max(labels) + 1
    else:
        raise DataError(
            f"found no pictures in {str(folder)!r} ({', '.join(sorted(SUFFIXES))}), "
            "nor MNIST's idx files, nor CIFAR's binary files."
        )
    return color_dataset(folder.name, torch.tensor(labels), classes=classes, read=partial(_read_file, files))


def read_picture(path: Path | BinaryIO, side: int) -> Tensor:
    """Open, turn upright (EXIF), crop to the central square and resize: (3, side, side) in [0, 1]."""
    try:
        with warnings.catch_warnings():
            # A bomb is refused at Pillow's lower threshold already; other remarks on metadata do not matter.
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=FORMATS) as image:
                return square(_to_rgb(ImageOps.exif_transpose(image)), side)
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        limit = Image.MAX_IMAGE_PIXELS
        raise DataError(f"{str(path)!r} has more than {limit} pixels; shrink or remove it.") from error
    except (OSError, EOFError, SyntaxError, ValueError, TypeError, LookupError, struct.error, MemoryError) as error:
        # Pillow's decoders let all of these through on damaged files.
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"cannot read the picture {str(path)!r}: {reason}; repair or remove it.") from error


def read_shaped(place: Path, shape: tuple[int, int, int]) -> tuple[list[str], Tensor]:
    """A picture, or the pictures of a folder by name, as a model takes them whose inputs have this shape."""
    channels, height, width = shape
    if height != width:
        raise DataError(f"the update's images are {height} x {width}; only squares can be cut from pictures")
    paths = [path for path in sorted(place.iterdir()) if _is_picture(path)] if place.is_dir() else [place]
    if not paths:
        raise DataError(f"{place}: no pictures in it ({', '.join(sorted(SUFFIXES))})")
    pictures = torch.stack([in_channels(read_picture(path, height), channels) for path in paths])
    return [path.name for path in paths], pictures


def in_channels(picture: Tensor, channels: int) -> Tensor:
    """A picture with as many channels as the model takes: grey ones repeat, colors are averaged."""
    if picture.shape[0] == channels:
        return picture
    return picture.mean(0, keepdim=True).expand(channels, -1, -1)


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers of unknown range")
    if image.mode.startswith("I"):  # 16 bits (scans, X-rays): Pillow would clip them at 255
        pixels = np.clip(np.asarray(image) // 256, 0, 255)
        image = Image.fromarray(pixels.astype(np.uint8))
    return image.convert("RGB")


def _read_file(files: list[Path], index: int, side: int) -> Tensor:
    return read_picture(files[index], side)


def _is_picture(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and path.name[0] != "." and path.is_file()


def _pictures_under(folder: Path) -> Iterator[Path]:
    for count, path in enumerate(folder.rglob("*")):
        if count >= MOST_FILES:
            raise DataError(f"{str(folder)!r} holds more than {MOST_FILES:,} files; give the folder of the pictures.")
        if _is_picture(path):
            yield path


def _numbers(files: list[Path]) -> list[int] | None:
    """The numbers in front of all names, or None unless all have one below `MOST_CLASSES`."""
    matches = [_NUMBERED.match(path.name) for path in files]
    numbers = [int(match[1]) for match in matches if match]
    return numbers if len(numbers) == len(files) and max(numbers) < MOST_CLASSES else None
