"""Scores: the order of reconstructions does not matter, and what cannot be measured is None."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from undelta.attacker.reconstruction import Reconstruction
from undelta.client.private import Private
from undelta.errors import DataError
from undelta.evaluation.score import score


@pytest.fixture(autouse=True)
def no_lpips_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNDELTA_LPIPS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def pictures(count: int = 4, side: int = 12) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return 0.25 + 0.5 * torch.rand(count, 3, side, side, generator=generator, dtype=torch.float64)


def guess(images: Tensor, labels: Tensor) -> Reconstruction:
    return Reconstruction(images=images, labels=labels, mismatch=0.0, iterations=1, seconds=0.0, status="completed")


@pytest.mark.parametrize("labels", [[0, 1, 2, 3], [5, 5, 5, 5], [1, 0, 1, 0]], ids=str)
def test_a_permuted_truth_scores_perfectly(labels: list[int]) -> None:
    images, truth = pictures(), torch.tensor(labels)
    permutation = torch.tensor([2, 0, 3, 1])
    result = score(guess(images[permutation], truth[permutation]), Private(images=images, labels=truth))
    assert permutation[list(result.order)].tolist() == [0, 1, 2, 3]
    assert result.mse == 0
    assert result.psnr == 100
    assert result.ssim == pytest.approx(1)


def test_every_image_has_its_own_values_in_the_order_of_the_truth() -> None:
    images, labels = pictures(3), torch.tensor([7, 8, 9])
    guesses = images.clone()
    guesses[1] += 0.1
    guesses[2] += 0.01
    result = score(guess(guesses.flip(0), labels.flip(0)), Private(images=images, labels=labels))
    assert [image.label for image in result.images] == [7, 8, 9]
    assert [image.mse for image in result.images] == pytest.approx([0, 1e-2, 1e-4])
    assert [image.psnr for image in result.images] == pytest.approx([100, 20, 40])
    assert result.mse == pytest.approx((1e-2 + 1e-4) / 3)
    assert result.psnr == pytest.approx((100 + 20 + 40) / 3)
    similarities = [image.ssim for image in result.images]
    assert all(isinstance(value, float) for value in similarities)
    assert result.ssim == pytest.approx(sum(value for value in similarities if value is not None) / 3)


def test_small_images_have_no_ssim() -> None:
    labels = torch.tensor([0, 1])
    for side, known in ((10, False), (11, True)):
        images = pictures(2, side)
        result = score(guess(images, labels), Private(images=images, labels=labels))
        assert (result.ssim is not None) is known
        assert all((image.ssim is not None) is known for image in result.images)


def test_without_weights_there_is_no_lpips() -> None:
    images, labels = pictures(2), torch.tensor([0, 1])
    result = score(guess(images, labels), Private(images=images, labels=labels))
    assert result.lpips is None
    assert [image.lpips for image in result.images] == [None, None]


def test_weights_that_are_named_but_absent_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNDELTA_LPIPS", str(tmp_path / "absent"))
    images, labels = pictures(2), torch.tensor([0, 1])
    with pytest.raises(DataError, match="absent"):
        score(guess(images, labels), Private(images=images, labels=labels))


@pytest.mark.parametrize("shape", [(3, 3, 12, 12), (4, 1, 12, 12), (4, 3, 11, 12)], ids=str)
def test_a_reconstruction_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    private = Private(images=pictures(), labels=torch.arange(4))
    with pytest.raises(DataError, match=r"different scenarios") as caught:
        score(guess(torch.zeros(shape), torch.arange(shape[0])), private)
    assert str(shape) in str(caught.value)
    assert "(4, 3, 12, 12)" in str(caught.value)


def test_a_reconstruction_in_another_precision_is_scored() -> None:
    images, labels = pictures(), torch.arange(4)
    result = score(guess(images.float(), labels), Private(images=images, labels=labels))
    assert result.psnr == pytest.approx(100)
