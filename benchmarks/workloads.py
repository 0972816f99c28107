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
from undelta.attacker.priors import batch_norm_targets, total_variation
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

    @property
    def name(self) -> str:
        norm = "" if self.model == "cnn" else f", BatchNorm {self.norm_mode}"
        return f"{self.model} {self.side} px, N={self.samples}, B={self.batches}{norm}"


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
        model_arguments={"width": work.width},
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
    """One iteration as it is usually written: unrolled steps with ``create_graph``, cosine, the same priors, Adam."""
    model = observation.model().train(observation.training.norm_mode == "train")
    for module in model.modules():
        if isinstance(module, _BatchNorm) and module.training:
            module.track_running_stats = False
    start = {name: value.clone().requires_grad_() for name, value in parameters_of(model).items()}
    target = difference(observation.received, observation.initial, start)
    targets = batch_norm_targets(observation, "server")
    images, labels = start_images(observation).requires_grad_(), known_labels(observation)
    optimizer = torch.optim.Adam([images], lr=0.1)
    seen: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            module.register_forward_pre_hook(lambda module, inputs, name=name: seen.update({name: inputs[0]}))

    def step() -> None:
        optimizer.zero_grad()
        point, penalty = dict(start), 0.01 * total_variation(images)
        for batch in batches_of(observation):
            loss = F.cross_entropy(functional_call(model, point, (images[batch],)), labels[batch])
            for name, (mean, variance) in targets.items():
                now = torch.var_mean(seen[name], [0, 2, 3])
                part = (mean - now[1]).norm() + (variance - now[0]).norm()
                penalty = penalty + 0.001 * part / observation.training.batches
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
