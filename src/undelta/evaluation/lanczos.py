"""Lanczos' method: what k products with a symmetric matrix tell of its spectrum and of functions of it.

From a start b, k products give an orthonormal basis V of the Krylov space and a tridiagonal T = VᵀAV. Then
f(A) b ≈ |b| V f(T) e₁, and bᵀ f(A) b ≈ |b|² e₁ᵀ f(T) e₁ is Gauss quadrature over the spectrum. For f(λ) = s/(s + λ) it
is a lower bound, and Gauss-Radau quadrature with a node at zero an upper one (Golub and Meurant 1994). Averages over
random starts give traces and the density of the spectrum (Hutchinson 1989; Ubaru, Chen and Saad 2017).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

ENDED = 1e-12  # of the largest entry of T: a next vector shorter than this is rounding error


@dataclass(frozen=True, kw_only=True)
class Krylov:
    """A Krylov space: k orthonormal vectors, and what the matrix is within them."""

    norm: float
    """|b|, the length of the start."""
    diagonal: Tensor
    """(k,), the diagonal of T."""
    beside: Tensor
    """(k,), next to it; the last one leads out of the space, and is zero where nothing is left to find."""
    basis: Tensor = field(repr=False)
    """(k + 1, n), the rows of Vᵀ and the vector that the next product would be taken with."""

    @property
    def ended(self) -> bool:
        """Whether the space holds all that the start can reach, so that every result is exact."""
        return float(self.beside[-1]) == 0

    @property
    def matrix(self) -> Tensor:
        """T, (k, k)."""
        side = self.beside[:-1]
        return torch.diag(self.diagonal) + torch.diag(side, 1) + torch.diag(side, -1)

    def ritz(self) -> tuple[Tensor, Tensor]:
        """The eigenvalues of T, (k,), rising, and its eigenvectors, (k, k), as columns."""
        values, vectors = torch.linalg.eigh(self.matrix)
        return values.clamp_min(0), vectors  # the matrix has none below zero, but for rounding

    def shrunk_start(self, scale: float) -> Tensor:
        """f(A) b for f(λ) = s/(s + λ), (n,)."""
        return self.shrunk(scale) @ self.basis[: len(self.diagonal)]

    def shrunk(self, scale: float) -> Tensor:
        """f(T) e₁·|b| for f(λ) = s/(s + λ), (k,): the coordinates of f(A) b in the basis."""
        values, vectors = self.ritz()
        return self.norm * (vectors @ (vectors[0] * scale / (scale + values)))

    @property
    def first_product(self) -> Tensor:
        """A b, (n,), as the first column of T has it."""
        product = self.diagonal[0] * self.basis[0]
        if len(self.basis) > 1:
            product = product + self.beside[0] * self.basis[1]
        return product * self.norm

    def cut(self, steps: int) -> Krylov:
        """What was found after so many products."""
        return Krylov(
            norm=self.norm,
            diagonal=self.diagonal[:steps],
            beside=self.beside[:steps],
            basis=self.basis[: steps + 1],
        )

    def larger(self) -> Krylov:
        """One more row and column of T that make zero one of its eigenvalues: Gauss-Radau quadrature."""
        if self.ended:
            return self
        last = torch.zeros_like(self.diagonal)
        last[-1] = self.beside[-1] ** 2
        found = torch.linalg.lstsq(self.matrix.cpu(), last.unsqueeze(1).cpu(), driver="gelsd")  # no GPU has it
        corner = found.solution[-1].to(last.device)
        return Krylov(
            norm=self.norm,
            diagonal=torch.cat([self.diagonal, corner]),
            beside=torch.cat([self.beside, self.beside.new_zeros(1)]),
            basis=self.basis,
        )

    def bounds(self, scale: float) -> tuple[float, float]:
        """Bounds of bᵀ f(A) b for f(λ) = s/(s + λ), from below by Gauss and from above by Gauss-Radau."""
        low, high = (self.norm * float(one.shrunk(scale)[0]) for one in (self, self.larger()))
        return low, max(low, high)


def lanczos(
    apply: Callable[[Tensor], Tensor],
    start: Tensor,
    steps: int,
    *,
    known: Krylov | None = None,
    told: Callable[[Krylov], bool] | None = None,
) -> Krylov:
    """The Krylov space of a symmetric matrix without negative eigenvalues, by at most ``steps`` products.

    Every vector is made orthogonal to all earlier ones, twice: without that, copies of converged eigenvalues appear.

    Args:
        apply: A ↦ A v, for v of shape (n,).
        start: b, (n,), not zero.
        steps: k.
        known: What an earlier call found with the same start; it is continued.
        told: Called after every product; it may say that this is enough.
    """
    basis = start.new_zeros(steps + 1, len(start))
    diagonal, beside = start.new_zeros(steps), start.new_zeros(steps)
    norm, taken = float(start.norm()), 0
    basis[0] = start / norm
    found = known
    if known is not None:
        taken = len(known.diagonal)
        if known.ended or taken >= steps:
            return known
        basis[: taken + 1], diagonal[:taken], beside[:taken] = known.basis, known.diagonal, known.beside
    for k in range(taken, steps):
        vector = apply(basis[k])
        diagonal[k] = vector @ basis[k]
        for _ in range(2):
            vector = vector - basis[: k + 1].T @ (basis[: k + 1] @ vector)
        length = vector.norm()
        if length > ENDED * diagonal.max() and k + 1 < len(start):
            beside[k], basis[k + 1] = length, vector / length
        found = Krylov(norm=norm, diagonal=diagonal[: k + 1], beside=beside[: k + 1], basis=basis[: k + 2])
        enough = told(found) if told else False
        if enough or found.ended:
            break
    assert found is not None  # noqa: S101
    return found


class Keep(Protocol):
    """Where Krylov spaces are kept, so that a stopped computation resumes; also told how far it is."""

    def load(self, name: str) -> Krylov | None:
        """What was kept under this name."""

    def save(self, name: str, found: Krylov) -> None:
        """Called after every product."""


def resumed(
    apply: Callable[[Tensor], Tensor],
    start: Tensor,
    products: int,
    name: str,
    keep: Keep | None,
    enough: Callable[[Krylov], bool] | None = None,
) -> Krylov:
    """The same, continued from what is kept under ``name``, until it is ``enough``."""

    def told(found: Krylov) -> bool:
        if keep:
            keep.save(name, found)
        return enough is not None and enough(found)

    known = keep.load(name) if keep else None
    if known is not None and enough is not None and enough(known):
        return known
    return lanczos(apply, start, products, known=known, told=told)
