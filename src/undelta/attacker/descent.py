"""One descent: variables, one step of them, and their state for a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from undelta.attacker.canvas import Variables
from undelta.attacker.distances import mismatch
from undelta.attacker.labels import LabelSource, disclosed
from undelta.attacker.needs import check_room
from undelta.attacker.objective import Objective, Problem, encode
from undelta.attacker.optimizers import Adam, Optimizer, Schedule, constant
from undelta.attacker.reconstruction import Moment, Reconstruction, Status
from undelta.attacker.smoothing import blurred, width_at
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
    smoothing: float = 0.0
    """The width of a blur of the gradient at the start, as a share of the image's side; it falls to none."""
    fusion: Literal["mean", "median"] = "mean"
    """How the gradients of several rounds become one: their mean, or entry by entry their median (Li et al. 2023)."""
    noise: float = 0.0
    """Gaussian noise on the images after every step, relative to the step length (Yin et al. 2021)."""
    box: bool = True
    """Keep the images within the range of real pixels."""
    steps: int = 10_000

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ConfigError(f"expected steps >= 1, got steps={self.steps}")
        if not 0 <= self.smoothing < 1:
            raise ConfigError(f"expected 0 <= smoothing < 1, got smoothing={self.smoothing}")
        if self.fusion not in ("mean", "median"):
            raise ConfigError(f"expected fusion mean or median, got {self.fusion!r}")


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
        check_room(method, observation, memory)  # before the labels, too, take theirs
        self.method, self.observation, self.generator = method, observation, generator
        if labels is None:
            labels = start.labels if start else method.labels(observation, generator)
        labels = labels.to(observation.device)
        self.problem = Problem(method, observation, generator, memory=memory)
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
        self.learned = {name: value.clone() for name, value in self.problem.variables.items()}
        for name in self.learned.keys() & (start.learned if start else {}).keys():
            self.learned[name] = torch.as_tensor(start.learned[name]).to(self.learned[name])  # type: ignore[union-attr]
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
        rates = {name: self.problem.rates.get(name, self.method.path_rate) for name in self.learned}
        self.path_optimizers = [
            Adam(learning_rate=rate)([self.learned[name] for name in rates if rates[name] == rate])
            for rate in dict.fromkeys(rates.values())
        ]

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
        width = width_at(iteration, method.steps, method.smoothing, max(self.observation.image.shape[1:]))
        self.optimizer.step(partial(self._closure, record, width))
        for optimizer in self.path_optimizers:
            optimizer.step()
        with torch.no_grad():
            self.problem.project(self.learned)
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

    def _closure(self, record: bool, blur: float = 0.0) -> float:
        """The loss at the current variables; leaves gradients on them."""
        method, problem = self.method, self.problem
        leaves = {name: value.detach().requires_grad_() for name, value in self.variables.items()}
        with torch.enable_grad():
            images = method.canvas.images(leaves, self.observation)
            labels = self.soft_labels(leaves.get("labels"))
        parts: list[Tensor] = []  # numbers with the slopes of the loss; torch takes longer to start with cotangents
        losses, mismatches, slopes, share = [], [], list[Tensor](), 1 / len(problem.rounds)
        for number, (one, learned) in enumerate(problem.each(self.learned)):
            update, penalty_on_moments, pullback = one.replay(
                images.detach(), labels.detach(), learned, one.moment_prior
            )
            update = one.matched(update)
            distance, cotangent = one.distance(update)
            if record:
                mismatches.append(mismatch(update, one.replay.target))
            del update  # as large as the model, and so is what the way back needs
            pulled = pullback(one.matched(cotangent))
            ridge = one.replay.ridge(learned)
            losses.append(distance + penalty_on_moments + (0.0 if ridge is None else ridge))
            with torch.enable_grad():
                if method.fusion == "mean":
                    parts.append((images * (pulled.images * share)).sum())
                else:
                    slopes.append(pulled.images)
                if pulled.labels is not None:
                    parts.append((labels * (pulled.labels * share)).sum())
                terms = [penalty(images, labels) for penalty in one.penalties.values()]
                if self.pull:
                    terms.append(self.pull(images))
                terms = [term for term in terms if term.requires_grad]
                if terms:
                    penalty = torch.stack(terms).sum()
                    losses[-1] = losses[-1] + penalty.detach()
                    parts.append(penalty * share)
            for name, gradient in problem.gathered(number, pulled.variables).items():
                self.learned[name].grad = gradient
        moving = [name for name in leaves if not name.startswith("_")]
        with torch.enable_grad():
            if slopes:
                parts.append((images * torch.stack(slopes).quantile(0.5, dim=0)).sum())
            total = torch.stack(parts).sum()
        gradients = torch.autograd.grad(
            total, [leaves[name] for name in moving], allow_unused=True, materialize_grads=True
        )
        for name, gradient in zip(moving, gradients, strict=True):
            slope = blurred(gradient, blur) if name == "images" else gradient
            self.variables[name].grad = slope.sign() if method.signed else slope
        self.loss = float(torch.stack(losses).mean())
        if record:
            self.mismatch = sum(mismatches) / len(mismatches)
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
        first, *_ = self.problem.rounds
        weights = first.layer_weights(update).tolist()
        notes = (*self.problem.notes, *self.problem.doubts(images, labels, self.learned))
        images, classes = self._collapsed(images, labels)
        carried = {name: value.clone() for name, value in self.variables.items() if name != "images"}
        return Reconstruction(
            images=images,
            labels=classes,
            mismatch=value.mismatch,
            terms=value.terms,
            objective=encode(self.method),
            notes=notes,
            iterations=iteration,
            seconds=seconds,
            status=status,
            history=(*history, Moment(iteration, seconds, value.mismatch, value.loss)),
            learned={name: value.tolist() for name, value in self.learned.items() if value.numel() <= 64},
            layer_weights={layer.name: weight for layer, weight in zip(first.layers, weights, strict=True)},
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
            "path_optimizers": [optimizer.state_dict() for optimizer in self.path_optimizers],
            "generator": self.generator.get_state(),
            **{name: getattr(self, name) for name in KEPT},
        }

    def load(self, state: dict[str, Any]) -> None:
        self._restore(state["variables"])
        with torch.no_grad():
            for name, value in state["learned"].items():
                self.learned[name].copy_(value)
        self.optimizer.load_state_dict(state["optimizer"])
        for optimizer, saved in zip(self.path_optimizers, state["path_optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.generator.set_state(state["generator"])
        for name in KEPT:
            setattr(self, name, state[name])
