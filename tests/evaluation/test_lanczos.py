"""Lanczos' method against dense linear algebra."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from undelta.evaluation.lanczos import Krylov, lanczos


def matrix(size: int = 60, rank: int = 60) -> Tensor:
    """Eigenvalues from 1 down to 1e-8, or zero beyond the rank, in random directions."""
    generator = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64)).Q
    values = torch.logspace(0, -8, size, dtype=torch.float64)
    values[rank:] = 0
    product: Tensor = basis * values @ basis.T
    return product


def start(size: int = 60) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e-6])
@pytest.mark.parametrize("steps", [3, 10, 25])
def test_gauss_and_radau_quadrature_enclose_the_truth(scale: float, steps: int) -> None:
    a, b = matrix(), start()
    truth = float(b @ torch.linalg.solve(a / scale + torch.eye(60, dtype=torch.float64), b))
    low, high = lanczos(lambda v: a @ v, b, steps).bounds(scale)
    assert low <= truth * (1 + 1e-9)
    assert truth <= high * (1 + 1e-9)


def test_enough_steps_are_exact() -> None:
    a, b = matrix(rank=12), start()
    found = lanczos(lambda v: a @ v, b, 40)
    assert found.ended
    assert len(found.diagonal) <= 14
    expected = torch.linalg.solve(a / 1e-3 + torch.eye(60, dtype=torch.float64), b)
    assert torch.allclose(found.shrunk_start(1e-3), expected, atol=1e-9)
    low, high = found.bounds(1e-3)
    assert low == high == pytest.approx(float(b @ expected), rel=1e-9)


def test_the_basis_stays_orthonormal_and_the_largest_eigenvalues_are_found_once() -> None:
    a = matrix()
    found = lanczos(lambda v: a @ v, start(), 40)
    basis = found.basis
    assert torch.allclose(basis @ basis.T, torch.eye(len(basis), dtype=torch.float64), atol=1e-12)
    expected = torch.linalg.eigvalsh(a).flip(0)
    assert torch.allclose(found.ritz()[0].flip(0)[:8], expected[:8], rtol=1e-8)


def test_what_was_stopped_continues_as_if_it_had_not_been() -> None:
    a, b = matrix(), start()
    whole = lanczos(lambda v: a @ v, b, 20)
    seen: list[int] = []

    def told(found: Krylov) -> bool:
        seen.append(len(found.diagonal))
        return len(found.diagonal) == 7

    part = lanczos(lambda v: a @ v, b, 20, told=told)
    assert seen == [1, 2, 3, 4, 5, 6, 7]
    again = lanczos(lambda v: a @ v, b, 20, known=part)
    assert torch.equal(again.diagonal, whole.diagonal)
    assert torch.equal(again.basis, whole.basis)
