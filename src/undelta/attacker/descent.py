"""One descent: variables, one step of them, and their state for a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from undelta.attacker.canvas import Variables
from undelta.attacker.distances import mismatch
from undelta.attacker.labels import LabelSource, disclosed
from undelta.attacker.objective import Objective, Problem, encode
from undelta.attacker.optimizers import Adam, Optimizer, Schedule, constant
from undelta.attacker.reconstruction import Moment, Reconstruction, Status
from undelta.engine import MEMORY
from undelta.errors import ConfigError
from undelta.observation import Observation

MOST_RECOVERIES = 10
KEPT = ("best", "previous", "recoveries", "loss", "mismatch", "sound_mismatch")  # in a checkpoint, as they are


@dataclass(frozen=True, kw_only=True)
class Method(Objective):
    """What is minimized, and how."""

    labels: LabelSource = disclosed
    optimizer: Optimizer = Adam()
    schedule: Schedule = constant
    path_rate: float = 1e-3
    """Adam's rate for what the replay itself learns."""
    signed: bool = False
    """Step along the sign of the gradient only (Geiping et al. 2020)."""
    noise: float = 0.0
    """Gaussian noise on the images after every step, relative to the step length (Yin et al. 2021)."""
    box: bool = True
    """Keep the images within the range of real pixels."""
    steps: int = 10_000

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ConfigError(f"expected steps >= 1, got steps={self.steps}")


