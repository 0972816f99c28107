"""Local training: what a client is told to do, and how its epochs are cut into mini-batches."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from undelta.errors import ConfigError

LossName: TypeAlias = Literal["cross_entropy", "l2"]
NormMode: TypeAlias = Literal["train", "eval"]
OptimizerName: TypeAlias = Literal["sgd", "adam", "adamw"]
ScheduleName: TypeAlias = Literal["constant", "linear", "cosine", "exponential"]

MOST_SAMPLES = 10**7  # of one client, and
MOST_STEPS = 10**7  # of its round: more are a mistake or a trap, and would be work for years


def check_samples(num_samples: int) -> None:
    """Refuse more samples than any client has, before anything is counted out."""
    if num_samples > MOST_SAMPLES:
        raise ConfigError(f"expected num_samples <= {MOST_SAMPLES:,}, got {num_samples=}")


class Cut(NamedTuple):
    """An epoch's mini-batches."""

    number: int
    size: int
    last: int


def l2(outputs: Tensor, labels: Tensor) -> Tensor:
    """Squared distance of the outputs to the one-hot (or soft) labels, averaged over the samples."""
    targets = F.one_hot(labels, outputs.shape[1]).to(outputs) if labels.dim() == 1 else labels
    return (outputs - targets).square().sum(1).mean()


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"cross_entropy": F.cross_entropy, "l2": l2}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a client trains, apart from E, B and η. The defaults are plain SGD on the images as they are."""

    loss: LossName = "cross_entropy"
    norm_mode: NormMode = "train"
    optimizer: OptimizerName = "sgd"
    """As in torch.optim; its state begins anew in every round."""
    momentum: float = 0.0
    """Of SGD."""
    nesterov: bool = False
    weight_decay: float = 0.0
    """Added to the gradient by sgd and adam, taken from the parameters themselves by adamw."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Of Adam."""
    adam_epsilon: float = 1e-8
    clip_norm: float | None = None
    """The norm to which a mini-batch's gradient is clipped."""
    proximal: float = 0.0
    """μ of FedProx: μ/2·|θ − θ₀|² is added to the loss (Li et al. 2020)."""
    schedule: ScheduleName = "constant"
    """How the learning rate falls within the round, to ``schedule_end`` times its first value."""
    schedule_end: float = 0.0
    schedule_by: Literal["step", "epoch"] = "step"
    """Whether the rate changes after every mini-batch or after every epoch."""
    batch_size: int | None = None
    """Images in a mini-batch, as a data loader cuts them; takes the place of ``batches``."""
    drop_last: bool = False
    """Whether the loader drops a last mini-batch that is not full."""
    label_smoothing: float = 0.0
    trained: tuple[str, ...] = ()
    """Modules or parameters by name that are trained and sent; the others are frozen. Empty: all."""
    flip: bool = False
    """Whether each image is mirrored or not, at random, in every epoch."""
    crop: int = 0
    """Pixels of black padding around each image, of which a random crop is taken in every epoch."""

    def __post_init__(self) -> None:
        _check_choice("loss", self.loss, tuple(LOSSES))
        _check_choice("norm_mode", self.norm_mode, ("train", "eval"))
        _check_choice("optimizer", self.optimizer, ("sgd", "adam", "adamw"))
        _check_choice("schedule", self.schedule, ("constant", "linear", "cosine", "exponential"))
        _check_choice("schedule_by", self.schedule_by, ("step", "epoch"))
        for key in ("weight_decay", "proximal", "crop"):
            _check(key, getattr(self, key), ">= 0", 0 <= getattr(self, key) < math.inf)
        for key in ("momentum", "label_smoothing"):
            _check(key, getattr(self, key), "in [0, 1)", 0 <= getattr(self, key) < 1)
        _check("betas", self.betas, "in [0, 1)", all(0 <= beta < 1 for beta in self.betas))
        _check("adam_epsilon", self.adam_epsilon, "> 0", 0 < self.adam_epsilon < math.inf)
        _check("clip_norm", self.clip_norm, "> 0", self.clip_norm is None or 0 < self.clip_norm < math.inf)
        _check("batch_size", self.batch_size, ">= 1", self.batch_size is None or self.batch_size >= 1)
        least = "in (0, 1]" if self.schedule == "exponential" else "in [0, 1]"
        falls = self.schedule_end > 0 or self.schedule != "exponential"
        _check("schedule_end", self.schedule_end, least, 0 <= self.schedule_end <= 1 and falls)
        if self.nesterov and not self.momentum:
            raise ConfigError("nesterov needs momentum > 0")
        if self.momentum and self.optimizer != "sgd":
            raise ConfigError(f"momentum is of sgd; {self.optimizer} has betas")
        if self.drop_last and self.batch_size is None:
            raise ConfigError("drop_last needs batch_size")
        if self.label_smoothing and self.loss != "cross_entropy":
            raise ConfigError(f"label_smoothing is of cross_entropy, but the loss is {self.loss!r}")

    @property
    def criterion(self) -> Callable[[Tensor, Tensor], Tensor]:
        """The mean loss of outputs and labels."""
        if self.label_smoothing:
            return partial(F.cross_entropy, label_smoothing=self.label_smoothing)
        return LOSSES[self.loss]

    @property
    def adaptive(self) -> bool:
        """Whether each entry's step is divided by the size of its own gradients, as Adam does."""
        return self.optimizer != "sgd"

    @property
    def plain(self) -> bool:
        """Whether each step is the mini-batch's gradient times the learning rate."""
        changes = (self.momentum, self.weight_decay, self.proximal)
        return not self.adaptive and not any(changes) and self.clip_norm is None

    @property
    def augments(self) -> bool:
        """Whether images change from epoch to epoch."""
        return self.flip or self.crop > 0


