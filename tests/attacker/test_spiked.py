"""How far noise turns the leading directions of a matrix, against what it did to a matrix that is known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from undelta.attacker.spiked import leading

NOISE = 0.1


def draw(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def spiked(rows: int, columns: int, strengths: list[float]) -> tuple[Tensor, Tensor]:
    """A matrix of a few directions, as strong as said in units of its noise, and these directions."""
    left, right = (
        torch.linalg.qr(torch.randn(side, len(strengths), generator=draw(side))).Q for side in (rows, columns)
    )
    scale = NOISE * max(rows, columns) ** 0.5
    return (left * torch.tensor(strengths) * scale) @ right.T, right.T


@pytest.mark.parametrize("shape", [(6, 20), (20, 6), (9, 9)])
def test_without_noise_they_are_those_of_the_singular_value_decomposition(shape: tuple[int, int]) -> None:
    rows, columns = shape
    matrix = torch.randn(rows, 4, generator=draw(2)) @ torch.randn(4, columns, generator=draw(3))
    expected = torch.linalg.svd(matrix, full_matrices=False).Vh[:3]
    found, trust = leading(matrix, 3)
    assert trust is None
    torch.testing.assert_close(found.T @ found, expected.T @ expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("shape", [(100, 2000), (200, 800), (2000, 100)], ids=["wide", "less so", "tall"])
@pytest.mark.parametrize("strengths", [[4.0, 2.0, 1.2], [3.0] * 15 + [1.5] * 15], ids=["few", "many"])
def test_the_trust_in_a_direction_is_how_far_noise_has_turned_it(
    shape: tuple[int, int], strengths: list[float]
) -> None:
    matrix, true = spiked(*shape, strengths)
    noisy = matrix + NOISE * torch.randn(shape, generator=draw(1))
    found, trust = leading(noisy, 2 * len(strengths))
    assert trust is not None
    signals = len(strengths)
    assert signals <= (trust > 0).sum() <= signals + 1  # the others are noise's, but for one at its edge
    found, trust = found[-signals:], trust[-signals:]
    kept = (true @ found.T).square().sum(0)
    assert float((trust - kept).abs().mean()) < 0.05
    assert trust.max() - trust.min() > 0.02


@pytest.mark.parametrize("strengths", [[0.1], []], ids=["too weak", "none"])
def test_directions_that_are_lost_in_noise_are_not_trusted(strengths: list[float]) -> None:
    matrix = spiked(100, 2000, strengths)[0] if strengths else torch.zeros(100, 2000)
    found, trust = leading(matrix + NOISE * torch.randn(100, 2000, generator=draw(1)), 12)
    assert trust is not None
    assert len(found) == len(trust) == 12
    assert not trust.any()


@pytest.mark.parametrize("shape", [(60, 60), (60, 80), (1, 60), (60, 1), (3, 200)])
def test_where_the_smallest_singular_values_tell_no_noise_all_is_trusted(shape: tuple[int, int]) -> None:
    assert leading(torch.randn(shape, generator=draw(1)), 12).trust is None


def test_a_change_of_units_changes_no_trust() -> None:
    matrix, _ = spiked(60, 500, [3.0, 2.0])
    noisy = matrix + NOISE * torch.randn(60, 500, generator=draw(1))
    for scale in (1e-4, 1e4):
        torch.testing.assert_close(leading(noisy * scale, 5).trust, leading(noisy, 5).trust, rtol=1e-4, atol=1e-5)


def test_many_signals_are_not_counted_among_the_noise() -> None:
    """They leave it fewer singular values, the smallest of which is larger."""
    matrix, true = spiked(100, 300, [3.0] * 45)
    found, trust = leading(matrix + NOISE * torch.randn(100, 300, generator=draw(1)), 45)
    assert trust is not None
    torch.testing.assert_close(trust.mean(), (true @ found.T).square().sum(0).mean(), rtol=0, atol=0.03)
