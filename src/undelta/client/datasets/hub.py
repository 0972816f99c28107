"""Data sets of other libraries: Hugging Face `datasets` (also Parquet files and folders of them) and torchvision.

Both are loaded when a scenario names them, and not before. `datasets` downloads what is not in its cache, unless
HF_HUB_OFFLINE or HF_DATASETS_OFFLINE is set; code from a repository is never run. torchvision never downloads here.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from undelta.client.datasets.dataset import CIFAR10, CIFAR100, FASHION_MNIST, GREY, IMAGENET, MNIST, Dataset, Statistics
from undelta.client.datasets.dataset import square as cut
from undelta.client.datasets.folders import FORMATS, in_channels, read_picture
from undelta.errors import DataError
from undelta.models.checks import MOST_CLASSES

HUB, VISION = "hf:", "torchvision:"
ROOT = "UNDELTA_TORCHVISION"
"""The variable that says where torchvision's files are; by default, in ./data, as in its own examples."""
LABELS = ("label", "labels", "fine_label", "target")
LOOKED_AT = 16  # pictures, to learn their size and whether they are grey
KNOWN: dict[str, Statistics] = {
    "fashion": FASHION_MNIST,
    "mnist": MNIST,
    "cifar100": CIFAR100,
    "cifar-100": CIFAR100,
    "cifar10": CIFAR10,
    "cifar-10": CIFAR10,
}


@functools.lru_cache(maxsize=2)  # a trial opens its data set more than once
def open_hub(words: str) -> Dataset:
    """``name`` or ``name:split`` of a data set with an image column and a label column; the name may be a path."""
    name, _, split = words.partition(":")
    library = _import("datasets", "hf")
    try:
        table = _load(library, name, split or "train")
    except Exception as problem:  # a library around the network, archives and caches: anything may go wrong
        raise DataError(
            f"cannot open {HUB + words!r}: {_line(problem)}; is it in the cache, or the network up?"
        ) from problem
    pictures = [key for key, kind in table.features.items() if isinstance(kind, library.Image)]
    if len(pictures) != 1:
        raise DataError(f"{HUB + words}: expected one column of images, got {', '.join(pictures) or 'none'}.")
    named = [key for key, kind in table.features.items() if isinstance(kind, library.ClassLabel)]
    column = next((key for key in LABELS if key in table.features), named[0] if named else None)
    if column is None:
        raise DataError(f"{HUB + words}: expected a column of labels ({', '.join(LABELS)}), got none.")
    table = table.cast_column(pictures[0], library.Image(decode=False))  # we decode ourselves: fewer formats, no bombs
    labels = _labels(list(table[column]), HUB + words)
    classes = getattr(table.features[column], "num_classes", None) or int(labels.max()) + 1
    return _dataset(Path(name).name, labels, classes, partial(_row, table, pictures[0]))


def has_tables(folder: Path) -> bool:
    """Whether a folder, or its folder data, holds Parquet files."""
    places = [place for place in (folder, folder / "data") if place.is_dir()]
    return any(path.suffix == ".parquet" for place in places for path in place.iterdir())


def _load(library: Any, name: str, split: str) -> Any:
    path = Path(name).expanduser()
    if path.is_file() and path.suffix == ".parquet":
        return library.load_dataset("parquet", data_files=str(path), split="train")
    if (path / "dataset_info.json").is_file():  # what save_to_disk wrote
        return library.load_from_disk(str(path))
    if (path / "dataset_dict.json").is_file():
        return library.load_from_disk(str(path))[split]
    return library.load_dataset(str(path) if path.is_dir() else name, split=split)


def _row(table: Any, column: str, index: int) -> Image.Image | Path | BytesIO:
    found = table[index][column]
    return BytesIO(found["bytes"]) if found["bytes"] is not None else Path(found["path"])


