"""THE BOUNDARY: all that the server sees of one client's round, and nothing else.

An `Observation` holds the six items of the paper's remark rem_attacker, plus what a scenario grants on top
(labels as a sorted multiset). It has no field for private images; what fields are filled is the threat model.
Reading and writing files is `undelta.observation.file`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from undelta.errors import ConfigError, MissingKnowledge, ObservationError
from undelta.models import build
from undelta.seeding import global_stream
from undelta.training import LocalTraining
from undelta.updates import State

Hyperparameter = Literal["epochs", "learning_rate"]

Builder = Callable[..., nn.Module]
"""Any function that makes a model; it is called with the architecture's arguments."""

FLOATS = (torch.float32, torch.float64)
MOST_PIXELS = 2**31  # of one client's images together; more is a mistake or a trap, not a client


@dataclass(frozen=True, kw_only=True)
class ImageSpec:
    """What the model's inputs look like: public, since the server chose the model."""

    shape: tuple[int, int, int]  # (C, H, W)
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: int

    def __post_init__(self) -> None:
        if min(self.shape) < 1 or self.classes < 1:
            raise ObservationError(f"expected a positive shape and classes, got {self.shape}, {self.classes}")
        if len(self.mean) != self.shape[0] or len(self.std) != self.shape[0]:
            raise ObservationError(
                f"expected a mean and a std for each of {self.shape[0]} channels, "
                f"got {len(self.mean)} and {len(self.std)}"
            )
        if not all(map(math.isfinite, (*self.mean, *self.std))) or min(self.std) <= 0:
            raise ObservationError(f"expected finite means and positive stds, got {self.mean}, {self.std}")

    def normalize(self, pixels: Tensor) -> Tensor:
        """Pixels in [0, 1] to model inputs."""
        return (pixels - _channels(self.mean, pixels)) / _channels(self.std, pixels)

    def denormalize(self, inputs: Tensor) -> Tensor:
        """Model inputs to pixels."""
        return inputs * _channels(self.std, inputs) + _channels(self.mean, inputs)


