"""The rollout's pushforward against plain autograd in float64, and against the pullback, whatever the steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from undelta.engine import MEMORY, Network, Step, rollout
from undelta.engine.pushforward import pushforward
from undelta.models import build
from undelta.stepping import Stepping
from undelta.training import LocalTraining, NormMode
from undelta.updates import Update, inner, parameters_of

MODELS: dict[str, tuple[str, dict[str, object], NormMode]] = {
    "cnn": ("cnn", {"width": 3, "hidden": 6}, "train"),
    "cnn with max pooling": ("cnn", {"width": 3, "hidden": 6, "pool": "max"}, "train"),
    "BatchNorm in train mode": ("convnet", {"width": 3, "norm": "batch"}, "train"),
    "BatchNorm in eval mode": ("convnet", {"width": 3, "norm": "batch"}, "eval"),
    "ResNet": ("resnet8", {"width": 2}, "train"),
    "by autograd": ("GELU", {}, "train"),
}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "momentum and weight decay": {"momentum": 0.8, "nesterov": True, "weight_decay": 0.05},
    "proximal term": {"proximal": 0.5},
    "clipping a proximal term": {"clip_norm": 0.2, "proximal": 2.0, "momentum": 0.9},
    "adam": {"optimizer": "adam", "weight_decay": 0.01, "betas": (0.8, 0.95)},
    "adamw, clipped": {"optimizer": "adamw", "weight_decay": 0.1, "clip_norm": 0.2, "adam_epsilon": 1e-3},
}


def training(norm_mode: NormMode = "train", **recipe: Any) -> LocalTraining:
    return LocalTraining(epochs=1, batches=3, learning_rate=0.3, norm_mode=norm_mode, **recipe)


def make(name: str = "cnn", arguments: dict[str, object] | None = None) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if name == "GELU":  # which no trace knows
            return nn.Sequential(nn.Flatten(), nn.Linear(128, 5), nn.GELU(), nn.Linear(5, 3)).double()
        return build(name, arguments or {"width": 3, "hidden": 6}, shape=(2, 8, 8), classes=3).double()


def random_steps(seed: int = 1) -> tuple[list[Step], list[Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    steps, tangents = [], []
    for size in (2, 3, 2):
        images, tangent = torch.randn(2, size, 2, 8, 8, generator=generator, dtype=torch.float64)
        steps.append(Step(images, torch.randint(0, 3, (size,), generator=generator), 0.3))
        tangents.append(tangent)
    return steps, tangents


def random_like(update: Update) -> Update:
    generator = torch.Generator().manual_seed(2)
    return {name: torch.randn(value.shape, generator=generator, dtype=torch.float64) for name, value in update.items()}


def by_autograd(model: nn.Module, local: LocalTraining, steps: Sequence[Step], tangents: Sequence[Tensor]) -> Tensor:
    """J·w as the derivative of ⟨w, Jᵀ v⟩ by v, which is linear in v: backward passes only."""
    model = model.train(local.norm_mode == "train")
    start = {name: value.clone().requires_grad_() for name, value in parameters_of(model).items()}
    images, point = [step.images.clone().requires_grad_() for step in steps], dict(start)
    for inputs, step in zip(images, steps, strict=True):
        loss = nn.functional.cross_entropy(functional_call(model, point, (inputs,)), step.labels)
        gradients = torch.autograd.grad(loss, list(point.values()), create_graph=True)
        moved = zip(point.items(), gradients, strict=True)
        point = {name: value - step.learning_rate * gradient for (name, value), gradient in moved}
    update = torch.cat([(point[name] - start[name]).reshape(-1) for name in start])
    cotangent = torch.zeros_like(update, requires_grad=True)
    pulled = torch.autograd.grad(update @ cotangent, images, create_graph=True)
    product = torch.stack([(a * b).sum() for a, b in zip(pulled, tangents, strict=True)]).sum()
    return torch.autograd.grad(product, cotangent)[0]


@pytest.mark.parametrize("name", MODELS)
def test_pushforward_equals_autograd(name: str) -> None:
    kind, arguments, mode = MODELS[name]
    model, (steps, tangents) = make(kind, arguments), random_steps()
    network = Network(model, training(mode))
    pushed = pushforward(network, network.start, steps, tangents)
    expected = by_autograd(model, training(mode), steps, tangents)
    found = torch.cat([value.reshape(-1) for value in pushed.values()])
    assert expected.norm() > 1e-3
    assert float((found - expected).norm() / expected.norm()) < 1e-9


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_pushforward_is_the_transpose_of_the_pullback_under_any_optimizer(name: str) -> None:
    network, (steps, tangents) = Network(make(), training(**OPTIMIZERS[name])), random_steps()
    stepping = Stepping.of(training(**OPTIMIZERS[name]))
    assert stepping is not None
    path = rollout(network, network.start, steps, stepping=stepping)
    cotangent = random_like(path.update)
    pushed = inner(pushforward(network, network.start, steps, tangents, stepping=stepping), cotangent)
    pulled = path.pullback(cotangent).images
    expected = torch.stack([(a * b).sum() for a, b in zip(pulled, tangents, strict=True)]).sum()
    assert abs(float(expected)) > 1e-3
    assert float((pushed - expected).abs() / expected.abs()) < 1e-9


def test_pushforward_by_small_chunks_is_the_same() -> None:
    steps, tangents = random_steps()
    found = []
    for memory in (MEMORY, 1):
        network = Network(make(), training())
        network.memory = memory
        found.append(pushforward(network, network.start, steps, tangents))
    assert all(torch.allclose(found[0][name], found[1][name], rtol=1e-12, atol=1e-14) for name in found[0])