def open_vision(words: str) -> Dataset:
    """``Name`` or ``Name:split`` of torchvision.datasets, from files that are there."""
    name, _, split = words.partition(":")
    library = _import("torchvision.datasets", "torchvision")
    made = getattr(library, name, None)
    if not name.isidentifier() or name.startswith("_") or not inspect.isclass(made):
        raise DataError(f"torchvision.datasets has no {name!r}; see its documentation for the names.")
    root = Path(os.environ.get(ROOT, "data")).expanduser()
    known = inspect.signature(made).parameters
    if "train" in known:
        if split not in ("", "train", "test"):
            raise DataError(f"{VISION + words}: expected train or test, got {split!r}.")
        chosen: dict[str, Any] = {"train": split != "test"}
    else:
        chosen = {"split": split} if split else {}
    try:
        data = getattr(library, name)(root=str(root), **chosen)
    except Exception as problem:  # as above
        raise DataError(
            f"cannot open {VISION + words!r} in {str(root)!r}: {_line(problem)}; download it there, or set {ROOT}."
        ) from problem
    found = next((getattr(data, key) for key in ("targets", "labels", "_labels") if hasattr(data, key)), None)
    if found is None:
        raise DataError(f"{VISION + words}: expected targets or labels, got neither; write a source of your own.")
    labels = _labels(list(found), VISION + words)
    classes = len(getattr(data, "classes", ())) or int(labels.max()) + 1
    return _dataset(name, labels, classes, partial(_item, data))


def _item(data: Any, index: int) -> Image.Image:
    picture = data[index][0]
    if not isinstance(picture, Image.Image):
        raise DataError(f"expected pictures without a transform, got {type(picture).__name__}")
    return picture


def _dataset(name: str, labels: Tensor, classes: int, picture: Any) -> Dataset:
    """Labels up front, pictures when they are drawn."""
    looked = [_look(picture(index)) for index in range(min(LOOKED_AT, len(labels)))]
    grey = all(mode in ("1", "L") for mode, _ in looked)
    sizes = {size for _, size in looked}
    width, height = next(iter(sizes))
    mean, std = next((value for key, value in KNOWN.items() if key in name.lower()), GREY if grey else IMAGENET)
    if len(mean) != (1 if grey else 3):
        mean, std = GREY if grey else IMAGENET
    return Dataset(
        name=name,
        labels=labels,
        classes=max(classes, int(labels.max()) + 1),
        channels=1 if grey else 3,
        mean=mean,
        std=std,
        read=partial(_read, picture, 1 if grey else 3),
        native_size=width if len(sizes) == 1 and width == height else None,
    )


def _look(picture: Image.Image | Path | BytesIO) -> tuple[str, tuple[int, int]]:
    if isinstance(picture, Image.Image):
        return picture.mode, picture.size
    try:
        with Image.open(picture, formats=FORMATS) as image:
            return image.mode, image.size
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as problem:
        raise DataError(f"cannot read a picture: {_line(problem)}") from problem


def _read(picture: Any, channels: int, index: int, side: int) -> Tensor:
    found = picture(index)
    pixels = cut(found.convert("RGB"), side) if isinstance(found, Image.Image) else read_picture(found, side)
    grey = torch.equal(pixels[0], pixels[1]) and torch.equal(pixels[1], pixels[2])
    return pixels[:1].clone() if grey and channels == 1 else in_channels(pixels, channels)


def _labels(values: list[Any], where: str) -> Tensor:
    try:
        labels = torch.tensor([int(value) for value in values], dtype=torch.int64)
    except (TypeError, ValueError) as problem:
        raise DataError(f"{where}: expected whole numbers as labels ({_line(problem)}).") from problem
    if not len(labels) or labels.min() < 0 or labels.max() >= MOST_CLASSES:
        span = f"{labels.min()} to {labels.max()}" if len(labels) else "none"
        raise DataError(f"{where}: expected labels from 0 to {MOST_CLASSES - 1}, got {span}; use a labeled split.")
    return labels


def _import(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except (ImportError, RuntimeError, OSError) as problem:  # torchvision of another build raises the latter
        how = f'pip install "undelta[{extra}]"' if extra == "hf" else "install the build that fits your torch"
        raise DataError(f"{module} cannot be imported ({_line(problem)}); {how}.") from problem


def _line(problem: BaseException) -> str:
    return (" ".join(str(problem).split()) or type(problem).__name__)[:200].rstrip(".")