class Descent:
    """A method at work from one start. What moves is in ``variables``; what the replay learns in ``learned``."""

    def __init__(
        self,
        method: Method,
        observation: Observation,
        generator: torch.Generator,
        start: Reconstruction | None = None,
        labels: Tensor | None = None,
        *,
        memory: int = MEMORY,
    ) -> None:
        self.method, self.observation, self.generator = method, observation, generator
        if labels is None:
            labels = start.labels if start else method.labels(observation, generator)
        labels = labels.to(observation.device)
        self.problem = Problem(method, observation, generator, memory=memory)
        self.replay = self.problem.replay
        canvas = method.canvas
        if start:
            images = observation.image.normalize(start.images)
            self.variables: Variables = canvas.carry(images, start.variables, observation)
        else:
            self.variables = canvas.start(observation, generator)
        self.variables = {name: value.detach().clone() for name, value in self.variables.items()}
        self.given_labels = labels
        # Soft labels are moved, too, as logits (DLG); class labels are data.
        labels = canvas.labels(labels, observation)
        self.classes = None if labels.is_floating_point() else labels
        if self.classes is None:
            self.variables["labels"] = labels.clone()
        self.learned = {name: value.clone() for name, value in self.replay.variables.items()}
        low_high = torch.tensor([0.0, 1.0], dtype=observation.dtype, device=observation.device)
        corners = low_high.view(2, 1, 1, 1).expand(2, observation.image.shape[0], 1, 1)
        self.low, self.high = observation.image.normalize(corners)
        self.pull: Callable[[Tensor], Tensor] | None = None  # one more penalty on the images, set from outside
        self.best: tuple[float, Variables] = (math.inf, {})
        self.previous: Variables = {}  # before the last step
        self.recoveries = 0
        self.loss = self.mismatch = self.sound_mismatch = math.inf
        self._fresh_optimizers()

    def _fresh_optimizers(self) -> None:
        moving = [value for name, value in self.variables.items() if not name.startswith("_")]
        self.optimizer = self.method.optimizer(moving)
        path = Adam(learning_rate=self.method.path_rate)
        self.path_optimizer = path(list(self.learned.values())) if self.learned else None

    @property
    def images(self) -> Tensor:
        return self.method.canvas.images(self.variables, self.observation)

    def soft_labels(self, logits_or_none: Tensor | None) -> Tensor:
        """The labels as the replay takes them."""
        if self.classes is not None:
            return self.classes
        assert logits_or_none is not None  # noqa: S101
        return logits_or_none.softmax(1)

    def step(self, iteration: int, *, record: bool) -> bool:
        """One iteration; False when the run has diverged for good."""
        method = self.method
        factor = method.schedule(iteration, method.steps) * 0.5**self.recoveries
        for group in self.optimizer.param_groups:
            group["lr"] = method.optimizer.learning_rate * factor
        self.previous = {name: value.clone() for name, value in self.variables.items()}
        self.optimizer.step(partial(self._closure, record))
        if self.path_optimizer:
            self.path_optimizer.step()
        with torch.no_grad():
            self.replay.project(self.learned)
            if method.noise and "images" in self.variables:
                self._add_noise(method.noise * method.optimizer.learning_rate * factor)
            if method.box and "images" in self.variables:
                self.variables["images"].clamp_(self.low, self.high)
        finite = math.isfinite(self.loss) and all(torch.isfinite(value).all() for value in self.variables.values())
        if not finite:
            self._restore(self.best[1] or self.previous)
            if not method.optimizer.recovers or self.recoveries >= MOST_RECOVERIES:
                return False
            self.recoveries += 1
            self.loss, self.mismatch = self.best[0], self.sound_mismatch
            self._fresh_optimizers()
        return True

    def _add_noise(self, scale: float) -> None:
        images = self.variables["images"]
        noise = torch.randn(images.shape, generator=self.generator, dtype=images.dtype)
        images.add_(noise.to(images.device), alpha=scale)

    def _restore(self, values: Variables) -> None:
        with torch.no_grad():
            for name, value in values.items():
                self.variables[name].copy_(value)

    def _closure(self, record: bool) -> float:
        """The loss at the current variables; leaves gradients on them."""
        method, problem = self.method, self.problem
        leaves = {name: value.detach().requires_grad_() for name, value in self.variables.items()}
        with torch.enable_grad():
            images = method.canvas.images(leaves, self.observation)
            labels = self.soft_labels(leaves.get("labels"))
        update, penalty_on_moments, pullback = self.replay(
            images.detach(), labels.detach(), self.learned, problem.moment_prior
        )
        update = problem.matched(update)
        distance, cotangent = problem.distance(update)
        pulled = pullback(problem.matched(cotangent))
        outputs, cotangents = [images], [pulled.images]
        if pulled.labels is not None:
            outputs.append(labels)
            cotangents.append(pulled.labels)
        loss = distance + penalty_on_moments
        with torch.enable_grad():
            terms = [penalty(images, labels) for penalty in problem.penalties.values()]
            if self.pull:
                terms.append(self.pull(images))
            terms = [term for term in terms if term.requires_grad]
            if terms:
                penalty = torch.stack(terms).sum()
                loss = loss + penalty.detach()
                outputs.append(penalty)
                cotangents.append(torch.ones_like(penalty))
        moving = [name for name in leaves if not name.startswith("_")]
        gradients = torch.autograd.grad(
            outputs, [leaves[name] for name in moving], cotangents, allow_unused=True, materialize_grads=True
        )
        for name, gradient in zip(moving, gradients, strict=True):
            self.variables[name].grad = gradient.sign() if method.signed else gradient
        for name, gradient in pulled.variables.items():
            self.learned[name].grad = gradient
        self.loss = float(loss)
        if record:
            self.mismatch = mismatch(update, self.replay.target)
            if math.isfinite(self.mismatch):
                self.sound_mismatch = self.mismatch
        if method.optimizer.recovers and self.loss < self.best[0]:
            self.best = (self.loss, {name: value.detach().clone() for name, value in self.variables.items()})
        return self.loss

    def result(self, status: Status, iteration: int, seconds: float, history: list[Moment]) -> Reconstruction:
        """The reconstruction at the current variables, or at those before if the last step led astray."""
        images, labels = self._data()
        value, update = self.problem.value(images, labels, self.learned)
        if not math.isfinite(value.mismatch):
            status = "diverged"
            self._restore(self.previous)
            images, labels = self._data()
            value, update = self.problem.value(images, labels, self.learned)
        weights = self.problem.layer_weights(update).tolist()
        images, classes = self._collapsed(images, labels)
        carried = {name: value.clone() for name, value in self.variables.items() if name != "images"}
        return Reconstruction(
            images=images,
            labels=classes,
            mismatch=value.mismatch,
            terms=value.terms,
            objective=encode(self.method),
            notes=self.problem.notes,
            iterations=iteration,
            seconds=seconds,
            status=status,
            history=(*history, Moment(iteration, seconds, value.mismatch, value.loss)),
            learned={name: value.tolist() for name, value in self.learned.items() if value.numel() <= 64},
            layer_weights={layer.name: weight for layer, weight in zip(self.problem.layers, weights, strict=True)},
            variables=carried,
        )

    def _collapsed(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """N pictures in [0, 1] and their classes, from all dummy images."""
        classes = labels.argmax(1) if labels.is_floating_point() else labels
        images, classes = self.method.canvas.collapse(images, classes, self.observation)
        return self.observation.image.denormalize(images).clamp(0, 1), classes

    def picture(self) -> Tensor:
        """The images as they are now, in eight bits, for whoever watches."""
        with torch.no_grad():
            images, _ = self._collapsed(self.images, self.soft_labels(self.variables.get("labels")))
            return (images * 255).round().to("cpu", torch.uint8)

    def _data(self) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            return self.images, self.soft_labels(self.variables.get("labels"))

    def state(self) -> dict[str, Any]:
        """All that a resumed run needs to continue bit for bit."""
        return {
            "variables": {name: value.detach().clone() for name, value in self.variables.items()},
            "learned": {name: value.detach().clone() for name, value in self.learned.items()},
            "optimizer": self.optimizer.state_dict(),
            "path_optimizer": self.path_optimizer.state_dict() if self.path_optimizer else {},
            "generator": self.generator.get_state(),
            **{name: getattr(self, name) for name in KEPT},
        }

    def load(self, state: dict[str, Any]) -> None:
        self._restore(state["variables"])
        with torch.no_grad():
            for name, value in state["learned"].items():
                self.learned[name].copy_(value)
        self.optimizer.load_state_dict(state["optimizer"])
        if self.path_optimizer:
            self.path_optimizer.load_state_dict(state["path_optimizer"])
        self.generator.set_state(state["generator"])
        for name in KEPT:
            setattr(self, name, state[name])
