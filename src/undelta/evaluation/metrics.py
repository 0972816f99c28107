"""How similar two pictures are: MSE, PSNR and SSIM per image, for images (N, C, H, W) in [0, 1].

All are computed in float64. Reconstructions and originals must be matched first (see `assignment`).
docs/metrics.md says what the numbers mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (the name everyone uses)

PSNR_CAP = 100.0
"""Decibels reported for (nearly) identical images: the formula's infinity is no JSON number."""

WINDOW = 11
"""Side of SSIM's Gaussian window, and so of the smallest image that has an SSIM."""

RECOVERED_PSNR = 20.0
"""Decibels from which an image counts as recovered: pixels are off by a tenth of their range (root mean square)."""


def mse(images: Tensor, originals: Tensor) -> Tensor:
    """Mean squared error per image: (N,)."""
    _check(images, originals)
    return (images.double() - originals.double()).square().mean(dim=(1, 2, 3))


def psnr(images: Tensor, originals: Tensor) -> Tensor:
    """Peak signal-to-noise ratio per image in decibels, -10 log10(MSE), at most `PSNR_CAP`: (N,)."""
    return (-10 * torch.log10(mse(images, originals))).clamp(max=PSNR_CAP)


def fraction_recovered(values: Sequence[float | None], threshold: float = RECOVERED_PSNR) -> float:
    """The share of images whose PSNR is at least `threshold` dB; one without a PSNR has diverged and does not count.

    Examples:
        >>> fraction_recovered([31.0, 20.0, 19.9, None])
        0.5
    """
    if not values:
        raise ValueError("expected the PSNR of at least one image, got none")
    if math.isnan(threshold):
        raise ValueError("expected a threshold in decibels, got NaN")
    return sum(value is not None and value >= threshold for value in values) / len(values)


def ssim(images: Tensor, originals: Tensor) -> Tensor:
    """Structural similarity per image (Wang et al. 2004): (N,), NaN if a side is shorter than `WINDOW`.

    Gaussian 11 x 11 window of σ = 1.5, K1 = 0.01, K2 = 0.03, data range 1, population covariances; the
    mean over all windows that lie inside the image, then over channels. This is scikit-image's
    ``structural_similarity(gaussian_weights=True, sigma=1.5, use_sample_covariance=False, data_range=1)``;
    libraries that also place windows over the border differ from it, at 32 x 32 in the second digit.
    """
    _check(images, originals)
    if min(images.shape[-2:]) < WINDOW:
        return torch.full((len(images),), torch.nan, dtype=torch.float64, device=images.device)
    x, y = images.double(), originals.double()
    mean_x, mean_y = _blur(x), _blur(y)
    variance_x = _blur(x * x) - mean_x.square()
    variance_y = _blur(y * y) - mean_y.square()
    covariance = _blur(x * y) - mean_x * mean_y
    c1, c2 = 0.01**2, 0.03**2
    luminance = (2 * mean_x * mean_y + c1) / (mean_x.square() + mean_y.square() + c1)
    structure = (2 * covariance + c2) / (variance_x + variance_y + c2)
    return (luminance * structure).mean(dim=(1, 2, 3))


def _blur(images: Tensor) -> Tensor:
    """Gaussian mean over each window inside the image: (N, C, H, W) -> (N, C, H - 10, W - 10)."""
    offsets = torch.arange(WINDOW, dtype=torch.float64, device=images.device) - WINDOW // 2
    kernel = torch.exp(-offsets.square() / (2 * 1.5**2))
    kernel = kernel / kernel.sum()
    planes = images.flatten(0, 1).unsqueeze(1)  # (N * C, 1, H, W)
    planes = F.conv2d(F.conv2d(planes, kernel.view(1, 1, -1, 1)), kernel.view(1, 1, 1, -1))
    return planes.view(*images.shape[:2], *planes.shape[-2:])


def _check(images: Tensor, originals: Tensor) -> None:
    if images.ndim != 4 or images.shape != originals.shape:
        raise ValueError(f"expected two batches (N, C, H, W), got {tuple(images.shape)} and {tuple(originals.shape)}")
