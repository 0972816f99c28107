"""The one optimization loop: move dummy images until their replay explains the observed update.

Methods are values of `GradientMatching`; they differ by fields, not by subclasses. `Phases` chains them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from undelta.attacker.distances import Distance, cosine, mismatch
from undelta.attacker.labels import LabelSource, disclosed
from undelta.attacker.optimizers import Adam, Optimizer, Schedule, constant
from undelta.attacker.priors import Penalty, Prior
from undelta.attacker.reconstruction import Moment, Reconstruction, Status
from undelta.attacker.replays import Replay, ReplayPart
from undelta.attacker.weights import Uniform, WeightsPart
from undelta.errors import ConfigError
from undelta.observation import Observation
from undelta.seeding import stream
from undelta.updates import layers_of

RECORD_EVERY = 10  # iterations between two points of the history

Watch = Callable[[Moment, int], None]
"""Called with every point of the history and the number of iterations to come in all."""


class Attack(Protocol):
    """Any callable that reconstructs images from an observation alone."""

    def __call__(self, observation: Observation, *, seed: int = 0, watch: Watch | None = None) -> Reconstruction:
        """The reconstruction; equal seeds give equal results on one machine."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """Where a loop begins: dummy images in the model's input space, and their labels."""

    images: Tensor
    labels: Tensor


@dataclass(frozen=True, kw_only=True)
class GradientMatching:
    """Minimize Dist_Q(dummy update, target) + priors over the dummy images (AWA eq_weighted_loss)."""

    replay: ReplayPart
    distance: Distance = cosine
    weights: WeightsPart = Uniform()
    priors: tuple[Prior, ...] = ()
    labels: LabelSource = disclosed
    optimizer: Optimizer = Adam()
    schedule: Schedule = constant
    signed: bool = False
    """Step along the sign of the gradient only (Geiping et al. 2020)."""
    box: bool = True
    """Keep the images within the range of real pixels."""
    steps: int = 10_000
    restarts: int = 1
    """Independent tries; the one with the smallest mismatch of its own wins. No private image is involved."""

    def __post_init__(self) -> None:
        for key in ("steps", "restarts"):
            if getattr(self, key) < 1:
                raise ConfigError(f"expected {key} >= 1, got {key}={getattr(self, key)}")

    @property
    def total_steps(self) -> int:
        """Iterations over all restarts."""
        return self.steps * self.restarts

    def __call__(
        self,
        observation: Observation,
        *,
        seed: int = 0,
        start: Start | None = None,
        watch: Watch | None = None,
    ) -> Reconstruction:
        """Attack; a start given by an earlier phase takes the place of noise."""
        best: Reconstruction | None = None
        iterations, seconds = 0, 0.0
        for restart in range(self.restarts):
            loop = _Loop(self, observation, stream("attacker", seed, restart), start)
            result = loop.run(_counting(watch, restart * self.steps, self.total_steps))
            iterations, seconds = iterations + result.iterations, seconds + result.seconds
            if best is None or _rank(result) < _rank(best):
                best = result
            if result.status == "interrupted":
                best = replace(best, status="interrupted")
                break
        assert best is not None  # noqa: S101
        return replace(best, iterations=iterations, seconds=seconds)


@dataclass(frozen=True, kw_only=True)
class Phases:
    """Attacks in a row, each starting where the one before ended."""

    phases: tuple[GradientMatching, ...]

    @property
    def total_steps(self) -> int:
        """Iterations over all phases."""
        return sum(phase.total_steps for phase in self.phases)

    def __call__(self, observation: Observation, *, seed: int = 0, watch: Watch | None = None) -> Reconstruction:
        """Attack, phase by phase."""
        history: tuple[Moment, ...] = ()
        start: Start | None = None
        done, seconds = 0, 0.0
        for phase in self.phases:
            result = phase(observation, seed=seed, start=start, watch=_counting(watch, done, self.total_steps))
            history += tuple(
                moment._replace(iteration=moment.iteration + done, seconds=moment.seconds + seconds)
                for moment in result.history
            )
            done, seconds = done + result.iterations, seconds + result.seconds
            if result.status != "completed":
                break
            start = Start(images=observation.image.normalize(result.images), labels=result.labels)
        return replace(result, iterations=done, seconds=seconds, history=history)


