"""Scores: the order of reconstructions does not matter, and what cannot be measured is None."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import scipy.optimize
import torch
from safetensors.torch import save_file
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from undelta.attacker.reconstruction import Reconstruction
from undelta.client.private import Private
from undelta.client.scenario import Scenario
from undelta.errors import ConfigError, DataError
from undelta.evaluation.backbones import BACKBONES, BackboneName
from undelta.evaluation.score import score
from undelta.trials.trial import Trial, run


@pytest.fixture(autouse=True)
def no_lpips_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("UNDELTA_LPIPS", "UNDELTA_LPIPS_VGG"):
        monkeypatch.delenv(variable, raising=False)
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


def noisy(images: Tensor, *errors: float) -> Tensor:
    return images + torch.tensor(errors, dtype=images.dtype).view(-1, 1, 1, 1)


def test_the_recovered_fraction_is_the_share_of_images_above_the_threshold() -> None:
    images, labels = pictures(), torch.arange(4)
    guesses, private = guess(noisy(images, 0.0, 0.09, 0.11, 0.2), labels), Private(images=images, labels=labels)
    result = score(guesses, private)
    assert (result.fraction_recovered, result.recovered_psnr) == (0.5, 20)
    stricter = score(guesses, private, recovered_psnr=30)
    assert (stricter.fraction_recovered, stricter.recovered_psnr) == (0.25, 30)
    assert stricter.images == result.images


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_a_diverged_image_has_no_metrics_and_is_not_recovered(broken: float) -> None:
    images, labels = pictures(), torch.arange(4)
    guesses = images.clone()
    guesses[2, 0, 3, 3] = broken
    result = score(guess(guesses, labels), Private(images=images, labels=labels))
    assert [image.psnr for image in result.images] == [100, 100, None, 100]
    assert (result.images[2].mse, result.images[2].ssim) == (None, None)
    assert (result.mse, result.psnr, result.ssim) == (None, None, None)
    assert result.fraction_recovered == 0.75


def count_assignments(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of all assignment problems that are solved from now on."""
    sizes: list[int] = []

    def counting(cost: Any) -> Any:
        sizes.append(len(cost))
        return linear_sum_assignment(cost)

    monkeypatch.setattr(scipy.optimize, "linear_sum_assignment", counting)
    return sizes


def test_one_assignment_serves_all_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = count_assignments(monkeypatch)
    images = pictures()
    score(guess(images, torch.zeros(4)), Private(images=images, labels=torch.zeros(4)))
    assert sizes == [4]
    sizes.clear()
    labels = torch.tensor([1, 0, 1, 1])  # a block per label is still one assignment
    score(guess(images, labels), Private(images=images, labels=labels))
    assert sizes == [3]  # and the single image of label 0 has no choice


def test_a_whole_trial_is_assigned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = Scenario(data="faces", image_size=12, num_samples=3, model="mlp", epochs=1, batches=1)
    labels = scenario.draw(0).labels
    sizes = count_assignments(monkeypatch)
    run(Trial(scenario=scenario, attack="ig", arguments={"steps": 30}))
    assert sum(sizes) == 3
    assert len(sizes) == len(set(labels.tolist()))


@pytest.mark.parametrize("name", BACKBONES)
def test_the_chosen_backbones_lpips_is_in_the_score(name: BackboneName, tmp_path: Path) -> None:
    (tmp_path / "undelta").mkdir()
    weights = {key: torch.full(shape, 0.01) for key, shape in BACKBONES[name].shapes().items()}
    weights["features.0.weight"][0] *= -1  # else all features have one direction, and all distances are zero
    save_file(weights, tmp_path / "undelta" / f"lpips-{name}.safetensors")
    images, labels = pictures(2), torch.tensor([0, 1])
    guesses, private = guess(noisy(images, 0.0, 0.2), labels), Private(images=images, labels=labels)
    result = score(guesses, private, lpips_backbone=name)
    assert result.lpips_backbone == name
    first, second = (image.lpips for image in result.images)
    assert first == 0
    assert second is not None
    assert second > 0
    assert result.lpips == pytest.approx(second / 2)
    other: BackboneName = "vgg" if name == "alex" else "alex"
    assert score(guesses, private, lpips_backbone=other).lpips is None


def test_images_of_two_channels_have_no_lpips_even_with_weights(tmp_path: Path) -> None:
    (tmp_path / "undelta").mkdir()
    shapes = BACKBONES["alex"].shapes()
    save_file({key: torch.ones(shape) for key, shape in shapes.items()}, tmp_path / "undelta/lpips-alex.safetensors")
    images, labels = pictures(2), torch.tensor([0, 1])
    for channels, known in ((2, False), (1, True)):
        part = images[:, :channels]
        result = score(guess(part, labels), Private(images=part, labels=labels))
        assert (result.lpips is not None) is known
        assert result.psnr == 100


def test_an_unknown_backbone_is_refused() -> None:
    images, labels = pictures(2), torch.tensor([0, 1])
    with pytest.raises(ConfigError, match="choose from alex, vgg"):
        score(guess(images, labels), Private(images=images, labels=labels), lpips_backbone="squeeze")  # type: ignore[arg-type]
