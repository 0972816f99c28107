"""Local training: how epochs are cut, the losses, and the rollout's pullback against plain autograd."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F  # noqa: N812

from undelta.errors import ConfigError
from undelta.training import LOSSES, LocalTraining, LossName, NormMode, l2

CLASSES = 3
SAMPLES = 7  # with B=4: mini-batches of 2, 2, 2 and 1
RATE = 0.05


def training(
    epochs: int = 1, batches: int = 1, *, loss: LossName = "cross_entropy", norm_mode: NormMode = "train"
) -> LocalTraining:
    return LocalTraining(epochs=epochs, batches=batches, learning_rate=RATE, loss=loss, norm_mode=norm_mode)


@given(st.integers(1, 60), st.integers(0, 400))
def test_an_epoch_has_exactly_b_mini_batches_that_hold_all_samples(batches: int, extra: int) -> None:
    num_samples = batches + extra
    sizes = training(batches=batches).sizes(num_samples)
    assert len(sizes) == batches
    assert sum(sizes) == num_samples
    assert len(set(sizes[:-1])) <= 1
    assert min(sizes) >= 1


@pytest.mark.parametrize(
    ("num_samples", "batches", "sizes"),
    [
        (10, 4, (3, 3, 3, 1)),
        (9, 4, (2, 2, 2, 3)),
        (8, 4, (2, 2, 2, 2)),
        (7, 4, (2, 2, 2, 1)),
        (5, 1, (5,)),
        (3, 3, (1, 1, 1)),
    ],
)
def test_the_last_mini_batch_takes_what_is_left(num_samples: int, batches: int, sizes: tuple[int, ...]) -> None:
    assert training(batches=batches).sizes(num_samples) == sizes


def test_fewer_samples_than_mini_batches_are_an_error() -> None:
    with pytest.raises(ConfigError, match="3 samples cannot fill 4 mini-batches"):
        training(batches=4).sizes(3)


@pytest.mark.usefixtures("bounded_memory")
def test_mini_batches_are_cut_without_being_counted_out() -> None:
    assert training(batches=10**7 - 1).cut(10**7) == (10**7 - 1, 1, 2)
    with pytest.raises(ConfigError, match="expected num_samples <= 10,000,000, got num_samples=10000000000"):
        training(batches=2).cut(10**10)


@pytest.mark.parametrize(("epochs", "batches"), [(10**9, 1), (1, 2 * 10**8), (10**4, 10**4)])
def test_more_steps_than_anybody_can_take_are_refused(epochs: int, batches: int) -> None:
    with pytest.raises(ConfigError, match=rf"epochs x batches <= 10,000,000, got {epochs} x {batches}"):
        training(epochs, batches)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("epochs", 0),
        ("batches", -1),
        ("learning_rate", 0.0),
        ("learning_rate", -1.0),
        ("learning_rate", float("inf")),
        ("learning_rate", float("nan")),
        ("loss", "hinge"),
        ("norm_mode", "frozen"),
    ],
)
def test_bad_training_settings_are_named(key: str, value: object) -> None:
    settings: dict[str, Any] = {"epochs": 1, "batches": 1, "learning_rate": 0.1, key: value}
    with pytest.raises(ConfigError, match=key):
        LocalTraining(**settings)


def test_l2_loss_is_the_mean_squared_distance_to_the_one_hot_labels() -> None:
    outputs = torch.tensor([[1.0, 2.0], [0.0, -1.0]])
    assert float(l2(outputs, torch.tensor([1, 0]))) == pytest.approx(((1 + 1) + (1 + 1)) / 2)
    assert float(l2(outputs, torch.tensor([0, 0]))) == pytest.approx(((0 + 4) + (1 + 1)) / 2)


@pytest.mark.parametrize("loss", LOSSES)
def test_soft_labels_that_are_one_hot_equal_class_labels(loss: str) -> None:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(5, CLASSES, generator=generator, dtype=torch.float64)
    labels = torch.tensor([0, 2, 1, 1, 0])
    soft = F.one_hot(labels, CLASSES).double()
    torch.testing.assert_close(LOSSES[loss](outputs, soft), LOSSES[loss](outputs, labels))
