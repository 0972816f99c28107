"""One attack in a process of its own, behind a fence: ``python -m undelta.attacker.alone``.

The process is told on its standard input which observation to attack and how, and writes what it found. The truth is in
another process's memory, and neither the code that could draw it again nor the pictures it was drawn from can be
reached: imports of the one and files of the other are refused. That keeps accidents out, not a determined cheat.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import math
import os
import resource
import signal
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch

from undelta.attacker.attacks import ATTACKS
from undelta.attacker.reconstruction import Reconstruction
from undelta.engine.devices import device_of
from undelta.engine.network import Network
from undelta.errors import ConfigError, MissingKnowledge, UndeltaError
from undelta.files import FORMAT, write_tensors
from undelta.observation import Observation
from undelta.observation.file import load_observation
from undelta.schema import call, find, parse

KIND = "found"
TRUTH = ("undelta.client", "undelta.evaluation", "undelta.trials", "undelta.studies", "undelta.report")
PICTURES = ("skimage/data", "sklearn/datasets")  # where the package's own photographs are
NOT_APPLICABLE, REFUSED = 4, 2  # how the process ends: the attack cannot be used here; something is wrong with it
STEPS, LEAST_SECONDS = 5, 0.2  # of the client's training, to know how long one takes


@dataclass(frozen=True, kw_only=True)
class Order:
    """What the process is told."""

    observation: str
    attack: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    out: str
    most_steps: float
    """Steps of the client's training: when as much time is over, the attack is interrupted."""
    threads: int = 1
    device: str = "cpu"


def raise_the_fence() -> None:
    """Refuse, from now on, what leads to the truth."""
    sys.meta_path.insert(0, _NoTruth())
    sys.addaudithook(_no_pictures)


class _NoTruth(importlib.abc.MetaPathFinder):
    """Finds the code that knows the truth, and refuses it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if f"{fullname}.".startswith(tuple(f"{name}." for name in TRUTH)):
            raise ImportError(f"{fullname} knows the truth, and is out of an attack's reach")
        return None


def _no_pictures(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse, as a hook of the interpreter, to open what the truth was drawn from."""
    if event == "open" and isinstance(arguments[0], str | bytes):
        path = os.path.abspath(os.fsdecode(arguments[0])).replace("\\", "/")  # noqa: PTH100
        if any(f"/{folder}/" in path for folder in PICTURES) and not path.endswith((".py", ".pyi", ".pyc", ".so")):
            raise PermissionError(f"{path} may hold the truth, and is out of an attack's reach")


def attack_alone(order: Order) -> Reconstruction:
    """Attack within the time that is left, and write down what was found."""
    torch.set_num_threads(order.threads)
    observation = load_observation(order.observation).to(device_of(order.device))
    attack = call(find("attack", order.attack, ATTACKS), order.arguments, where=order.attack, error=ConfigError)
    clock = _processor_time if observation.device.type == "cpu" else time.perf_counter
    step = _step_seconds(observation, clock)
    signal.signal(signal.SIGPROF, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_PROF, order.most_steps * step * order.threads)
    began = clock()
    found: Reconstruction = attack(observation, seed=order.seed)
    seconds = clock() - began
    signal.setitimer(signal.ITIMER_PROF, 0)
    step = min(step, _step_seconds(observation, clock))  # a noisy machine makes things slower, never faster
    write_tensors(
        order.out,
        {"images": found.images.detach().cpu().contiguous(), "labels": found.labels.detach().cpu().contiguous()},
        {
            "format": FORMAT,
            "kind": KIND,
            "mismatch": found.mismatch if math.isfinite(found.mismatch) else None,
            "iterations": found.iterations,
            "status": found.status,
            "seconds": seconds,
            "client_steps": seconds / step,
        },
    )
    return found


def _processor_time() -> float:
    """Processor seconds of this process, and of those that it has started and that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _step_seconds(observation: Observation, clock: Callable[[], float]) -> float:
    """How long the client takes for a training step on all of its images at once, one in each round that was seen."""
    network = Network(observation.model(), observation.training)
    start = {name: value.clone().requires_grad_() for name, value in network.start.items()}
    images = torch.rand((observation.num_samples, *observation.image.shape), dtype=observation.dtype)
    images = images.to(observation.device)
    labels = torch.arange(observation.num_samples, device=observation.device) % observation.image.classes
    times: list[float] = []
    while len(times) < STEPS or sum(times) < LEAST_SECONDS:
        began = clock()
        torch.autograd.grad(network.loss(start, images, labels), list(start.values()), allow_unused=True)
        times.append(clock() - began)
    return statistics.median(times) * len(observation.rounds)


def main() -> None:
    """Do what the standard input says."""
    order = parse(Order, json.load(sys.stdin), where="order", error=ConfigError)
    raise_the_fence()
    try:
        attack_alone(order)
    except UndeltaError as problem:
        sys.stderr.write(" ".join(str(problem).split()) + "\n")
        sys.exit(NOT_APPLICABLE if isinstance(problem, MissingKnowledge) else REFUSED)


if __name__ == "__main__":
    main()
