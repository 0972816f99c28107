"""Optimizers of dummy data and their step-length schedules."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from undelta.errors import ConfigError

Schedule: TypeAlias = Callable[[int, int], float]
"""(iteration, iterations in all) -> factor of the learning rate."""

WARM_UP = 50  # iterations (Yin et al. 2021)


def constant(iteration: int, steps: int) -> float:
    """No decay."""
    return 1.0


def three_step(iteration: int, steps: int) -> float:
    """×0.1 at 3/8, 5/8 and 7/8 of the iterations (Geiping et al. 2020)."""
    return 0.1 ** sum(iteration >= mark * steps for mark in (3 / 8, 5 / 8, 7 / 8))


def cosine_decay(iteration: int, steps: int) -> float:
    """Half a cosine from 1 to 0."""
    return 0.5 * (1 + math.cos(math.pi * iteration / steps))


def warm_up_cosine(iteration: int, steps: int) -> float:
    """A linear rise over the first 50 iterations (at most a tenth of all), then half a cosine (Yin et al. 2021)."""
    rise = max(1, min(WARM_UP, steps // 10))
    if iteration < rise:
        return (iteration + 1) / rise
    return cosine_decay(iteration - rise, max(1, steps - rise))


class Stepper(Protocol):
    """What moves the variables along their gradients: a torch optimizer, or whatever is used like one."""

    param_groups: list[dict[str, Any]]

    def step(self, closure: Callable[[], float]) -> Any:
        """One step; the closure leaves gradients on the variables and returns the loss."""

    def zero_grad(self) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


class Optimizer(Protocol):
    """Any callable that makes a stepper for the variables, with a base learning rate."""

    @property
    def learning_rate(self) -> float:
        """The rate that schedules scale."""

    @property
    def recovers(self) -> bool:
        """Whether a step into NaN is answered by a fresh optimizer at the best point so far."""

    def __call__(self, variables: list[Tensor]) -> Stepper:
        """A fresh stepper."""


@dataclass(frozen=True, kw_only=True)
class _Rate:
    learning_rate: float = 0.1
    recovers = False

    def __post_init__(self) -> None:
        if not 0 < self.learning_rate < math.inf:
            raise ConfigError(f"expected learning_rate > 0, got learning_rate={self.learning_rate}")


BETAS, EPSILON = (0.9, 0.999), 1e-8  # of Adam, as in torch


class AdamSteps:
    """Adam's steps, equal to torch's own bit for bit on a CPU.

    Those would do, but the first torch.optim.Adam of a process imports torch's compiler, which takes two seconds: most
    of the time of a small trial.
    """

    def __init__(self, variables: list[Tensor], rate: float, weight_decay: float = 0.0) -> None:
        self.param_groups: list[dict[str, Any]] = [{"params": variables, "lr": rate}]
        self.weight_decay, self.taken = weight_decay, 0
        self.means, self.squares = ([torch.zeros_like(value) for value in variables] for _ in BETAS)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.taken += 1
        (group,) = self.param_groups
        rate, (first, second) = group["lr"], BETAS
        for value, mean, square in zip(group["params"], self.means, self.squares, strict=True):
            if value.grad is None:
                continue
            if self.weight_decay:
                value.mul_(1 - rate * self.weight_decay)
            mean.lerp_(value.grad, 1 - first)
            square.mul_(second).addcmul_(value.grad, value.grad, value=1 - second)
            divisor = (square.sqrt() / (1 - second**self.taken) ** 0.5).add_(EPSILON)
            value.addcdiv_(mean, divisor, value=-rate / (1 - first**self.taken))
        return loss

    def zero_grad(self) -> None:
        for value in self.param_groups[0]["params"]:
            value.grad = None

    def state_dict(self) -> dict[str, Any]:
        return {"taken": self.taken, "means": [*self.means], "squares": [*self.squares]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.taken = int(state_dict["taken"])
        for own, saved in ((self.means, state_dict["means"]), (self.squares, state_dict["squares"])):
            for tensor, value in zip(own, saved, strict=True):
                tensor.copy_(value)


@dataclass(frozen=True, kw_only=True)
class Adam(_Rate):
    """Adam (Kingma and Ba 2014); the paper's choice, at 0.1."""

    def __call__(self, variables: list[Tensor]) -> AdamSteps:
        return AdamSteps(variables, self.learning_rate)


@dataclass(frozen=True, kw_only=True)
class AdamW(_Rate):
    """Adam with decoupled weight decay, which pulls images to the mean color."""

    weight_decay: float = 0.01

    def __call__(self, variables: list[Tensor]) -> AdamSteps:
        return AdamSteps(variables, self.learning_rate, self.weight_decay)


class LookAheadSteps(AdamSteps):
    """Adam along a mixture of the gradient here and that one step further on."""

    def __init__(self, variables: list[Tensor], rate: float, ahead: float) -> None:
        super().__init__(variables, rate)
        self.ahead = ahead

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Two evaluations and, in Adam's memory, two steps; only the second one is kept.

        What is recorded of a run is the second evaluation, a step ahead.
        """
        if closure is None:
            raise ConfigError("a step that looks ahead needs the loss at another place")
        variables = self.param_groups[0]["params"]
        here = [value.clone() for value in variables]
        loss = super().step(closure)
        slopes = [value.grad for value in variables]
        with torch.enable_grad():
            closure()
        for value, place, slope in zip(variables, here, slopes, strict=True):
            value.copy_(place)
            if slope is not None:
                value.grad = slope.lerp(value.grad, self.ahead)
        super().step()
        return loss


@dataclass(frozen=True, kw_only=True)
class LookAheadAdam(_Rate):
    """Adam that penalizes steep places: its gradient has a share of the one a step ahead (Fan et al. 2025)."""

    ahead: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.ahead <= 1:
            raise ConfigError(f"expected 0 <= ahead <= 1, got ahead={self.ahead}")

    def __call__(self, variables: list[Tensor]) -> LookAheadSteps:
        return LookAheadSteps(variables, self.learning_rate, self.ahead)


@dataclass(frozen=True, kw_only=True)
class SGD(_Rate):
    """Gradient descent, with momentum if asked for."""

    momentum: float = 0.0

    def __call__(self, variables: list[Tensor]) -> Stepper:
        return torch.optim.SGD(variables, lr=self.learning_rate, momentum=self.momentum)


@dataclass(frozen=True, kw_only=True)
class LBFGS(_Rate):
    """L-BFGS (Liu and Nocedal 1989) with a strong Wolfe line search; one iteration is up to ``inner`` directions.

    DLG's own code has no line search; without one, some starts get stuck. A step into NaN is still possible; the run
    then starts afresh from its best point with half the rate.
    """

    learning_rate: float = 1.0
    inner: int = 20
    memory: int = 100
    recovers = True

    def __call__(self, variables: list[Tensor]) -> Stepper:
        return torch.optim.LBFGS(
            variables,
            lr=self.learning_rate,
            max_iter=self.inner,
            history_size=self.memory,
            tolerance_change=0.0,
            line_search_fn="strong_wolfe",
        )
