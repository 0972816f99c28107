"""Distances between updates, by hand and by their invariances."""

from __future__ import annotations

import math

import pytest
import torch

from undelta.attacker.distances import (
    Distance,
    Weights,
    cosine,
    gaussian_kernel,
    l1,
    l2,
    l2_norms,
    larger_entries,
    mismatch,
    relative_l2,
    with_cotangent,
)
from undelta.updates import Update


def tensors(**values: list[float]) -> Update:
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}


def weights(**values: float) -> Weights:
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}


def random_updates(dtype: torch.dtype = torch.float64) -> tuple[Update, Update]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"a": (3, 2), "b": (4,), "c": (2, 2, 2)}
    first, second = (
        {name: torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for name, shape in shapes.items()}
        for _ in range(2)
    )
    return first, second


def scaled(values: Update, factor: float) -> Update:
    return {name: factor * value for name, value in values.items()}


def test_the_weighted_cosine_distance_by_hand() -> None:
    dummy, target = tensors(a=[1, 2], b=[3]), tensors(a=[2, 1], b=[-1])
    # 2 (1*2 + 2*1) + 5 (3*-1) = -7; 2*5 + 5*9 = 55; 2*5 + 5*1 = 15
    assert float(cosine(dummy, target, weights(a=2, b=5))) == pytest.approx(1 + 7 / math.sqrt(55 * 15), rel=1e-14)


def test_the_weighted_squared_distance_by_hand() -> None:
    dummy, target = tensors(a=[1, 2], b=[3]), tensors(a=[2, 1], b=[-1])
    assert float(l2(dummy, target, weights(a=2, b=5))) == pytest.approx(2 * (1 + 1) + 5 * 16)


def test_uniform_weights_give_the_plain_formulas_on_the_whole_vector() -> None:
    dummy, target = random_updates()
    a, b = (torch.cat([value.reshape(-1) for value in values.values()]) for values in (dummy, target))
    ones = weights(a=1, b=1, c=1)
    expected = float(1 - torch.nn.functional.cosine_similarity(a, b, dim=0))
    assert float(cosine(dummy, target, ones)) == pytest.approx(expected, rel=1e-12)
    assert mismatch(dummy, target) == pytest.approx(expected, rel=1e-12)
    assert float(l2(dummy, target, ones)) == pytest.approx(float((a - b).square().sum()), rel=1e-12)


def test_no_update_is_closer_than_itself() -> None:
    drawn = torch.randn(50, 40, generator=torch.Generator().manual_seed(0))
    assert all(str(mismatch({"a": one}, {"a": one})) >= "0" for one in drawn)  # -0.0 would be below


def test_equal_updates_are_at_distance_zero_and_opposite_ones_at_two() -> None:
    dummy, _ = random_updates()
    some = weights(a=1, b=700, c=3)
    assert float(cosine(dummy, dummy, some)) == pytest.approx(0, abs=1e-14)
    assert float(cosine(dummy, scaled(dummy, -1), some)) == pytest.approx(2, rel=1e-14)
    assert float(l2(dummy, dummy, some)) == 0


@pytest.mark.parametrize("factor", [1e-3, 7.0, 1e3])
def test_scaling_all_weights_alike_changes_no_cosine(factor: float) -> None:
    dummy, target = random_updates()
    some = weights(a=1, b=20, c=3)
    more = {name: factor * value for name, value in some.items()}
    torch.testing.assert_close(cosine(dummy, target, more), cosine(dummy, target, some), rtol=1e-12, atol=0)


@pytest.mark.parametrize(("dummy_factor", "target_factor"), [(1e-3, 1.0), (1.0, 1e3), (1e-9, 1e-9), (1e6, 1e6)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scaling_the_updates_changes_no_cosine(dummy_factor: float, target_factor: float, dtype: torch.dtype) -> None:
    dummy, target = random_updates(dtype)
    expected = mismatch(dummy, target)
    assert mismatch(scaled(dummy, dummy_factor), scaled(target, target_factor)) == pytest.approx(expected, rel=1e-5)


def test_the_tiny_update_of_a_saturated_network_still_has_a_direction_in_float32() -> None:
    dummy, target = random_updates(torch.float32)
    assert mismatch(scaled(dummy, 1e-14), scaled(target, 1e-8)) == pytest.approx(mismatch(dummy, target), rel=1e-5)


@pytest.mark.parametrize("which", ["dummy", "target", "both"])
@pytest.mark.parametrize("distance", [cosine, l2])
def test_a_zero_update_has_a_finite_distance_and_gradient(distance: Distance, which: str) -> None:
    dummy, target = random_updates(torch.float32)
    if which != "target":
        dummy = scaled(dummy, 0)
    if which != "dummy":
        target = scaled(target, 0)
    leaves = {name: value.requires_grad_() for name, value in dummy.items()}
    ones = dict.fromkeys(leaves, torch.ones(()))
    value = distance(leaves, target, ones)
    if distance is cosine:
        assert float(value.detach()) == 1
    gradients = torch.autograd.grad(value, list(leaves.values()))
    assert torch.isfinite(value)
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


@pytest.mark.parametrize("distance", [cosine, l2])
def test_a_layer_of_larger_weight_matters_more(distance: Distance) -> None:
    target = tensors(a=[1, 1], b=[1, 1])
    wrong_in_a, wrong_in_b = tensors(a=[1, -1], b=[1, 1]), tensors(a=[1, 1], b=[1, -1])
    heavy_a = weights(a=10, b=1)
    assert distance(wrong_in_a, target, heavy_a) > distance(wrong_in_b, target, heavy_a)


@pytest.mark.parametrize("distance", [cosine, l2, relative_l2, l2_norms, l1, gaussian_kernel, larger_entries])
def test_a_cotangent_is_the_gradient_that_autograd_gives(distance: Distance) -> None:
    dummy, target = random_updates()
    some = weights(a=2, b=700, c=0.1)
    leaves = {name: value.clone().requires_grad_() for name, value in dummy.items()}
    expected = distance(leaves, target, some)
    expected.backward()
    value, cotangent = with_cotangent(distance, dummy, target, some)
    assert float(value) == pytest.approx(float(expected.detach()), rel=1e-12)
    for name, leaf in leaves.items():
        assert leaf.grad is not None
        torch.testing.assert_close(cotangent[name], leaf.grad, rtol=1e-11, atol=1e-14)


def test_a_zero_update_has_the_same_cotangent_as_by_autograd() -> None:
    _, target = random_updates()
    some = weights(a=2, b=700, c=0.1)
    leaves = {name: torch.zeros_like(value).requires_grad_() for name, value in target.items()}
    cosine(leaves, target, some).backward()
    _, cotangent = with_cotangent(cosine, {name: leaf.detach() for name, leaf in leaves.items()}, target, some)
    for name, leaf in leaves.items():
        assert leaf.grad is not None
        torch.testing.assert_close(cotangent[name], leaf.grad, rtol=1e-11, atol=1e-14)
