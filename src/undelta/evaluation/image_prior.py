"""A Gaussian prior of images: a mean color, decorrelated colors, and a variance for every frequency.

Natural images have a power spectrum that falls with frequency, the same at all places (Field 1987). In the basis of
decorrelated colors and cosines (DCT-II) such a prior is nearly diagonal, and here it is taken to be. Its variances are
averages over rings of frequencies on public images: some dozens of numbers, which no attacker would lack.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from undelta.errors import DataError

LEAST = (1 / 255) ** 2 / 12  # the variance of a pixel's rounding to 256 levels: no image has less
FEWEST = 16  # images to fit a prior to
SEEN = 1.0  # coefficients that a prior's variance counts for, beside an image's own


@dataclass(frozen=True, kw_only=True)
class ImagePrior:
    """x = mean + Bc, with orthonormal B and independent Gaussian coefficients c; pixels in [0, 1]."""

    mean: Tensor
    """(C, 1, 1), of pixels."""
    colors: Tensor = field(repr=False)
    """(C, C), decorrelated colors as columns."""
    variances: Tensor = field(repr=False)
    """(C, H, W), of the coefficients; or (N, C, H, W) where each of N images has its own."""

    @staticmethod
    def fit(images: Tensor) -> ImagePrior:
        """The prior of public images (M, C, H, W) in [0, 1]."""
        if len(images) < FEWEST:
            raise DataError(f"expected at least {FEWEST} public images to fit a prior to, got {len(images)}")
        images = images.double()
        mean = images.mean((0, 2, 3)).view(-1, 1, 1)
        pixels = (images - mean).transpose(0, 1).flatten(1)  # (C, M·H·W)
        colors = torch.linalg.eigh(pixels @ pixels.T / pixels.shape[1]).eigenvectors
        flat = ImagePrior(mean=mean, colors=colors, variances=torch.ones_like(images[0]))
        powers = flat.coefficients(images - mean).square().mean(0)
        return ImagePrior(mean=mean, colors=colors, variances=over_rings(powers).clamp_min(LEAST))

    def of_each(self, images: Tensor) -> ImagePrior:
        """The same, but that each image's own power spectrum is known: more than an attacker has.

        The logarithms of each ring's powers are mixed with the prior's, as if that had been seen in `SEEN`
        coefficients: rings of few say little.
        """
        own = over_rings(self.coefficients(images.double() - self.mean).square()).clamp_min(LEAST)
        count = _rings(self.variances)[1].to(own)
        known = (own.log() * count + self.variances.log() * SEEN) / (count + SEEN)
        return ImagePrior(mean=self.mean, colors=self.colors, variances=known.exp())

    @property
    def variance(self) -> float:
        """The mean variance of a pixel: the squared error of who knows the prior and nothing else."""
        return float(self.variances.mean())

    def to(self, device: torch.device) -> ImagePrior:
        return ImagePrior(mean=self.mean.to(device), colors=self.colors.to(device), variances=self.variances.to(device))

    def coefficients(self, deviations: Tensor) -> Tensor:
        """Bᵀ of deviations from the mean, (N, C, H, W)."""
        rows, columns = (_cosines(side, deviations) for side in deviations.shape[2:])
        return torch.einsum("cd,ncij,hi,wj->ndhw", self.colors, deviations, rows, columns)

    def deviations(self, coefficients: Tensor) -> Tensor:
        """B of coefficients, (N, C, H, W)."""
        rows, columns = (_cosines(side, coefficients) for side in coefficients.shape[2:])
        return torch.einsum("cd,ndhw,hi,wj->ncij", self.colors, coefficients, rows, columns)

    def whitened(self, images: Tensor) -> Tensor:
        """Coefficients over their deviations: independent and of variance one, if images are what the prior says."""
        return self.coefficients(images.double() - self.mean) / self.variances.sqrt()

    def surprise(self, images: Tensor) -> Tensor:
        """The mean square of each image's whitened coefficients, (N,): about one where the prior fits."""
        return self.whitened(images).square().flatten(1).mean(1)


def _cosines(side: int, like: Tensor) -> Tensor:
    """The orthonormal DCT-II, (frequency, place)."""
    places = torch.arange(side, dtype=like.dtype, device=like.device)
    waves = torch.cos(torch.outer(places, places + 0.5) * (math.pi / side)) * math.sqrt(2 / side)
    waves[0] /= math.sqrt(2)
    return waves


def over_rings(powers: Tensor) -> Tensor:
    """Each power replaced by the mean of those of about the same frequency; the mean color has a ring of its own."""
    rings, sizes = _rings(powers)
    flat = powers.flatten(-2)  # (..., C, H·W)
    sums = flat.new_zeros(*flat.shape[:-1], int(rings.max()) + 1).index_add_(-1, rings, flat)
    return sums[..., rings].view_as(powers) / sizes


def _rings(like: Tensor) -> tuple[Tensor, Tensor]:
    """The ring of each frequency, (H·W,), and how many share it, (H, W)."""
    height, width = like.shape[-2:]
    high, wide = torch.arange(height) / height, torch.arange(width) / width  # in units of the highest frequency
    radius = (high.view(-1, 1) ** 2 + wide**2).sqrt() * max(height, width)
    rings = radius.round().long().flatten()
    return rings.to(like.device), torch.bincount(rings)[rings].view(height, width).to(like)
