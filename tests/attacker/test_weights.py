"""Layer weights, by hand and on ResNet-18."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from undelta.attacker.weights import (
    FAMILIES,
    MANY,
    PAPER_Q,
    ByFamily,
    ErrorEnhanced,
    Q,
    Ramps,
    Uniform,
    _moments,
    family_of,
    largest_errors,
    ramps,
    weights_of,
)
from undelta.errors import ConfigError
from undelta.models import build
from undelta.updates import Kind, Layer, Update, layers_of, parameters_of


def layer(index: int, kind: Kind = "conv", *parameters: str) -> Layer:
    return Layer(name=f"l{index}", kind=kind, parameters=parameters or (f"l{index}",))


def updates(*rows: tuple[float, ...]) -> Update:
    return {f"l{index}": torch.tensor(row, dtype=torch.float64) for index, row in enumerate(rows)}


# Means 1, 1, 1, 1 and variances 1, 1, 1, 1; the dummy's means 2, 5, 1, 4 and variances 3^2, 1, 2^2, 5^2.
LAYERS = tuple(layer(index) for index in range(4))
TARGET = updates((0, 2), (0, 2), (0, 2), (0, 2))
DUMMY = updates((-1, 5), (4, 6), (-1, 3), (-1, 9))
# Mean errors 1, 4, 0, 3: layers 1, 3, 0, 2 in order. Variance errors 8, 0, 3, 24: layers 3, 0, 2, 1.


def resnet18() -> tuple[tuple[Layer, ...], Update, Update]:
    model = build("resnet18", {"width": 4}, shape=(3, 32, 32), classes=10)
    generator = torch.Generator().manual_seed(0)
    random = [
        {name: torch.randn(value.shape, generator=generator) for name, value in parameters_of(model).items()}
        for _ in range(2)
    ]
    return layers_of(model), random[0], random[1]


def test_uniform_weights_are_ones() -> None:
    assert Uniform()(LAYERS, DUMMY, TARGET).tolist() == [1, 1, 1, 1]


def test_a_ramp_rises_from_one_to_q_over_the_layers_of_its_kind() -> None:
    kinds: list[Kind] = ["conv", "norm", "conv", "norm", "conv", "linear", "other", "linear"]
    layers = [layer(index, kind) for index, kind in enumerate(kinds)]
    ends = {"conv": 9.0, "norm": 3.0, "linear": 100.0, "other": 7.0}
    assert ramps(layers, ends) == [1, 1, 5, 3, 9, 1, 7, 100]
    target = updates(*[(1.0,)] * 8)
    assert Ramps(**ends)(layers, target, target).tolist() == [1, 1, 5, 3, 9, 1, 7, 100]


def test_the_only_layer_of_a_kind_weighs_q_itself() -> None:
    assert ramps([layer(0, "linear")], {"linear": 441.64}) == [441.64]


def test_a_ramp_may_decrease() -> None:
    assert ramps(LAYERS, {"conv": 0.1}) == pytest.approx([1, 0.7, 0.4, 0.1])


def test_the_largest_errors_are_the_intersection_of_both_rankings() -> None:
    assert largest_errors(LAYERS, DUMMY, TARGET, 0.5, 0.5) == [3]
    assert largest_errors(LAYERS, DUMMY, TARGET, 0.75, 0.5) == [0, 3]
    assert largest_errors(LAYERS, DUMMY, TARGET, 0.25, 0.25) == []
    assert largest_errors(LAYERS, DUMMY, TARGET, 0.5, 1.0) == [1, 3]
    assert largest_errors(LAYERS, DUMMY, TARGET, 1.0, 0.75) == [0, 2, 3]


def test_shares_of_layers_are_rounded_up() -> None:
    assert largest_errors(LAYERS, DUMMY, TARGET, 0.01, 1.0) == [1]
    assert largest_errors(LAYERS, DUMMY, TARGET, 0.26, 1.0) == [1, 3]


def test_errors_are_relative_to_the_target() -> None:
    target = updates((0, 200), (0, 2))
    dummy = updates((10, 210), (1, 3))  # means off by 10 of 100, and by 1 of 1
    assert largest_errors(LAYERS[:2], dummy, target, 0.5, 1.0) == [1]


def test_weight_and_bias_count_as_one_set_of_entries() -> None:
    layers = [layer(0, "conv", "w", "b"), layer(1)]
    # (0, 0, 0) with (4,) has mean 1; the mean of the two means would be 2.
    target = {"w": torch.zeros(3), "b": torch.tensor([4.0]), "l1": torch.tensor([2.0, 0.0])}
    dummy = {"w": torch.zeros(3), "b": torch.tensor([8.0]), "l1": torch.tensor([3.5, 0.0])}  # errors 1 and .75
    assert largest_errors(layers, dummy, target, 0.5, 1.0) == [0]
    dummy["l1"] = torch.tensor([5.0, 0.0])  # error 1.5
    assert largest_errors(layers, dummy, target, 0.5, 1.0) == [1]


def test_enhancement_replaces_a_weight_and_does_not_multiply_it() -> None:
    q = Q(conv=7, norm=1, linear=1, enhanced=50, p_mean=0.75, p_var=0.5)
    assert ErrorEnhanced(q=q)(LAYERS, DUMMY, TARGET).tolist() == [50, 3, 5, 50]


@pytest.mark.parametrize(("p_mean", "p_var"), [(0.0, 0.5), (0.5, 0.0), (0.0, 0.0)])
def test_without_a_share_only_the_ramps_remain(p_mean: float, p_var: float) -> None:
    q = Q(conv=7, norm=1, linear=1, enhanced=50, p_mean=p_mean, p_var=p_var)
    assert ErrorEnhanced(q=q)(LAYERS, DUMMY, TARGET).tolist() == [1, 3, 5, 7]


def test_enhanced_weights_follow_the_dummy_update() -> None:
    weights = ErrorEnhanced(q=Q(conv=1, norm=1, linear=1, enhanced=50, p_mean=0.25, p_var=1.0))
    assert weights(LAYERS, DUMMY, TARGET).tolist() == [1, 50, 1, 1]
    assert weights(LAYERS, {**DUMMY, "l2": DUMMY["l2"] + 100}, TARGET).tolist() == [1, 1, 50, 1]


def test_a_target_of_zero_mean_or_variance_divides_by_no_zero() -> None:
    target = updates((-1, 1), (2, 2), (0, 2), (0, 0))
    for dummy in (DUMMY, target, updates(*[(0.0, 0.0)] * 4)):
        weights = ErrorEnhanced(q=PAPER_Q)(LAYERS, dummy, target)
        assert torch.isfinite(weights).all()
    assert largest_errors(LAYERS, DUMMY, target, 0.5, 1.0) == [0, 3], "errors relative to zero are the largest"


def test_weights_carry_no_gradient() -> None:
    dummy = {name: value.clone().requires_grad_() for name, value in DUMMY.items()}
    assert not ErrorEnhanced(q=PAPER_Q)(LAYERS, dummy, TARGET).requires_grad


def test_resnet18_has_the_papers_41_layers() -> None:
    kinds = [layer.kind for layer in resnet18()[0]]
    assert [kinds.count(kind) for kind in ("conv", "norm", "linear", "other")] == [20, 20, 1, 0]


def test_the_papers_shares_select_21_and_13_layers_of_resnet18() -> None:
    layers, dummy, target = resnet18()
    by_mean = largest_errors(layers, dummy, target, PAPER_Q.p_mean, 1.0)
    by_variance = largest_errors(layers, dummy, target, 1.0, PAPER_Q.p_var)
    assert (len(by_mean), len(by_variance)) == (21, 13)
    both = largest_errors(layers, dummy, target, PAPER_Q.p_mean, PAPER_Q.p_var)
    assert both == sorted(set(by_mean) & set(by_variance))
    weights = ErrorEnhanced()(layers, dummy, target)
    plain = Ramps(conv=PAPER_Q.conv, norm=PAPER_Q.norm, linear=PAPER_Q.linear)(layers, dummy, target)
    assert [index for index in range(41) if weights[index] != plain[index]] == both
    assert weights[both].tolist() == pytest.approx([PAPER_Q.enhanced] * len(both))


def test_the_ramps_of_resnet18_end_at_the_papers_q() -> None:
    layers, dummy, target = resnet18()
    weights = Ramps(conv=PAPER_Q.conv, norm=PAPER_Q.norm, linear=PAPER_Q.linear)(layers, dummy, target)
    by_kind = {
        kind: [float(w) for w, layer in zip(weights, layers, strict=True) if layer.kind == kind]
        for kind in ("conv", "norm", "linear")
    }
    assert (by_kind["conv"][0], by_kind["conv"][-1]) == pytest.approx((1, 694.99))
    assert by_kind["norm"][10] == pytest.approx(1 + 897.67 * 10 / 19)
    assert by_kind["linear"] == pytest.approx([441.64])


def test_layers_of_any_size_have_the_mean_and_variance_of_all_their_entries() -> None:
    generator = torch.Generator().manual_seed(0)
    parts = {
        name: 3.0 + torch.randn(count, generator=generator, dtype=torch.float64)
        for name, count in (("large.weight", MANY + 7), ("large.bias", 5), ("small.weight", 40))
    }
    layers = [
        Layer(name="large", kind="conv", parameters=("large.weight", "large.bias")),
        Layer(name="small", kind="conv", parameters=("small.weight",)),
    ]
    means, variances = _moments(layers, parts)
    for index, layer in enumerate(layers):
        everything = torch.cat([parts[name] for name in layer.parameters])
        assert float(means[index]) == pytest.approx(float(everything.mean()), rel=1e-12)
        assert float(variances[index]) == pytest.approx(float(everything.var(correction=0)), rel=1e-10)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("conv", 0.0),
        ("norm", -1.0),
        ("linear", float("inf")),
        ("enhanced", float("nan")),
        ("p_mean", 1.1),
        ("p_var", -0.1),
    ],
)
def test_parameters_out_of_range_are_named(key: str, value: float) -> None:
    settings: dict[str, Any] = {"conv": 1, "norm": 1, "linear": 1, "enhanced": 1, "p_mean": 0, "p_var": 0, key: value}
    with pytest.raises(ConfigError, match=key):
        Q(**settings)


@pytest.mark.parametrize(
    ("model", "arguments", "family"),
    [
        ("cnn", {}, "cnn"),
        ("lenet", {}, "cnn"),
        ("mlp", {}, "cnn"),
        ("resnet8", {"width": 4}, "resnet"),
        ("convnet", {"width": 4}, "resnet"),
        ("vgg11", {"width": 2, "hidden": 8}, "vgg"),
        ("vgg11", {"width": 2, "hidden": 8, "norm": "batch"}, "resnet"),
        ("vit", {"width": 8, "depth": 1, "heads": 2}, "vit"),
    ],
)
def test_the_kinds_of_layers_tell_a_networks_family(model: str, arguments: dict[str, object], family: str) -> None:
    layers = layers_of(build(model, arguments, shape=(3, 32, 32), classes=10))
    assert family_of(layers) == family
    update = {name: torch.ones(1) for layer in layers for name in layer.parameters}
    q = FAMILIES[family_of(layers)]
    alone = Ramps(conv=q.conv, norm=q.norm, linear=q.linear, other=q.other)(layers, update, update)
    assert torch.equal(ByFamily(enhanced=False)(layers, update, update), alone)


def test_nothing_is_enhanced_where_a_share_is_zero() -> None:
    q = Q(conv=2.0, norm=3.0, linear=4.0, enhanced=9.0, p_mean=0.5, p_var=0.0)
    assert weights_of(q, enhanced=True) == Ramps(conv=2.0, norm=3.0, linear=4.0)
    assert weights_of(replace(q, p_var=0.1), enhanced=True) == ErrorEnhanced(q=replace(q, p_var=0.1))