@dataclass(frozen=True, kw_only=True)
class LocalTraining(Recipe):
    """What the server assigns to a client for one round (AWA rem_attacker, items 4 and 6)."""

    epochs: int
    batches: int
    learning_rate: float

    def __post_init__(self) -> None:
        for key in ("epochs", "batches"):
            _check(key, getattr(self, key), ">= 1", getattr(self, key) >= 1)
        if self.epochs * self.batches > MOST_STEPS:
            raise ConfigError(f"expected epochs x batches <= {MOST_STEPS:,}, got {self.epochs} x {self.batches}")
        _check("learning_rate", self.learning_rate, "> 0", 0 < self.learning_rate < math.inf)
        super().__post_init__()

    def cut(self, num_samples: int) -> Cut:
        """How an epoch is cut into mini-batches: equal ones, the last one takes what is left, or is dropped.

        Mini-batches hold ceil(N/B) samples, as a data loader cuts them; where that would leave fewer
        than B mini-batches (N=9, B=4), they hold floor(N/B) and the last one is larger.
        """
        check_samples(num_samples)
        if self.batch_size is not None:
            full, left = divmod(num_samples, self.batch_size)
            if left and not self.drop_last:
                return Cut(full + 1, self.batch_size, left)
            if not full:
                raise ConfigError(f"{num_samples} samples do not fill one mini-batch of batch_size={self.batch_size}")
            return Cut(full, self.batch_size, self.batch_size)
        if num_samples < self.batches:
            raise ConfigError(
                f"{num_samples} samples cannot fill {self.batches} mini-batches; lower batches or raise num_samples"
            )
        size = -(-num_samples // self.batches)
        if size * (self.batches - 1) >= num_samples:
            size = num_samples // self.batches
        return Cut(self.batches, size, num_samples - size * (self.batches - 1))

    def sizes(self, num_samples: int) -> tuple[int, ...]:
        """The sizes of all mini-batches of an epoch, in order."""
        number, size, last = self.cut(num_samples)
        return (*[size] * (number - 1), last)

    @property
    def rates(self) -> tuple[float, ...]:
        """The learning rate of every step."""
        steps = self.epochs * self.batches
        if self.schedule == "constant":
            return (self.learning_rate,) * steps
        unit, count = (1, steps) if self.schedule_by == "step" else (self.batches, self.epochs)
        return tuple(self.learning_rate * self._share((index // unit) / count) for index in range(steps))

    def _share(self, done: float) -> float:
        """What is left of the rate when this share of the round is done."""
        end = self.schedule_end
        if self.schedule == "linear":
            return 1 + (end - 1) * done
        if self.schedule == "cosine":
            return end + (1 - end) * (1 + math.cos(math.pi * done)) / 2
        return float(end**done)


def spelled(recipe: Recipe) -> dict[str, Any]:
    """All fields as plain values, but for those of a recipe that are at their defaults: what identifies a training."""
    defaults = {field.name: field.default for field in fields(Recipe) if field.name not in ("loss", "norm_mode")}
    given = asdict(recipe).items()
    return {key: value for key, value in given if key not in defaults or value != defaults[key]}


def _check_choice(key: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"unknown {key} {value!r}; choose from {', '.join(choices)}")


def _check(key: str, value: object, bounds: str, good: bool) -> None:
    if not good:
        raise ConfigError(f"expected {key} {bounds}, got {key}={value}")
