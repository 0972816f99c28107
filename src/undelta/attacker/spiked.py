"""The singular vectors of a matrix with noise in it, and how far noise has turned them.

A few directions of signal in a large matrix of white noise survive if they are stronger than it, but turned: how far is
known in the limit of large matrices (Benaych-Georges and Nadakuditi 2012; Gavish and Donoho 2017), and close to that in
small ones. In a matrix whose smallest singular value is next to nothing there is no noise, and nothing was turned.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

NO_NOISE = 1e-9  # of the energy: what rounding leaves
FEWEST = 5  # singular values; the smallest of fewer tells no noise
SQUAREST = 0.5  # ratio of the sides; in a squarer matrix the smallest singular value tells too little of noise
LEAST = 0.3  # cos² of a direction that is used: weaker ones may be noise's
ROUNDS = 10  # to find how many singular values are noise's


class Leading(NamedTuple):
    """The leading right singular vectors of a matrix."""

    directions: Tensor
    """(rank, width)."""
    trust: Tensor | None
    """How much of each is true: cos² of the angle to what it would be without noise, (rank,), zero where that is too
    little; None: all of it, or nobody knows."""


def leading(matrix: Tensor, rank: int) -> Leading:
    """The leading right singular vectors, at most ``rank``, without the cost of all of them."""
    exact = matrix.double()  # the products below square what rounding does
    if tall := matrix.shape[0] > matrix.shape[1]:
        energies, vectors = torch.linalg.eigh(exact.T @ exact)
        directions: Tensor = vectors[:, -rank:]
    else:
        energies, left = torch.linalg.eigh(exact @ exact.T)
        directions = torch.linalg.qr(exact.T @ left[:, -rank:]).Q
    trust = trusted(energies, max(matrix.shape), tall=tall)
    return Leading(directions.T.to(matrix.dtype), None if trust is None else trust[-rank:].to(matrix.dtype))


def trusted(energies: Tensor, long: int, *, tall: bool) -> Tensor | None:
    """cos² of each right singular vector, from all squared singular values in rising order; zero below `LEAST`.

    ``long`` is the matrix's longer side. The smallest squared singular value of pure noise of variance v is near
    v long (1 - √β)², where β is the ratio of the noise's own sides, and so tells v.
    """
    energies = energies.clamp_min(0)
    few, signals = len(energies), 0
    if few < FEWEST or few > SQUAREST * long or energies[0] <= NO_NOISE * energies.sum():
        return None
    for _ in range(ROUNDS):
        ratio = (few - signals) / long
        seen = energies * (1 - ratio**0.5) ** 2 / energies[0]  # in units of v long
        beyond = seen - 1 - ratio  # t + β/t of the noiseless t
        found = min(int((beyond > 2 * ratio**0.5).sum()), few // 2)
        if found == signals:
            break
        signals = found
    true = (beyond + (beyond.square() - 4 * ratio).clamp_min(0).sqrt()) / 2
    trust = (true.square() - ratio) / (true * (true + (ratio if tall else 1.0)))
    return torch.where((beyond > 2 * ratio**0.5) & (trust >= LEAST), trust, torch.zeros_like(trust))
