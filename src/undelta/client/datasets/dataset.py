"""A data set: labels up front, pictures one at a time and at any size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from undelta.errors import DataError

Statistics = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and standard deviation per channel, of pixels in [0, 1]."""

IMAGENET: Statistics = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CIFAR10: Statistics = ((0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616))
CIFAR100: Statistics = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
MNIST: Statistics = ((0.1307,), (0.3081,))
FASHION_MNIST: Statistics = ((0.2860,), (0.3530,))
GREY: Statistics = ((0.5,), (0.25,))


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Labeled pictures that are read when they are drawn.

    Attributes:
        name: what error messages and records call it.
        labels: (M,) int64, each in [0, classes).
        classes: number of classes, at least the largest label plus one.
        channels: 1 (grey) or 3 (RGB).
        mean: per channel, to normalize pixels in [0, 1].
        std: per channel, likewise.
        read: (index, side) -> (C, side, side) float32 in [0, 1], not normalized.
        native_size: side of the stored pictures if all are squares of one size, else None.
    """

    name: str
    labels: Tensor
    classes: int
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    read: Callable[[int, int], Tensor]
    native_size: int | None

    def __len__(self) -> int:
        return len(self.labels)

    def draw(self, indices: Sequence[int] | Tensor, size: int) -> Tensor:
        """The pictures at these indices as (N, C, size, size) float32 in [0, 1]."""
        if size < 1:
            raise DataError(f"expected a picture size of at least 1, got {size=}.")
        chosen = [int(index) for index in indices]
        for index in chosen:
            if not 0 <= index < len(self):
                raise DataError(f"{self.name} has {len(self)} pictures, numbered from 0; got {index=}.")
        if not chosen:
            return torch.empty(0, self.channels, size, size)
        return torch.stack([self.read(index, size) for index in chosen])


def color_dataset(name: str, labels: Tensor, *, classes: int, read: Callable[[int, int], Tensor]) -> Dataset:
    """Color pictures of any size, normalized as ImageNet's are."""
    mean, std = IMAGENET
    return Dataset(
        name=name, labels=labels, classes=classes, channels=3, mean=mean, std=std, read=read, native_size=None
    )


def pick(dataset: Dataset, num_samples: int, generator: torch.Generator) -> Tensor:
    """Indices (num_samples,) of pictures drawn at random, without repeats."""
    if num_samples < 1:
        raise DataError(f"expected num_samples >= 1, got {num_samples=}.")
    if num_samples > len(dataset):
        raise DataError(
            f"{dataset.name} has {len(dataset)} pictures, but {num_samples} were asked for; "
            "ask for fewer or use a larger source."
        )
    return torch.randperm(len(dataset), generator=generator)[:num_samples]


def square(image: Image.Image, side: int) -> Tensor:
    """Crop the central square of an L or RGB picture and resize it: (C, side, side) in [0, 1].

    Lanczos, because it keeps the most detail when it shrinks (Pillow widens the filter, so nothing
    aliases) and also enlarges smoothly, where a box filter would show blocks. Pillow clips the slight
    overshoot at edges. A square picture that already has this side comes back unchanged.
    """
    width, height = image.size
    edge = min(width, height)
    left, top = (width - edge) // 2, (height - edge) // 2
    image = image.crop((left, top, left + edge, top + edge))
    pixels = np.array(image.resize((side, side), Image.Resampling.LANCZOS))  # (side, side[, 3]) uint8
    tensor = torch.from_numpy(pixels.reshape(side, side, -1))
    return tensor.permute(2, 0, 1).to(torch.float32).div_(255).contiguous()


def read_array(images: npt.NDArray[np.uint8], index: int, side: int) -> Tensor:
    """Picture `index` of an array (M, H, W, C); a function, not a closure, so that data sets pickle."""
    pixels = images[index]
    return square(Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels), side)
