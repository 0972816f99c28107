"""MSE, PSNR and SSIM against scikit-image and closed forms, for examples and for any images."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from skimage.metrics import peak_signal_noise_ratio, structural_similarity
from torch import Tensor

from undelta.evaluation.metrics import PSNR_CAP, RECOVERED_PSNR, fraction_recovered, mse, psnr, ssim


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


def reference_ssim(images: Tensor, originals: Tensor) -> list[float]:
    return [
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


@pytest.mark.parametrize("shape", [(2, 3, 32, 32), (3, 1, 28, 28), (1, 3, 11, 11), (2, 3, 17, 40)])
def test_ssim_equals_scikit_image(shape: tuple[int, ...]) -> None:
    images, originals = pair(*shape)
    assert ssim(images, originals).tolist() == pytest.approx(reference_ssim(images, originals), abs=1e-9)


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


# Any images


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Two batches of images in [0, 1], flat regions and extremes included."""
    shape = draw(st.tuples(st.integers(1, 3), st.sampled_from([1, 3]), st.integers(11, 14), st.integers(11, 14)))
    pixels = arrays(np.float64, shape, elements=st.floats(0, 1, width=32))
    return torch.from_numpy(draw(pixels)), torch.from_numpy(draw(pixels))


any_pairs = given(pairs())
quickly = settings(max_examples=30, deadline=None)


@quickly
@any_pairs
def test_metrics_stay_within_their_bounds(pair: tuple[Tensor, Tensor]) -> None:
    assert ((mse(*pair) >= 0) & (mse(*pair) <= 1)).all()
    assert ((psnr(*pair) >= 0) & (psnr(*pair) <= PSNR_CAP)).all()
    assert (ssim(*pair).abs() <= 1 + 1e-9).all()


@quickly
@any_pairs
def test_metrics_do_not_care_which_image_is_the_original(pair: tuple[Tensor, Tensor]) -> None:
    x, y = pair
    for metric in (mse, psnr, ssim):
        torch.testing.assert_close(metric(x, y), metric(y, x), rtol=0, atol=1e-12)


@quickly
@any_pairs
def test_an_image_equals_itself(pair: tuple[Tensor, Tensor]) -> None:
    for x in pair:
        assert (psnr(x, x) == PSNR_CAP).all()
        torch.testing.assert_close(ssim(x, x), torch.ones(len(x), dtype=torch.float64), rtol=0, atol=1e-9)


@quickly
@given(pairs(), st.randoms(use_true_random=False))
def test_permuting_the_batch_permutes_the_values(pair: tuple[Tensor, Tensor], random: Random) -> None:
    order = list(range(len(pair[0])))
    random.shuffle(order)
    for metric in (mse, psnr, ssim):
        permuted = metric(pair[0][order], pair[1][order])
        torch.testing.assert_close(permuted, metric(*pair)[order], rtol=0, atol=1e-12)


@quickly
@any_pairs
def test_turning_both_images_changes_nothing(pair: tuple[Tensor, Tensor]) -> None:
    turned = pair[0].rot90(dims=(2, 3)), pair[1].rot90(dims=(2, 3))
    for metric in (mse, psnr, ssim):
        torch.testing.assert_close(metric(*turned), metric(*pair), rtol=0, atol=1e-9)


@quickly
@given(pairs(), st.floats(1e-4, 1), st.sampled_from([1, -1]))
def test_psnr_of_a_constant_offset_is_its_logarithm(pair: tuple[Tensor, Tensor], offset: float, sign: int) -> None:
    values = psnr(pair[0] + sign * offset, pair[0])
    assert values.tolist() == pytest.approx([min(PSNR_CAP, -20 * math.log10(offset))] * len(values), abs=1e-6)


@quickly
@given(pairs(), st.floats(0, 0.9))
def test_a_guess_nearer_to_the_original_has_no_smaller_psnr(pair: tuple[Tensor, Tensor], rest: float) -> None:
    guess, original = pair
    assert (psnr(original + rest * (guess - original), original) >= psnr(guess, original) - 1e-9).all()


@quickly
@any_pairs
def test_any_images_have_scikit_images_psnr_and_ssim(pair: tuple[Tensor, Tensor]) -> None:
    assert ssim(*pair).tolist() == pytest.approx(reference_ssim(*pair), abs=1e-9)
    for x, y, value in zip(*pair, psnr(*pair).tolist(), strict=True):
        if not torch.equal(x, y):  # scikit-image warns of the infinity that we cap
            expected = peak_signal_noise_ratio(y.numpy(), x.numpy(), data_range=1)
            assert value == pytest.approx(min(PSNR_CAP, expected), abs=1e-9)


# The share of recovered images


def test_the_threshold_itself_counts_as_recovered() -> None:
    assert fraction_recovered([19.99, 20.0, 35.0, 100.0]) == 0.75
    assert fraction_recovered([19.99, 20.0, 35.0, 100.0], 30) == 0.5


def test_the_threshold_is_an_error_of_a_tenth_of_the_range() -> None:
    original = torch.full((1, 1, 4, 4), 0.5, dtype=torch.float64)
    for error, recovered in ((0.099, 1.0), (0.101, 0.0)):
        assert fraction_recovered(psnr(original + error, original).tolist()) == recovered


def test_an_image_without_a_psnr_is_not_recovered() -> None:
    assert fraction_recovered([None, 30.0]) == 0.5
    assert fraction_recovered([None, math.nan]) == 0


def test_a_share_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one image"):
        fraction_recovered([])
    with pytest.raises(ValueError, match="threshold in decibels"):
        fraction_recovered([30.0], math.nan)


@given(st.lists(st.floats(0, PSNR_CAP), min_size=1), st.floats(0, PSNR_CAP), st.floats(0, PSNR_CAP))
def test_a_higher_threshold_never_recovers_more(values: list[float], one: float, two: float) -> None:
    low, high = sorted((one, two))
    assert 0 <= fraction_recovered(values, high) <= fraction_recovered(values, low) <= 1
    assert fraction_recovered(values, min(values)) == 1
    assert fraction_recovered(values) == fraction_recovered(values[::-1], RECOVERED_PSNR)
