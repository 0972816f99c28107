"""THE BOUNDARY: all that the server sees of one client, in one round or several, and nothing else.

An `Observation` holds the six items of the paper's remark rem_attacker, plus what a scenario grants on top
(labels as a sorted multiset). It has no field for private images; what fields are filled is the threat model.
Reading and writing files is `undelta.observation.file`.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from undelta.errors import ConfigError, MissingKnowledge, ObservationError
from undelta.models.sketch import sketched
from undelta.observation.checks import check_labels, check_names, check_tensor, kind
from undelta.observation.rounds import check_rounds
from undelta.observation.specs import MOST_PIXELS, Architecture, Builder, ImageSpec
from undelta.seeding import global_stream
from undelta.stepping import Response, response
from undelta.training import LocalTraining
from undelta.updates import State, freeze

Hyperparameter = Literal["batches", "epochs", "learning_rate"]

HYPERPARAMETERS: tuple[Hyperparameter, ...] = get_args(Hyperparameter)


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One client as an honest-but-curious server sees it, in one round or several (AWA rem_attacker).

    A simulation gets one from `disclose`. A federation of yours fills the fields itself, here for one layer:

    Examples:
        >>> import torch
        >>> spec = ImageSpec(shape=(1, 4, 4), mean=(0.5,), std=(0.25,), classes=3)
        >>> from undelta.models import build
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
    further: tuple[Observation, ...] = field(default=(), repr=False)
    """Other rounds of the same client on the same data, which attacks explain together (`together` makes these)."""

    def __post_init__(self) -> None:
        if self.num_samples < 1:
            raise ObservationError(f"expected num_samples >= 1, got num_samples={self.num_samples}")
        if self.num_samples * math.prod(self.image.shape) > MOST_PIXELS:
            raise ObservationError(f"{self.num_samples} images of shape {self.image.shape} are too many to be true")
        batches = self.training.cut(self.num_samples).number
        if batches != self.training.batches:
            raise ObservationError(
                f"{self.num_samples} samples at batch_size={self.training.batch_size} make {batches} mini-batches, "
                f"but batches={self.training.batches}; set batches to {batches}"
            )
        if self.labels is not None:
            check_labels(self.labels, self.num_samples, self.image.classes)
        for key in self.unknown:
            if getattr(self.training, key) != 1:
                raise ObservationError(f"{key} is said to be unknown, but {getattr(self.training, key)} is given")
        self._check_states()
        check_rounds(self)
        tensors = (tensor for one in self.rounds for state in (one.initial, one.received) for tensor in state.values())
        if any(tensor.device != self.device for tensor in tensors):
            self._move(self.device)

    @property
    def rounds(self) -> tuple[Observation, ...]:
        """All rounds that were seen of this client, each alone."""
        if not self.further:
            return (self,)
        first = copy.copy(self)
        object.__setattr__(first, "further", ())
        return (first, *self.further)

    def _move(self, device: torch.device) -> None:
        for side in ("initial", "received"):
            state = {name: _moved(tensor, device) for name, tensor in getattr(self, side).items()}
            object.__setattr__(self, side, state)
        object.__setattr__(self, "further", tuple(one.to(device) for one in self.further))

    def to(self, device: str | torch.device) -> Observation:
        """The same observation on another device, where attacks on it will run."""
        moved = copy.copy(self)
        moved._move(torch.device(device))
        return moved

    def _check_states(self) -> None:
        # A built-in model is sketched without memory first: the file's arguments are not trusted yet.
        with sketched() if self.builder is None else global_stream("rebuild"):
            sketch = self._build()
        freeze(sketch, self.training.trained)
        expected = sketch.state_dict()
        dtypes = set()
        for side, state in (("initial", self.initial), ("received", self.received)):
            # The server knows what it sent; what it received may be a part of it (layers or buffers withheld).
            check_names(side, set(expected) if side == "initial" else set(), set(expected), set(state))
            for name, tensor in state.items():
                check_tensor(f"{side} state, {name!r}", tensor, expected[name])
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

    def model(self, *, to_read: bool = False) -> nn.Module:
        """The model as the server sent it, rebuilt; ``to_read`` with the observation's own tensors, not copies."""
        # Built for real, not on meta: tied weights, buffers outside the state and plain tensors stay what they are.
        with global_stream("rebuild"):
            model = self._build()
        model.to(device=self.device, dtype=self.dtype)
        if to_read:
            for name, tensor in model.state_dict(keep_vars=True).items():
                if name in self.initial:
                    tensor.data = self.initial[name]
        else:
            model.load_state_dict(self.initial)
        freeze(model, self.training.trained)
        return model

    @property
    def epochs(self) -> int:
        """E, or MissingKnowledge."""
        self._require("epochs")
        return self.training.epochs

    @property
    def batches(self) -> int:
        """B, or MissingKnowledge."""
        self._require("batches")
        return self.training.batches

    @property
    def learning_rate(self) -> float:
        """η, or MissingKnowledge."""
        self._require("learning_rate")
        return self.training.learning_rate

    @property
    def rates(self) -> tuple[float, ...]:
        """The learning rate of every step, or MissingKnowledge."""
        self._require(*HYPERPARAMETERS)
        return self.training.rates

    def _require(self, *keys: Hyperparameter) -> None:
        for key in keys:
            if key in self.unknown:
                raise MissingKnowledge(
                    f"this attack needs the client's {key}, which the observation does not reveal. Use one that does "
                    "not (strongest, sme, ig), or state your guess of it."
                )

    @property
    def path_length(self) -> float:
        """What the client's gradients were multiplied by, all steps together: η·E·B for plain SGD at a constant rate.

        MissingKnowledge where steps do not grow with the gradients.
        """
        training = self.training
        if training.adaptive or training.clip_norm is not None:
            what = (
                f"{training.optimizer} divides gradients by their own size" if training.adaptive else "they are clipped"
            )
            raise MissingKnowledge(
                f"this attack reads the gradients' length off the update, but {what}. Use one that replays the "
                "client's steps or matches directions (strongest, awa, ig), and grant labels or use labels = yin."
            )
        return self.reach

    @property
    def reach(self) -> float:
        """The same as if nothing were clipped; for Adam, the sum of the learning rates."""
        self._require(*HYPERPARAMETERS)
        training = self.training
        if training.plain and training.schedule == "constant":
            return training.learning_rate * training.epochs * training.batches
        return self.response.length

    @property
    def response(self) -> Response:
        """What becomes of the gradients of the client's round, or MissingKnowledge without E, B or η."""
        self._require(*HYPERPARAMETERS)
        return response(self.training)

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
