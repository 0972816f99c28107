"""Baselines: what guesses without any update are worth. A reconstruction that is no better found nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from undelta.evaluation.metrics import psnr, ssim

COLOR, PUBLIC, NOISE = "mean color", "public mean", "pure noise"

NATURAL = (0.485, 0.456, 0.406)
"""The mean color of natural photographs, as published for ImageNet: public, and not taken from anybody's images."""


@dataclass(frozen=True, kw_only=True)
class Guess:
    """What a baseline is worth for one private image; None is a metric that could not be computed."""

    psnr: float | None
    ssim: float | None


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """Guesses at a whole batch; the means are None if an image has none."""

    psnr: float | None
    ssim: float | None
    images: tuple[Guess, ...]


def baseline(guesses: Tensor, truth: Tensor) -> Baseline:
    """How good guesses are that are in the order of the private images."""
    values = zip(psnr(guesses, truth).tolist(), ssim(guesses, truth).tolist(), strict=True)
    images = tuple(Guess(psnr=_finite(one), ssim=_finite(other)) for one, other in values)
    return Baseline(psnr=_mean([one.psnr for one in images]), ssim=_mean([one.ssim for one in images]), images=images)


def flat_guesses(truth: Tensor) -> dict[str, Tensor]:
    """Pictures of one color: each private image's own mean, and that of public photographs."""
    public = torch.tensor(NATURAL, dtype=truth.dtype)
    if truth.shape[1] != len(NATURAL):
        public = public.mean().expand(truth.shape[1])
    return {
        COLOR: truth.mean((2, 3), keepdim=True).expand_as(truth),
        PUBLIC: public.view(1, -1, 1, 1).expand_as(truth),
    }


def baselines(truth: Tensor) -> dict[str, Baseline]:
    """What flat pictures are worth.

    Examples:
        >>> grey = torch.full((1, 3, 16, 16), 0.5)
        >>> baselines(grey)["mean color"].psnr  # identical images are given 100 dB
        100.0
    """
    return {name: baseline(guesses, truth) for name, guesses in flat_guesses(truth).items()}


def best_guess(found: Mapping[str, Baseline], index: int) -> Guess:
    """The best that any baseline does on one image, metric by metric."""
    guesses = [one.images[index] for one in found.values() if index < len(one.images)]
    return Guess(
        psnr=max((guess.psnr for guess in guesses if guess.psnr is not None), default=None),
        ssim=max((guess.ssim for guess in guesses if guess.ssim is not None), default=None),
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _mean(column: list[float | None]) -> float | None:
    known = [value for value in column if value is not None]
    return sum(known) / len(known) if known and len(known) == len(column) else None
