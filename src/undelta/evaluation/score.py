"""Scores of a reconstruction against the truth."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch import Tensor

from undelta.assignment import match
from undelta.attacker.reconstruction import Reconstruction
from undelta.client.private import Private
from undelta.errors import DataError
from undelta.evaluation.backbones import BackboneName
from undelta.evaluation.baselines import Baseline, baselines
from undelta.evaluation.floor import Floor, floor
from undelta.evaluation.lpips import CHANNELS, load_lpips
from undelta.evaluation.metrics import RECOVERED_PSNR, fraction_recovered, mse, psnr, ssim
from undelta.observation import Observation


@dataclass(frozen=True, kw_only=True)
class ImageScore:
    """One private image and its reconstruction; None is a metric that could not be computed."""

    label: int
    mse: float | None
    psnr: float | None
    ssim: float | None
    lpips: float | None


@dataclass(frozen=True, kw_only=True)
class Score:
    """A whole batch; the means are means over images, and None if one of them has none."""

    order: tuple[int, ...]
    """``reconstruction.images[order[i]]`` is matched with the i-th private image."""
    images: tuple[ImageScore, ...] = field(repr=False)
    mse: float | None
    psnr: float | None
    ssim: float | None
    lpips: float | None
    lpips_backbone: BackboneName = "alex"
    """Whose LPIPS it is; the two are not comparable."""
    fraction_recovered: float
    """The share of images whose PSNR is at least `recovered_psnr`."""
    recovered_psnr: float = RECOVERED_PSNR
    floor: Floor | None = None
    """The attack's own objective at the private images; None without the observation."""
    baselines: dict[str, Baseline] = field(default_factory=dict, repr=False)
    """What guesses without any update are worth."""


def score(
    reconstruction: Reconstruction,
    private: Private,
    *,
    observation: Observation | None = None,
    first_order: Tensor | None = None,
    recovered_psnr: float = RECOVERED_PSNR,
    lpips_backbone: BackboneName = "alex",
) -> Score:
    """Match every reconstruction with one private image, once, and measure all pairs.

    Args:
        reconstruction: What an attack returned.
        private: The truth.
        observation: What the attack saw; needed for the floor.
        first_order: The client's order in its first epoch, if known; the floor of an exact replay needs it.
        recovered_psnr: Decibels from which an image counts as recovered.
        lpips_backbone: "alex" or "vgg"; without its weights LPIPS is None.

    Examples:
        >>> import torch
        >>> truth = Private(images=torch.rand(2, 3, 16, 16), labels=torch.tensor([0, 1]))
        >>> guess = Reconstruction(
        ...     images=truth.images.flip(0),  # right, but in another order
        ...     labels=truth.labels.flip(0),
        ...     mismatch=0.0,
        ...     iterations=1,
        ...     seconds=0.1,
        ...     status="completed",
        ... )
        >>> result = score(guess, truth)
        >>> result.order, result.psnr, result.fraction_recovered  # identical images are given 100 dB
        ((1, 0), 100.0, 1.0)
    """
    guesses, truth = reconstruction.images.detach().cpu(), private.images
    if guesses.shape != truth.shape:
        raise DataError(
            f"the reconstruction has shape {tuple(guesses.shape)}, the truth {tuple(truth.shape)}; "
            "they belong to different scenarios"
        )
    guesses = guesses.to(truth.dtype)
    order = match(guesses, truth, reconstruction.labels.cpu(), private.labels)
    pairs = guesses[order], truth
    perceptual = load_lpips(backbone=lpips_backbone) if truth.shape[1] in CHANNELS else None
    columns: dict[str, list[float | None]] = {
        "mse": _numbers(mse(*pairs)),
        "psnr": _numbers(psnr(*pairs)),
        "ssim": _numbers(ssim(*pairs)),
        "lpips": _numbers(perceptual(*pairs)) if perceptual else [None] * len(private),
    }
    images = tuple(
        ImageScore(label=int(label), **{name: column[index] for name, column in columns.items()})
        for index, label in enumerate(private.labels)
    )
    return Score(
        order=tuple(order.tolist()),
        images=images,
        fraction_recovered=fraction_recovered(columns["psnr"], recovered_psnr),
        recovered_psnr=recovered_psnr,
        lpips_backbone=lpips_backbone,
        floor=floor(reconstruction, private, observation, order=first_order) if observation else None,
        baselines=baselines(truth),
        **{name: _mean(column) for name, column in columns.items()},
    )


def _numbers(values: Tensor) -> list[float | None]:
    """Plain numbers; those of a diverged image are no numbers, and none are made up for it."""
    return [value if math.isfinite(value) else None for value in values.tolist()]


def _mean(column: list[float | None]) -> float | None:
    known = [value for value in column if value is not None]
    return sum(known) / len(known) if len(known) == len(column) else None
