"""Data sets stored as arrays: .npz, idx (MNIST, Fashion-MNIST) and CIFAR's binary version."""

from __future__ import annotations

import gzip
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from undelta.client.datasets.dataset import (
    CIFAR10,
    CIFAR100,
    FASHION_MNIST,
    GREY,
    IMAGENET,
    MNIST,
    Dataset,
    Statistics,
    read_array,
)
from undelta.errors import DataError, ObservationError
from undelta.files import check_unpacked
from undelta.models.checks import MOST_CLASSES
from undelta.observation.checkpoint import read_arrays, read_checkpoint

# Fixed names, not patterns: a folder of a million pictures is then not listed to find out that it is one.
_IDX_IMAGES = [
    f"{split}-images{dot}idx3-ubyte{suffix}" for split in ("train", "t10k") for dot in "-." for suffix in ("", ".gz")
]
_DAMAGED = (OSError, EOFError, ValueError, MemoryError, zlib.error)


def array_dataset(
    name: str,
    images: npt.NDArray[np.uint8],
    labels: npt.NDArray[Any],
    *,
    classes: int,
    statistics: Statistics,
) -> Dataset:
    """A data set over images (M, H, W, C), with at least `classes` classes."""
    if len(images) == 0 or len(images) != len(labels):
        raise DataError(f"{name}: expected as many labels as images, got {len(images)} and {len(labels)}.")
    if labels.min() < 0 or labels.max() >= MOST_CLASSES:
        low, high = labels.min(), labels.max()
        raise DataError(f"{name}: expected labels from 0 to {MOST_CLASSES - 1}, got {low} to {high}.")
    _, height, width, channels = images.shape
    return Dataset(
        name=name,
        labels=torch.from_numpy(labels.astype(np.int64)),
        classes=max(classes, int(labels.max()) + 1),
        channels=channels,
        mean=statistics[0],
        std=statistics[1],
        read=partial(read_array, images),
        native_size=height if height == width else None,
    )


def open_npz(path: Path) -> Dataset:
    """Read `images`, (M, H, W) or (M, H, W, C) uint8, and `labels`, (M,) integers."""
    arrays = read_arrays(path, DataError, ("images", "labels"))
    if len(arrays) < 2:
        raise DataError(f"{str(path)!r}: expected arrays images and labels, got {', '.join(arrays) or 'neither'}.")
    images, labels = arrays["images"], arrays["labels"]
    if images.ndim == 3:
        images = images[..., None]
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] not in (1, 3) or 0 in images.shape:
        raise DataError(
            f"{str(path)!r}: expected images of type uint8 and shape (M, H, W), (M, H, W, 1) "
            f"or (M, H, W, 3), got {images.dtype} {images.shape}."
        )
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise DataError(f"{str(path)!r}: expected integer labels (M,), got {labels.dtype} {labels.shape}.")
    return _plain_arrays(path, images, labels)


def open_tensors(path: Path) -> Dataset:
    """A PyTorch file of `images` and `labels`; only tensors are unpickled.

    Images are uint8, or floats in [0, 1], which are rounded to 8 bits: (M, H, W), (M, C, H, W) or (M, H, W, C).
    """
    try:
        tensors, _ = read_checkpoint(path)
    except ObservationError as problem:
        raise DataError(str(problem)) from problem
    if not {"images", "labels"} <= tensors.keys():
        raise DataError(f"{str(path)!r}: expected tensors images and labels, got {', '.join(tensors) or 'neither'}.")
    images, labels = tensors["images"], tensors["labels"]
    if images.is_floating_point():
        if not images.numel() or not torch.isfinite(images).all() or images.min() < 0 or images.max() > 1:
            raise DataError(f"{str(path)!r}: expected floats in [0, 1], before normalization, got others.")
        images = (images * 255).round().to(torch.uint8)
    if images.dim() == 3:
        images = images[:, None]
    if images.dim() == 4 and images.shape[1] in (1, 3):
        images = images.permute(0, 2, 3, 1)
    if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[-1] not in (1, 3) or 0 in images.shape:
        raise DataError(
            f"{str(path)!r}: expected images (M, H, W), (M, C, H, W) or (M, H, W, C) with 1 or 3 channels, uint8 or "
            f"floats in [0, 1], got {images.dtype} {tuple(images.shape)}."
        )
    if labels.dim() != 1 or labels.is_floating_point() or labels.is_complex():
        raise DataError(f"{str(path)!r}: expected integer labels (M,), got {labels.dtype} {tuple(labels.shape)}.")
    return _plain_arrays(path, images.contiguous().numpy(), labels.numpy())


