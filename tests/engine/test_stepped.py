"""Rollouts through an optimizer's memory: the pullback against one big graph of plain autograd, in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from undelta.engine import Network, Room, Step, rollout
from undelta.models import build
from undelta.stepping import Stepping
from undelta.training import LocalTraining
from undelta.updates import Update, parameters_of

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "momentum": {"momentum": 0.9},
    "Nesterov and weight decay": {"momentum": 0.8, "nesterov": True, "weight_decay": 0.05},
    "weight decay": {"weight_decay": 0.1},
    "proximal term": {"proximal": 0.5, "momentum": 0.5},
    "clipping": {"clip_norm": 0.5, "momentum": 0.9},
    "clipping a proximal term": {"clip_norm": 0.5, "proximal": 2.0},
    "adam": {"optimizer": "adam", "weight_decay": 0.01, "betas": (0.8, 0.95)},
    "adamw, clipped": {"optimizer": "adamw", "weight_decay": 0.1, "clip_norm": 0.4, "adam_epsilon": 1e-3},
}
RATES = [(0.05,), (0.02, 0.03, 0.01), (0.04,), (0.02,)]  # the second gradient is held


def make_model() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build("cnn", {"width": 2, "hidden": 4}, shape=(1, 4, 4), classes=3).double()


def make_steps() -> list[Step]:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(len(RATES), 2, 1, 4, 4, generator=generator, dtype=torch.float64)
    labels = torch.randn(len(RATES), 2, 3, generator=generator, dtype=torch.float64).softmax(2)
    return [Step(images[index], labels[index], rates[0], rates) for index, rates in enumerate(RATES)]


def reference(stepping: Stepping, memory: list[Tensor], parts: list[Tensor], rates: Sequence[float]) -> Tensor:
    """The change by steps along one gradient as papers write them, on flat tensors; moves the memory."""
    gradient, point, moved = parts
    slope = gradient + stepping.proximal * moved
    if stepping.clip_norm is not None:
        slope = slope * (stepping.clip_norm / (slope.norm() + 1e-6)).clamp(max=1)
    if stepping.optimizer == "sgd":
        total = torch.zeros_like(point)
        for rate in rates:
            held = gradient + stepping.proximal * (moved + total) if stepping.clip_norm is None else slope
            step = held + stepping.weight_decay * (point + total)
            memory[0] = stepping.momentum * memory[0] + step
            total = total - rate * (step + stepping.momentum * memory[0] if stepping.nesterov else memory[0])
        return total
    assert stepping.betas is not None
    if stepping.optimizer == "adam":
        slope = slope + stepping.weight_decay * point
    first, second = (beta ** len(rates) for beta in stepping.betas)
    memory[0] = first * memory[0] + (1 - first) * slope
    memory[1] = second * memory[1] + (1 - second) * slope**2
    memory[2] = memory[2] + len(rates)
    bias = [1 - beta ** float(memory[2][0]) for beta in stepping.betas]
    root = memory[1] / bias[1]
    step = memory[0] / bias[0] / (root.clamp_min(1e-300).sqrt() + stepping.adam_epsilon)
    decay = stepping.weight_decay if stepping.optimizer == "adamw" else 0.0
    change: Tensor = (math.prod(1 - rate * decay for rate in rates) - 1) * point - sum(rates) * step
    return change


def unrolled(model: nn.Module, steps: Sequence[Step], stepping: Stepping, cotangent: Update) -> list[Tensor]:
    """The update and the cotangents of images and labels, by one backward pass through all steps."""
    start = parameters_of(model)
    flat = torch.cat([value.reshape(-1) for value in start.values()])
    sizes = [value.numel() for value in start.values()]
    moved, memory = torch.zeros_like(flat), [torch.zeros_like(flat) for _ in range(3)]
    leaves = [tensor.clone().requires_grad_() for step in steps for tensor in step[:2]]
    for number, step in enumerate(steps):
        point = flat + moved
        parts = [one.requires_grad_() if number == 0 else one for one in point.split(sizes)]
        named = {name: part.view_as(start[name]) for name, part in zip(start, parts, strict=True)}
        outputs = functional_call(model, named, (leaves[2 * number],))
        loss = -(leaves[2 * number + 1] * outputs.log_softmax(1)).sum() / len(outputs)
        slopes = torch.autograd.grad(loss, parts, create_graph=True)
        moved = moved + reference(stepping, memory, [torch.cat(slopes), point, moved], step.rates)
    whole = torch.cat([value.reshape(-1) for value in cotangent.values()])
    pulled = torch.autograd.grad((moved * whole).sum(), leaves)
    return [part.view_as(start[name]) for name, part in zip(start, moved.detach().split(sizes), strict=True)] + list(
        pulled
    )


@pytest.mark.parametrize("points", [1, 3])
@pytest.mark.parametrize("settings", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_the_way_back_through_an_optimizer_equals_plain_autograd(settings: dict[str, Any], points: int) -> None:
    model, steps, stepping = make_model(), make_steps(), Stepping(**settings)
    network = Network(model, LocalTraining(epochs=1, batches=1, learning_rate=0.1))
    generator = torch.Generator().manual_seed(2)
    cotangent = {
        name: torch.randn(value.shape, generator=generator, dtype=torch.float64)
        for name, value in parameters_of(model).items()
    }
    expected = unrolled(model, steps, stepping, cotangent)
    room = Room(chunk=2, tapes=1, points=points)
    update, _, pullback = rollout(network, parameters_of(model), steps, room=room, stepping=stepping)
    pulled = pullback(cotangent)
    found = [*update.values()]
    for images, labels in zip(pulled.images, pulled.labels, strict=True):
        assert labels is not None
        found += [images, labels]
    for one, other in zip(found, expected, strict=True):
        assert (one - other).norm() <= 1e-9 * other.norm()
        assert other.norm() > 0
