"""The singular vectors of a matrix with noise in it, and how far noise has turned them.

A few directions of signal in a large matrix of noise survive if they are stronger than it, but turned: how far is known
in the limit of large matrices (Benaych-Georges and Nadakuditi 2012; Gavish and Donoho 2017), and close to that in small
ones. Without noise, in a matrix of low rank, all of this says that nothing was turned.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

NO_NOISE = 1e-9  # of the energy: what rounding leaves


class Leading(NamedTuple):
    """The leading right singular vectors of a matrix."""

    directions: Tensor
    """(rank, width)."""
    trust: Tensor | None
    """How much of each is true: cos² of the angle to what it would be without noise, (rank,); None: all of it."""


def leading(matrix: Tensor, rank: int) -> Leading:
    """No more than ``rank`` of them, without the cost of all; none that are noise's alone."""
    exact = matrix.double()  # the products below square what rounding does
    if tall := matrix.shape[0] > matrix.shape[1]:
        energies, vectors = torch.linalg.eigh(exact.T @ exact)
        directions: Tensor = vectors[:, -rank:]
    else:
        energies, left = torch.linalg.eigh(exact @ exact.T)
        directions = torch.linalg.qr(exact.T @ left[:, -rank:]).Q
    found, trust = directions.T, trusted(energies, max(matrix.shape), tall=tall)
    if trust is not None:
        trust = trust[-rank:]
        found, trust = found[trust > 0], trust[trust > 0].to(matrix.dtype)
    return Leading(found.to(matrix.dtype), trust)


def trusted(energies: Tensor, long: int, *, tall: bool) -> Tensor | None:
    """cos² for each right singular vector, from all squared singular values in rising order; zero below the noise.

    Of a matrix whose longer side is ``long``. The smallest squared singular value of pure noise of variance v is near
    v long (1 - √β)², where β is the ratio of the sides, and tells v.
    """
    energies = energies.clamp_min(0)
    ratio = len(energies) / long
    if energies[0] <= NO_NOISE * energies.sum() or ratio == 1:
        return None
    seen = energies * (1 - ratio**0.5) ** 2 / energies[0]  # in units of v long
    beyond = seen - 1 - ratio
    true = (beyond + (beyond.square() - 4 * ratio).clamp_min(0).sqrt()) / 2  # the same without noise
    trust = (true.square() - ratio) / (true * (true + (ratio if tall else 1.0)))
    return torch.where(beyond > 2 * ratio**0.5, trust.clamp(0, 1), torch.zeros_like(trust))