class _Loop:
    """One run from one start."""

    def __init__(
        self,
        method: GradientMatching,
        observation: Observation,
        generator: torch.Generator,
        start: Start | None,
    ) -> None:
        self.method, self.observation = method, observation
        self.labels = start.labels if start else method.labels(observation, generator)
        self.replay: Replay = method.replay(observation, generator)
        self.penalties: list[Penalty] = [prior(observation, self.replay) for prior in method.priors]
        self.layers = layers_of(self.replay.network.model)
        device = next(iter(self.replay.target.values())).device
        shape = (observation.num_samples, *observation.image.shape)
        noise = torch.randn(shape, generator=generator, dtype=observation.dtype)
        self.images = (start.images if start else noise).to(device).clone()
        limits = torch.tensor([0.0, 1.0], dtype=observation.dtype, device=device).view(2, 1, 1, 1, 1)
        self.low, self.high = observation.image.normalize(limits.expand(2, 1, observation.image.shape[0], 1, 1))
        self.optimizer = method.optimizer([self.images])
        self.mismatch = math.inf
        self.loss = math.inf

    def run(self, watch: Watch | None) -> Reconstruction:
        """Iterate; keep the last finite images."""
        method, history = self.method, list[Moment]()
        status: Status = "completed"
        began, iteration = time.perf_counter(), 0
        kept = self.images.clone()
        try:
            while iteration < method.steps:
                rate = method.optimizer.learning_rate * method.schedule(iteration / method.steps)
                for group in self.optimizer.param_groups:
                    group["lr"] = rate
                record = iteration % RECORD_EVERY == 0
                self.optimizer.step(partial(self._closure, record))
                if not math.isfinite(self.loss) or not torch.isfinite(self.images).all():
                    status = "diverged"
                    break
                with torch.no_grad():
                    if method.box:
                        self.images.clamp_(self.low, self.high)
                    kept.copy_(self.images)
                if record:
                    moment = Moment(iteration, time.perf_counter() - began, self.mismatch, self.loss)
                    history.append(moment)
                    if watch:
                        watch(moment, method.steps)
                iteration += 1
        except KeyboardInterrupt:
            status = "interrupted"
        update, _ = self.replay(kept, self.labels)
        final = mismatch(update, self.replay.target)
        seconds = time.perf_counter() - began
        history.append(Moment(iteration, seconds, final, self.loss))
        pixels = self.observation.image.denormalize(kept)
        return Reconstruction(
            images=pixels.clamp(0, 1),
            labels=self.labels,
            mismatch=final,
            iterations=iteration,
            seconds=seconds,
            status=status,
            history=tuple(history),
        )

    def _closure(self, record: bool) -> float:
        """The loss at the current images; leaves its gradient on them."""
        target = self.replay.target
        update, pullback = self.replay(self.images, self.labels)
        by_layer = self.method.weights(self.layers, update, target)
        weights = {
            name: weight
            for layer, weight in zip(self.layers, by_layer.unbind(), strict=True)
            for name in layer.parameters
        }
        leaves = {name: value.detach().requires_grad_() for name, value in update.items()}
        with torch.enable_grad():
            distance = self.method.distance(leaves, target, weights)
            cotangent = dict(zip(leaves, torch.autograd.grad(distance, list(leaves.values())), strict=True))
        gradient = pullback(cotangent).images
        loss = distance.detach()
        if self.penalties:
            images = self.images.detach().requires_grad_()
            with torch.enable_grad():
                penalty = torch.stack([part(images, self.labels) for part in self.penalties]).sum()
            if penalty.requires_grad:
                gradient = gradient + torch.autograd.grad(penalty, images)[0]
            loss = loss + penalty.detach()
        self.images.grad = gradient.sign() if self.method.signed else gradient
        self.loss = float(loss)
        if record:
            self.mismatch = mismatch(update, target)
        return self.loss


def _rank(result: Reconstruction) -> tuple[bool, float]:
    return result.status == "diverged", result.mismatch


def _counting(watch: Watch | None, done: int, total: int) -> Watch | None:
    """The same watch, told of iterations as counted over all restarts and phases."""
    if watch is None:
        return None
    return lambda moment, _: watch(moment._replace(iteration=moment.iteration + done), total)