def _plain_arrays(path: Path, images: npt.NDArray[np.uint8], labels: npt.NDArray[Any]) -> Dataset:
    color = CIFAR10 if images.shape[1:3] == (32, 32) else IMAGENET
    return array_dataset(path.name, images, labels, classes=1, statistics=GREY if images.shape[-1] == 1 else color)


def open_idx(folder: Path) -> Dataset | None:
    """MNIST or Fashion-MNIST from ``{train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz]``, if there.

    The training images if present, else the test images. The normalization is Fashion-MNIST's if the
    folder (or, for a folder called raw, its parent) has "fashion" in its name, else MNIST's.
    """
    images_path = next((folder / name for name in _IDX_IMAGES if (folder / name).is_file()), None)
    if images_path is None:
        return None
    names = [images_path.name.replace("images", "labels").replace("idx3", "idx1")]
    names.append(names[0].removesuffix(".gz") if names[0].endswith(".gz") else names[0] + ".gz")
    labels_path = next((folder / name for name in names if (folder / name).is_file()), None)
    if labels_path is None:
        raise DataError(f"found {str(images_path)!r}, but not its labels {names[0]!r} beside it.")
    images, labels = _read_idx(images_path, 3), _read_idx(labels_path, 1)
    name = folder.parent.name if folder.name == "raw" else folder.name
    statistics = FASHION_MNIST if "fashion" in name.lower() else MNIST
    return array_dataset(name, images[..., None], labels, classes=10, statistics=statistics)


def open_cifar(folder: Path) -> Dataset | None:
    """CIFAR-10 or CIFAR-100 in the binary version, if there: training images if present, else test images.

    Each record is one label byte (CIFAR-100: the coarse label, then the fine one, which counts here) and
    3 x 32 x 32 pixels.
    """
    for names, label_bytes, classes, statistics in (
        ([f"data_batch_{number}.bin" for number in range(1, 6)], 1, 10, CIFAR10),
        (["test_batch.bin"], 1, 10, CIFAR10),
        (["train.bin"], 2, 100, CIFAR100),
        (["test.bin"], 2, 100, CIFAR100),
    ):
        files = [folder / name for name in names if (folder / name).is_file()]
        if files:
            records = np.concatenate([_read_records(file, label_bytes) for file in files])
            labels = records[:, label_bytes - 1]
            if labels.max() >= classes:
                raise DataError(f"{str(folder)!r}: expected labels below {classes}, got {labels.max()}.")
            images = records[:, label_bytes:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
            return array_dataset(folder.name, images, labels, classes=classes, statistics=statistics)
    return None


def has_pickled_cifar(folder: Path) -> bool:
    """Whether the folder holds CIFAR's "python version", whose files have no suffix."""
    cifar10 = (folder / "data_batch_1").is_file() or (folder / "test_batch").is_file()
    return cifar10 or all((folder / name).is_file() for name in ("train", "test", "meta"))


def _read_idx(path: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    """Read one idx file of bytes: magic number, shape (32 bits each, big-endian), values."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            header = file.read(4 * (1 + dimensions))
            if len(header) < 4 * (1 + dimensions) or header[:4] != bytes([0, 0, 8, dimensions]):
                raise ValueError(f"its header is not that of {dimensions}-dimensional bytes")
            shape = [int(value) for value in np.frombuffer(header, dtype=">u4")[1:]]
            size = int(np.prod(shape, dtype=object))
            if 0 in shape:
                raise ValueError(f"its header claims the shape {tuple(shape)}")
            check_unpacked(path.stat().st_size, size)
            values = file.read(size + 1)  # one more, to notice a file that is too long
    except _DAMAGED as error:
        raise DataError(f"cannot read {str(path)!r} as an idx file: {_line(error)}.") from error
    if len(values) != size:
        came = "more" if len(values) > size else f"{len(values)}"
        raise DataError(f"cannot read {str(path)!r} as an idx file: expected {size} values, got {came}.")
    return np.frombuffer(values, dtype=np.uint8).reshape(shape)


def _read_records(path: Path, label_bytes: int) -> npt.NDArray[np.uint8]:
    try:
        content = np.fromfile(path, dtype=np.uint8)
    except _DAMAGED as error:
        raise DataError(f"cannot read {str(path)!r}: {_line(error)}.") from error
    size = label_bytes + 3 * 32 * 32
    if len(content) == 0 or len(content) % size:
        raise DataError(f"{str(path)!r}: expected records of {size} bytes, got {len(content)} bytes in all.")
    return content.reshape(-1, size)


def _line(error: BaseException) -> str:
    """An error's message on one line, or its type if it has none."""
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
