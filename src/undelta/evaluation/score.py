"""Scores of a reconstruction against the truth."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch import Tensor

from undelta.assignment import match
from undelta.attacker.reconstruction import Reconstruction
from undelta.client.private import Private
from undelta.errors import DataError
from undelta.evaluation.lpips import load_lpips
from undelta.evaluation.metrics import mse, psnr, ssim


@dataclass(frozen=True, kw_only=True)
class ImageScore:
    """One private image and its reconstruction; None is a metric that could not be computed."""

    label: int
    mse: float
    psnr: float
    ssim: float | None
    lpips: float | None


@dataclass(frozen=True, kw_only=True)
class Score:
    """A whole batch; the means are means over images."""

    order: tuple[int, ...]
    """``reconstruction.images[order[i]]`` is matched with the i-th private image."""
    images: tuple[ImageScore, ...] = field(repr=False)
    mse: float
    psnr: float
    ssim: float | None
    lpips: float | None


def score(reconstruction: Reconstruction, private: Private) -> Score:
    """Match every reconstruction with one private image, once, and measure all pairs."""
    guesses, truth = reconstruction.images.detach().cpu(), private.images
    if guesses.shape != truth.shape:
        raise DataError(
            f"the reconstruction has shape {tuple(guesses.shape)}, the truth {tuple(truth.shape)}; "
            "they belong to different scenarios"
        )
    guesses = guesses.to(truth.dtype)
    order = match(guesses, truth, reconstruction.labels.cpu(), private.labels)
    pairs = guesses[order], truth
    perceptual = load_lpips()
    columns: dict[str, list[float | None]] = {
        "mse": _numbers(mse(*pairs)),
        "psnr": _numbers(psnr(*pairs)),
        "ssim": _numbers(ssim(*pairs)),
        "lpips": _numbers(perceptual(*pairs)) if perceptual else [None] * len(private),
    }
    images = tuple(
        ImageScore(label=int(label), **{name: column[index] for name, column in columns.items()})  # type: ignore[arg-type]
        for index, label in enumerate(private.labels)
    )
    means = {name: _mean(column) for name, column in columns.items()}
    return Score(order=tuple(order.tolist()), images=images, **means)  # type: ignore[arg-type]


def _numbers(values: Tensor) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]


def _mean(column: list[float | None]) -> float | None:
    known = [value for value in column if value is not None]
    return sum(known) / len(known) if len(known) == len(column) else None
