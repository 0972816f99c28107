"""Smoothed gradients: the blur against scipy's, and the steps that follow it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from scipy.ndimage import gaussian_filter

from undelta.attacker.descent import Descent
from undelta.attacker.method import GradientMatching
from undelta.attacker.optimizers import SGD
from undelta.attacker.replays import OneStep
from undelta.attacker.smoothing import LEAST, blurred, width_at
from undelta.client.disclose import disclose
from undelta.client.scenario import Scenario
from undelta.errors import ConfigError
from undelta.seeding import stream

SCENARIO = Scenario(data="digits", num_samples=2, model="mlp", epochs=2, batches=1)


@pytest.mark.parametrize("shape", [(2, 3, 16, 21), (1, 1, 16, 8)])
def test_the_blur_is_scipys(shape: tuple[int, ...]) -> None:
    images = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = gaussian_filter(images.numpy(), sigma=2.0, axes=(2, 3), mode="mirror", truncate=3.5)  # 7 pixels
    torch.testing.assert_close(blurred(images, 2.0), torch.from_numpy(expected), rtol=0, atol=1e-12)


def test_a_blur_wider_than_the_image_keeps_what_is_even() -> None:
    images = torch.full((1, 2, 5, 1), 3.0)
    torch.testing.assert_close(blurred(images, 50.0), images)


def test_the_blur_falls_from_a_share_of_the_side_to_none() -> None:
    widths = [width_at(iteration, 100, 0.05, 64) for iteration in range(100)]
    assert widths[0] == pytest.approx(3.2)
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < LEAST


def after_one_step(smoothing: float, *, signed: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """The dummy images before and after a step of gradient descent."""
    observation = disclose(SCENARIO.draw(0), SCENARIO, dtype=torch.float64)
    method = GradientMatching(replay=OneStep(), optimizer=SGD(learning_rate=1e-3), box=False, steps=10)
    descent = Descent(replace(method, smoothing=smoothing, signed=signed), observation, stream("attacker", 0))
    before = descent.images.clone()
    descent.step(0, record=True)
    return before, descent.images


@pytest.mark.parametrize("signed", [False, True])
def test_a_step_follows_the_blurred_gradient(signed: bool) -> None:
    before, plain = after_one_step(0.0)
    _, smooth = after_one_step(0.25, signed=signed)
    direction = blurred((before - plain) / 1e-3, 0.25 * 8)
    expected = before - 1e-3 * (direction.sign() if signed else direction)
    torch.testing.assert_close(smooth, expected, rtol=0, atol=1e-12)


def test_a_share_of_the_side_is_less_than_one() -> None:
    with pytest.raises(ConfigError, match="smoothing"):
        GradientMatching(replay=OneStep(), smoothing=3.0)
