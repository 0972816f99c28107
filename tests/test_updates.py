"""Layers of arbitrary modules, and the arithmetic of updates."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from undelta.models import MODELS, build
from undelta.updates import Layer, along, difference, inner, layers_of, parameters_of, scaled


def kinds(model: nn.Module) -> dict[str, str]:
    return {layer.name: layer.kind for layer in layers_of(model)}


def test_weight_and_bias_of_a_module_form_one_layer() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 3))
    assert layers_of(model) == (
        Layer(name="0", kind="conv", parameters=("0.weight", "0.bias")),
        Layer(name="2", kind="norm", parameters=("2.weight", "2.bias")),
        Layer(name="4", kind="linear", parameters=("4.weight", "4.bias")),
    )


def test_a_lone_module_is_one_layer_with_plain_parameter_names() -> None:
    (layer,) = layers_of(nn.Linear(2, 3))
    assert layer == Layer(name="", kind="linear", parameters=("weight", "bias"))


def test_a_module_without_parameters_has_no_layers() -> None:
    assert layers_of(nn.Sequential(nn.ReLU(), nn.BatchNorm2d(2, affine=False))) == ()


def test_a_shared_module_counts_once_under_its_first_name() -> None:
    shared = nn.Linear(2, 2)
    assert kinds(nn.ModuleDict({"first": shared, "again": shared})) == {"first": "linear"}


def test_a_tied_weight_counts_once_under_its_first_name() -> None:
    model = nn.ModuleDict({"embedding": nn.Embedding(5, 2), "output": nn.Linear(2, 5)})
    model["output"].weight = model["embedding"].weight
    assert layers_of(model) == (
        Layer(name="embedding", kind="linear", parameters=("embedding.weight",)),
        Layer(name="output", kind="linear", parameters=("output.bias",)),
    )


def test_a_layer_whose_parameters_are_all_tied_vanishes() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    assert kinds(model) == {"0": "linear"}


def test_attention_is_one_linear_layer_in_and_another_out() -> None:
    assert layers_of(nn.MultiheadAttention(4, 2)) == (
        Layer(name="", kind="linear", parameters=("in_proj_weight", "in_proj_bias")),
        Layer(name="out_proj", kind="linear", parameters=("out_proj.weight", "out_proj.bias")),
    )


def test_free_parameters_are_other() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.PReLU())
    model.register_parameter("scale", nn.Parameter(torch.ones(1)))
    assert kinds(model) == {"": "other", "0": "linear", "1": "other"}


@pytest.mark.parametrize(
    "module",
    [
        nn.LayerNorm(2),
        nn.GroupNorm(1, 2),
        nn.BatchNorm1d(2),
        nn.InstanceNorm2d(2, affine=True),
        nn.RMSNorm(2),
    ],
    ids=lambda module: type(module).__name__,
)
def test_every_normalization_is_a_norm(module: nn.Module) -> None:
    assert kinds(module) == {"": "norm"}


@pytest.mark.parametrize("module", [nn.Conv1d(1, 1, 1), nn.Conv3d(1, 1, 1), nn.ConvTranspose2d(1, 1, 1)])
def test_every_convolution_is_a_conv(module: nn.Module) -> None:
    assert kinds(module) == {"": "conv"}


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_is_in_exactly_one_layer(name: str) -> None:
    with torch.device("meta"):
        model = build(name, {}, shape=(3, 32, 32), classes=10)
    listed = [key for layer in layers_of(model) for key in layer.parameters]
    assert sorted(listed) == sorted(key for key, _ in model.named_parameters())


def test_resnet18_has_twenty_convolutions_twenty_norms_and_one_linear_layer() -> None:
    with torch.device("meta"):
        found = list(kinds(build("resnet18", {}, shape=(3, 224, 224), classes=10)).values())
    assert (found.count("conv"), found.count("norm"), found.count("linear"), len(found)) == (20, 20, 1, 41)


def test_only_the_free_parameters_of_a_vit_are_other() -> None:
    with torch.device("meta"):
        found = kinds(build("vit", {"depth": 1}, shape=(3, 8, 8), classes=10))
    assert [name for name, kind in found.items() if kind == "other"] == ["", "encoder"]
    assert found["encoder.layers.encoder_layer_0.self_attention"] == "linear"


def test_a_step_along_the_whole_difference_arrives() -> None:
    start = {"w": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0]), "buffer": torch.tensor([9.0])}
    end = {"w": torch.tensor([2.0, 0.0]), "b": torch.tensor([5.0]), "buffer": torch.tensor([8.0])}
    update = difference(end, start, ["w", "b"])
    assert {name: tensor.tolist() for name, tensor in update.items()} == {"w": [1.0, -2.0], "b": [2.0]}
    assert along(start, update, 1.0)["w"].tolist() == [2.0, 0.0]
    assert along(start, update, 0.5)["b"].tolist() == [4.0]
    assert inner(update, scaled(update, 2.0)).item() == 18.0


def test_parameters_are_detached_and_leave_buffers_out() -> None:
    parameters = parameters_of(nn.BatchNorm2d(2))
    assert set(parameters) == {"weight", "bias"}
    assert not any(tensor.requires_grad for tensor in parameters.values())
