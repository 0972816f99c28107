"""The work that the engine's benchmarks share: scenarios, one attack iteration by this package, and by the textbook."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from undelta.attacker.attacks import awa
from undelta.attacker.combine import Matching, method_of
from undelta.attacker.descent import Descent
from undelta.attacker.priors import total_variation
from undelta.client.disclose import disclose
from undelta.client.private import Private
from undelta.client.scenario import Scenario
from undelta.engine import MEMORY
from undelta.files import write_bytes
from undelta.observation import Observation
from undelta.seeding import stream
from undelta.trials.record import versions
from undelta.updates import difference, inner, parameters_of


class Work(NamedTuple):
    """A model, its images and its mini-batches."""

    model: str
    side: int
    samples: int
    norm_mode: str = "train"
    batches: int = 1
    epochs: int = 2
    width: int = 64
    stem: str | None = None  # of a ResNet; None: its own

    @property
    def name(self) -> str:
        norm = "" if self.model == "cnn" else f", BatchNorm {self.norm_mode}"
        stem = f" ({self.stem} stem)" if self.stem else ""
        return f"{self.model}{stem} {self.side} px, N={self.samples}, B={self.batches}{norm}"


def observe(work: Work) -> Observation:
    """An update of random images: what they show does not change what an iteration costs."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(work.samples, 3, work.side, work.side, generator=generator)
    private = Private(images=images, labels=torch.arange(work.samples) % 4)
    scenario = Scenario(
        data="photos",
        image_size=work.side,
        num_samples=work.samples,
        model=work.model,
        model_arguments={"width": work.width} | ({"stem": work.stem} if work.stem else {}),
        epochs=work.epochs,
        batches=work.batches,
        learning_rate=1e-4,
        norm_mode=work.norm_mode,  # type: ignore[arg-type]
    )
    return disclose(private, scenario)


def ours(observation: Observation, attack: Matching | None = None, *, memory: int = MEMORY) -> Callable[[], object]:
    """One full iteration of an attack (AWA with all its parts, if not told otherwise)."""
    descent = Descent(method_of(attack or awa()), observation, stream("attacker", 0), memory=memory)
    iteration = iter(range(10**9))
    return lambda: descent.step(next(iteration), record=False)


def batches_of(observation: Observation) -> list[Tensor]:
    sizes = list(observation.training.sizes(observation.num_samples))
    return list(torch.arange(observation.num_samples).split(sizes))


def plain(observation: Observation) -> Callable[[], object]:
    """The client's own work on the same images: forward and backward of every mini-batch, one SGD step each."""
    model = observation.model().train(observation.training.norm_mode == "train")
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=observation.learning_rate)
    images, labels = start_images(observation), known_labels(observation)

    def step() -> None:
        for batch in batches_of(observation):
            optimizer.zero_grad()
            F.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()

    return step


def textbook(observation: Observation) -> Callable[[], object]:
    """One iteration as it is usually written: unrolled steps with ``create_graph``, cosine, total variation, Adam.

    No BatchNorm prior: the network is fresh, and its statistics describe no images, so that ours is off, too.
    """
    model = observation.model().train(observation.training.norm_mode == "train")
    for module in model.modules():
        if isinstance(module, _BatchNorm) and module.training:
            module.track_running_stats = False
    start = {name: value.clone().requires_grad_() for name, value in parameters_of(model).items()}
    target = difference(observation.received, observation.initial, start)
    images, labels = start_images(observation).requires_grad_(), known_labels(observation)
    optimizer = torch.optim.Adam([images], lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        point, penalty = dict(start), 0.01 * total_variation(images)
        for batch in batches_of(observation):
            loss = F.cross_entropy(functional_call(model, point, (images[batch],)), labels[batch])
            gradients = torch.autograd.grad(loss, list(point.values()), create_graph=True)
            point = {
                name: value - observation.learning_rate * gradient
                for (name, value), gradient in zip(point.items(), gradients, strict=True)
            }
        update = {name: point[name] - start[name] for name in start}
        cosine = inner(update, target) / (inner(update, update).sqrt() * inner(target, target).sqrt())
        (1 - cosine + penalty).backward(inputs=[images])
        optimizer.step()

    return step


def forward_over_reverse(observation: Observation) -> Callable[[], object]:
    """One iteration by ``torch.func``: gradients first, then the loss's `jvp` along the cotangent, and reverse mode."""
    model = observation.model().train(observation.training.norm_mode == "train")
    for module in model.modules():
        if isinstance(module, _BatchNorm) and module.training:
            module.track_running_stats = False
    start = {name: value.detach().clone() for name, value in parameters_of(model).items()}
    target = difference(observation.received, observation.initial, start)
    images, labels = start_images(observation).requires_grad_(), known_labels(observation)
    optimizer = torch.optim.Adam([images], lr=0.1)
    rate = observation.learning_rate

    def leaves_at(point: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: value.detach().requires_grad_() for name, value in point.items()}

    def loss_at(point: dict[str, Tensor], inputs: Tensor, batch: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, point, (inputs,)), labels[batch])

    def step() -> None:
        optimizer.zero_grad()
        (0.01 * total_variation(images)).backward()
        points = [start]
        for batch in batches_of(observation):
            leaves = leaves_at(points[-1])
            gradients = torch.autograd.grad(loss_at(leaves, images[batch].detach(), batch), list(leaves.values()))
            pairs = zip(leaves.items(), gradients, strict=True)
            points.append({name: value.detach() - rate * gradient for (name, value), gradient in pairs})
        update = {name: (points[-1][name] - start[name]).requires_grad_() for name in start}
        cosine = inner(update, target) / (inner(update, update).sqrt() * inner(target, target).sqrt())
        cotangent = dict(zip(update, torch.autograd.grad(1 - cosine, list(update.values())), strict=True))
        for number, batch in reversed(list(enumerate(batches_of(observation)))):
            inputs = images[batch].detach().requires_grad_()
            leaves = leaves_at(points[number]) if number else points[number]
            _, along = torch.func.jvp(lambda point: loss_at(point, inputs, batch), (leaves,), (cotangent,))  # noqa: B023
            pulled = torch.autograd.grad(along, [inputs, *(leaves.values() if number else ())])
            images.grad[batch] -= rate * pulled[0]  # type: ignore[index]
            if number:
                pairs = zip(cotangent.items(), pulled[1:], strict=True)
                cotangent = {name: value - rate * gradient for (name, value), gradient in pairs}
        optimizer.step()

    return step


def start_images(observation: Observation) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn((observation.num_samples, *observation.image.shape), generator=generator)


def known_labels(observation: Observation) -> Tensor:
    assert observation.labels is not None
    return observation.labels


def write(path: Path, content: dict[str, Any]) -> None:
    head = {"date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), "versions": versions()}
    write_bytes(path, json.dumps({**head, **content}, indent=1).encode())


def alternating(functions: dict[str, Callable[[], object]], rounds: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """Each in turn, ``rounds`` times, so that a slow minute of the machine hits all alike."""
    for _ in range(rounds):
        yield from functions.items()