def _channels(values: tuple[float, ...], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device).view(-1, 1, 1)


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """How to rebuild the model: a built-in name, or ``package.module:function``, with its arguments."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def custom(self) -> bool:
        """Whether rebuilding it means importing somebody's code."""
        return ":" in self.name

    def build(self, builder: Builder | None, *, shape: tuple[int, int, int], classes: int) -> nn.Module:
        """A model with fresh weights, by its builder if it is custom."""
        if builder is None:
            return build(self.name, self.arguments, shape=shape, classes=classes)
        try:
            return builder(**self.arguments)
        except TypeError as problem:
            raise ConfigError(f"the model {self.name!r} refuses its arguments: {problem}") from problem


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One client's round as an honest-but-curious server sees it (AWA rem_attacker).

    A simulation gets one from `disclose`. A federation of yours fills the fields itself, here for one layer:

    Examples:
        >>> import torch
        >>> spec = ImageSpec(shape=(1, 4, 4), mean=(0.5,), std=(0.25,), classes=3)
        >>> model = build("mlp", {"hidden": []}, shape=spec.shape, classes=spec.classes)
        >>> sent = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        >>> received = {name: tensor + 0.01 for name, tensor in sent.items()}  # what the client returned
        >>> observation = Observation(
        ...     architecture=Architecture(name="mlp", arguments={"hidden": []}),
        ...     initial=sent,
        ...     received=received,
        ...     training=LocalTraining(epochs=1, batches=1, learning_rate=0.1),
        ...     num_samples=2,
        ...     image=spec,
        ... )
        >>> print(observation.labels)  # none were granted
        None
    """

    architecture: Architecture
    initial: State = field(repr=False)
    received: State = field(repr=False)
    training: LocalTraining
    num_samples: int
    image: ImageSpec
    labels: Tensor | None = None
    unknown: tuple[Hyperparameter, ...] = ()
    """Hyperparameters that the server does not know; ``training`` holds a 1 in their place."""
    builder: Builder | None = field(default=None, compare=False)
    """Makes a custom model; never read from a file, always named by the user."""

    def __post_init__(self) -> None:
        if self.num_samples < 1:
            raise ObservationError(f"expected num_samples >= 1, got num_samples={self.num_samples}")
        if self.num_samples * math.prod(self.image.shape) > MOST_PIXELS:
            raise ObservationError(f"{self.num_samples} images of shape {self.image.shape} are too many to be true")
        self.training.sizes(self.num_samples)
        if self.labels is not None:
            _check_labels(self.labels, self.num_samples, self.image.classes)
        for key in self.unknown:
            if getattr(self.training, key) != 1:
                raise ObservationError(f"{key} is said to be unknown, but {getattr(self.training, key)} is given")
        self._check_states()
        if any(tensor.device != self.device for tensor in (*self.initial.values(), *self.received.values())):
            self._move(self.device)

    def _move(self, device: torch.device) -> None:
        for side in ("initial", "received"):
            state = {name: _moved(tensor, device) for name, tensor in getattr(self, side).items()}
            object.__setattr__(self, side, state)

    def to(self, device: str | torch.device) -> Observation:
        """The same observation on another device, where attacks on it will run."""
        moved = copy.copy(self)
        moved._move(torch.device(device))
        return moved

    def _check_states(self) -> None:
        # A built-in model is sketched without memory first: the file's arguments are not trusted yet.
        with torch.device("meta") if self.builder is None else global_stream("rebuild"):
            expected = self._build().state_dict()
        dtypes = set()
        for side, state in (("initial", self.initial), ("received", self.received)):
            # The server knows what it sent; what it received may be a part of it (layers or buffers withheld).
            _check_names(side, set(expected) if side == "initial" else set(), set(expected), set(state))
            for name, tensor in state.items():
                _check_tensor(f"{side} state, {name!r}", tensor, expected[name])
                if tensor.is_floating_point():
                    dtypes.add(tensor.dtype)
        if len(dtypes) != 1:
            found = ", ".join(sorted(map(kind, dtypes)))
            raise ObservationError(f"expected all of float32 or all of float64, got {found or 'no parameters'}")

    def _build(self) -> nn.Module:
        if self.builder is None and self.architecture.custom:
            raise ObservationError(
                f"the model {self.architecture.name!r} is somebody's code, which is never imported because a file "
                f"says so. If you trust it, name it yourself: --model {self.architecture.name}"
            )
        try:
            return self.architecture.build(self.builder, shape=self.image.shape, classes=self.image.classes)
        except ConfigError as problem:
            raise ObservationError(str(problem)) from problem

    def model(self) -> nn.Module:
        """The model as the server sent it, rebuilt."""
        # Built for real, not on meta: tied weights, buffers outside the state and plain tensors stay what they are.
        with global_stream("rebuild"):
            model = self._build()
        model.to(device=self.device, dtype=self.dtype)
        model.load_state_dict(self.initial)
        return model

    @property
    def epochs(self) -> int:
        """E, or MissingKnowledge."""
        self._require("epochs")
        return self.training.epochs

    @property
    def learning_rate(self) -> float:
        """η, or MissingKnowledge."""
        self._require("learning_rate")
        return self.training.learning_rate

    def _require(self, key: Hyperparameter) -> None:
        if key in self.unknown:
            raise MissingKnowledge(
                f"this attack needs the client's {key}, which the observation does not reveal. Use one that only "
                "matches directions (sme, ig, the first phase of strongest), or state your guess of it."
            )

    @property
    def path_length(self) -> float:
        """η·E·B, the learning rates of all of the client's steps together."""
        return self.learning_rate * self.epochs * self.training.batches

    @property
    def device(self) -> torch.device:
        return next(iter(self.initial.values())).device

    @property
    def dtype(self) -> torch.dtype:
        return next(tensor.dtype for tensor in self.initial.values() if tensor.is_floating_point())


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def _check_labels(labels: Tensor, num_samples: int, classes: int) -> None:
    if labels.dtype != torch.int64 or labels.shape != (num_samples,):
        raise ObservationError(
            f"labels: expected {num_samples} int64 values, got {labels.dtype} of shape {tuple(labels.shape)}"
        )
    if labels.min() < 0 or labels.max() >= classes:
        raise ObservationError(f"labels: expected classes 0 to {classes - 1}, got {labels.min()} to {labels.max()}")
    if (labels.diff() < 0).any():
        raise ObservationError("labels: expected a sorted multiset; their order would reveal the client's")


def _check_names(side: str, needed: set[str], known: set[str], found: set[str]) -> None:
    if not found:
        raise ObservationError(f"the {side} state is empty")
    for problem, names in (("lacks", needed - found), ("has the unknown entry", found - known)):
        if names:
            raise ObservationError(f"the {side} state {problem} {some(names)}; is it the state of another model?")


def some(names: Iterable[str]) -> str:
    """The first of several names, and how many more there are."""
    first, *more = sorted(names)
    return f"{first!r}{f' and {len(more)} more' if more else ''}"


def kind(dtype: torch.dtype) -> str:
    """A type as people write it, such as float32."""
    return str(dtype).removeprefix("torch.")


def _check_tensor(where: str, tensor: Tensor, expected: Tensor) -> None:
    if tensor.shape != expected.shape:
        raise ObservationError(f"{where}: expected shape {tuple(expected.shape)}, got {tuple(tensor.shape)}")
    allowed = FLOATS if expected.is_floating_point() else (expected.dtype,)
    if tensor.dtype not in allowed:
        raise ObservationError(f"{where}: expected {' or '.join(map(kind, allowed))}, got {kind(tensor.dtype)}")
    if not torch.isfinite(tensor).all():
        bad = int((~torch.isfinite(tensor)).sum())
        raise ObservationError(f"{where}: {bad} of {tensor.numel()} values are NaN or infinite")
