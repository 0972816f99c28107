"""MSE, PSNR and SSIM against scikit-image and closed forms."""

from __future__ import annotations

import pytest
import torch
from skimage.metrics import peak_signal_noise_ratio, structural_similarity
from torch import Tensor

from undelta.evaluation.metrics import PSNR_CAP, mse, psnr, ssim


def pair(*shape: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    originals = torch.rand(*shape, generator=generator)
    noise = 0.2 * torch.randn(*shape, generator=generator)
    return (originals + noise).clamp(0, 1), originals


def test_mse_and_psnr_of_a_constant_offset_are_known() -> None:
    originals = torch.full((2, 3, 4, 4), 0.25, dtype=torch.float64)
    images = originals + torch.tensor([0.1, 0.01], dtype=torch.float64).view(2, 1, 1, 1)
    torch.testing.assert_close(mse(images, originals), torch.tensor([1e-2, 1e-4], dtype=torch.float64))
    torch.testing.assert_close(psnr(images, originals), torch.tensor([20.0, 40.0], dtype=torch.float64))


def test_identical_images_have_the_capped_psnr_and_ssim_one() -> None:
    _, originals = pair(2, 3, 16, 16)
    assert psnr(originals, originals).tolist() == [PSNR_CAP] * 2
    torch.testing.assert_close(ssim(originals, originals), torch.ones(2, dtype=torch.float64))


def test_psnr_equals_scikit_image() -> None:
    images, originals = pair(3, 3, 9, 12)
    expected = [
        peak_signal_noise_ratio(y.double().numpy(), x.double().numpy(), data_range=1)
        for x, y in zip(images, originals, strict=True)
    ]
    assert psnr(images, originals).tolist() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("shape", [(2, 3, 32, 32), (3, 1, 28, 28), (1, 3, 11, 11), (2, 3, 17, 40)])
def test_ssim_equals_scikit_image(shape: tuple[int, ...]) -> None:
    images, originals = pair(*shape)
    expected = [
        structural_similarity(
            x.double().numpy(),
            y.double().numpy(),
            gaussian_weights=True,
            sigma=1.5,
            use_sample_covariance=False,
            data_range=1,
            channel_axis=0,
        )
        for x, y in zip(images, originals, strict=True)
    ]
    assert ssim(images, originals).tolist() == pytest.approx(expected, abs=1e-9)


def test_images_smaller_than_the_window_have_no_ssim() -> None:
    assert ssim(*pair(2, 1, 8, 20)).isnan().tolist() == [True, True]


def test_a_diverged_image_spoils_only_its_own_number() -> None:
    images, originals = pair(2, 1, 12, 12)
    images[0] = torch.nan
    for metric in (mse, psnr, ssim):
        assert metric(images, originals).isnan().tolist() == [True, False]


def test_shapes_that_would_broadcast_are_refused() -> None:
    for metric in (mse, psnr, ssim):
        with pytest.raises(ValueError, match="two batches"):
            metric(torch.zeros(1, 3, 12, 12), torch.zeros(2, 3, 12, 12))
