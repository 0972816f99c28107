"""What an attack minimizes, apart from how: so that evaluation can ask for its value at the truth.

`Problem` prepares a method's replay, distance, weights and priors for one observation. `encode` writes these parts down
as plain values and `decode` restores them, so that a reconstruction can say what it is the minimum of.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from undelta.attacker import canvas as canvases
from undelta.attacker import distances, paths, priors, replays, span, weights
from undelta.attacker.canvas import Canvas, Pixels
from undelta.attacker.distances import Distance, mismatch, with_cotangent
from undelta.attacker.needs import check_room
from undelta.attacker.priors import Off, OnMoments, Prior
from undelta.attacker.pruned import sent_entries
from undelta.attacker.replay import NOTHING, Replay, ReplayPart, prepare
from undelta.attacker.weights import Uniform, WeightsPart
from undelta.engine import MEMORY, Moments
from undelta.errors import ConfigError
from undelta.observation import Observation
from undelta.updates import Update, layers_of, layers_within

ODD, ODD_LEAST = 5.0, 0.05  # times another round's mismatch, and more than it by this: not the same images

log = logging.getLogger("undelta")


@dataclass(frozen=True, kw_only=True)
class Objective:
    """The fields of a method that its loss depends on."""

    replay: ReplayPart
    distance: Distance = distances.cosine
    weights: WeightsPart = Uniform()
    priors: tuple[Prior, ...] = ()
    canvas: Canvas = Pixels()
    masked: bool = False
    """Leave entries that look pruned out of the match (see `pruned`)."""


class Value(NamedTuple):
    """An objective's value somewhere: the unweighted mismatch, and the terms that sum to the loss."""

    mismatch: float
    terms: dict[str, float]

    @property
    def loss(self) -> float:
        return sum(self.terms.values())


class Round:
    """An objective prepared for one round of a client."""

    def __init__(
        self, parts: Objective, observation: Observation, generator: torch.Generator, *, memory: int = MEMORY
    ) -> None:
        self.parts = parts
        self.replay: Replay = prepare(parts.replay, observation, generator, memory)
        prepared = [(_name(prior), prior(observation, self.replay)) for prior in parts.priors]
        self.notes = tuple(penalty.note for _, penalty in prepared if isinstance(penalty, Off))
        self.penalties = {
            name: penalty for name, penalty in prepared if penalty and not isinstance(penalty, OnMoments | Off)
        }
        self._on_moments = {name: prior.penalty for name, prior in prepared if isinstance(prior, OnMoments)}
        self.layers = layers_within(layers_of(self.replay.network.model), self.replay.target)
        masked = parts.masked and not observation.training.adaptive  # Adam's steps are alike in size, as if cut
        self._sent = sent_entries(self.replay.target) if masked else None

    @property
    def moment_prior(self) -> Callable[[Mapping[str, Moments]], Tensor] | None:
        """The sum of the priors on what BatchNorms see; None without one."""
        if not self._on_moments:
            return None
        return lambda moments: torch.stack([prior(moments) for prior in self._on_moments.values()]).sum()

    def matched(self, update: Update) -> Update:
        """The update without the entries that the client did not send, or a cotangent of it likewise."""
        return update if self._sent is None else {name: value * self._sent[name] for name, value in update.items()}

    def layer_weights(self, update: Update) -> Tensor:
        """The layers' weights for this dummy update, (L,)."""
        return self.parts.weights(self.layers, update, self.replay.target)

    def distance(self, update: Update) -> tuple[Tensor, Update]:
        """The weighted distance and its cotangent; weights follow the dummy update."""
        by_parameter = {
            name: weight
            for layer, weight in zip(self.layers, self.layer_weights(update).unbind(), strict=True)
            for name in layer.parameters
        }
        return with_cotangent(self.parts.distance, update, self.replay.target, by_parameter)

    def value(self, images: Tensor, labels: Tensor, learned: Mapping[str, Tensor] = NOTHING) -> tuple[Value, Update]:
        """The objective at these dummy data, and the dummy update behind it."""
        update, on_moments, _ = self.replay(images, labels, learned, self.moment_prior)
        update = self.matched(update)
        terms = {"distance": float(self.distance(update)[0])}
        terms |= {name: float(penalty(images, labels)) for name, penalty in self.penalties.items()}
        if self._on_moments:
            terms[" and ".join(self._on_moments)] = float(on_moments)
        if (ridge := self.replay.ridge(learned)) is not None:
            terms["path"] = float(ridge)
        return Value(mismatch(update, self.replay.target), terms), update


class Problem:
    """An objective prepared for an observation; of several rounds of one client, the mean over them.

    One set of images is to explain all of the rounds' updates. Each counts by its own distance; the cosine is bounded,
    so a round that was spoiled cannot outweigh the others.
    """

    def __init__(
        self, parts: Objective, observation: Observation, generator: torch.Generator, *, memory: int = MEMORY
    ) -> None:
        check_room(parts, observation, memory)
        self.parts, self.observation = parts, observation
        self.rounds = tuple(Round(parts, one, generator, memory=memory) for one in observation.rounds)
        self.notes = tuple(dict.fromkeys(note for one in self.rounds for note in one.notes))
        for note in self.notes:
            _log_once(note)

    @property
    def variables(self) -> dict[str, Tensor]:
        """What the rounds' replays learn, at its start."""
        return {
            name + _of_round(number): value
            for number, one in enumerate(self.rounds)
            for name, value in one.replay.variables.items()
        }

    @property
    def rates(self) -> dict[str, float]:
        """Adam's for some of these variables."""
        return {
            name + _of_round(number): rate
            for number, one in enumerate(self.rounds)
            for name, rate in one.replay.rates.items()
        }

    def each(self, learned: Mapping[str, Tensor]) -> Iterator[tuple[Round, dict[str, Tensor]]]:
        """Every round with its own part of what was learned."""
        for number, one in enumerate(self.rounds):
            yield one, {name: learned[name + _of_round(number)] for name in one.replay.variables if learned}

    def project(self, learned: Mapping[str, Tensor]) -> None:
        """Move learned variables back, in place, to where they make sense."""
        for one, own in self.each(learned):
            one.replay.project(own)

    def gathered(self, number: int, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Gradients of one round's variables under the names that they have here."""
        return {name + _of_round(number): value for name, value in gradients.items()}

    def at(self, pictures: Tensor, labels: Tensor, learned: Mapping[str, Any] | None = None) -> Value:
        """The objective at N pictures in [0, 1] and their classes."""
        return self.pictured(pictures, labels, learned)[0]

    def pictured(
        self, pictures: Tensor, labels: Tensor, learned: Mapping[str, Any] | None = None
    ) -> tuple[Value, Update]:
        """The same with the dummy update behind it, on the objective's own canvas.

        Args:
            pictures: One for each private image.
            labels: Their classes.
            learned: What the replay learned, as a reconstruction tells it; its start where that is silent.
        """
        observation, canvas = self.observation, self.parts.canvas
        images = observation.image.normalize(pictures.to(observation.device, observation.dtype))
        images = canvas.images(canvas.carry(images, {}, observation), observation)
        known = {
            name: torch.as_tensor((learned or {}).get(name, value.tolist())).to(value).view_as(value)
            for name, value in self.variables.items()
        }
        return self.value(images, canvas.labels(labels.to(observation.device), observation), known)

    def value(self, images: Tensor, labels: Tensor, learned: Mapping[str, Tensor] = NOTHING) -> tuple[Value, Update]:
        """The objective at these dummy data, and the first round's dummy update behind it."""
        values = [one.value(images, labels, own) for one, own in self.each(learned)]
        return _mean([value for value, _ in values]), values[0][1]

    def doubts(self, images: Tensor, labels: Tensor, learned: Mapping[str, Tensor] = NOTHING) -> tuple[str, ...]:
        """Rounds whose update these images do not explain, though they explain the others'."""
        if len(self.rounds) == 1:
            return ()
        found = [one.value(images, labels, own)[0].mismatch for one, own in self.each(learned)]
        least = min(found)
        return tuple(
            f"round {number} is explained far worse than another ({value:.2g}, {least:.2g}): the client's data "
            "may have changed between them; attack it alone"
            for number, value in enumerate(found, start=1)
            if value > ODD * least and value > least + ODD_LEAST
        )


def _mean(values: Sequence[Value]) -> Value:
    names = dict.fromkeys(name for value in values for name in value.terms)
    terms = {name: sum(value.terms.get(name, 0.0) for value in values) / len(values) for name in names}
    return Value(sum(value.mismatch for value in values) / len(values), terms)


def _of_round(number: int) -> str:
    return f" of round {number + 1}" if number else ""


@lru_cache(maxsize=256)
def _log_once(note: str) -> None:
    log.warning(note)


def _name(prior: Prior) -> str:
    """The name of a prior in records: TotalVariation is total_variation."""
    words = re.findall(r"[A-Z]+[a-z0-9]*|[a-z0-9]+", getattr(prior, "__name__", type(prior).__name__))
    return "_".join(words).lower()


def _known() -> dict[str, Any]:
    modules = (replays, paths, distances, weights, priors, span, canvases)
    public = [(name, part) for module in modules for name, part in vars(module).items() if name[0] != "_"]
    return {name: part for name, part in public if is_dataclass(part) or inspect.isfunction(part)}


_PARTS = _known()


def encode(parts: Objective) -> dict[str, Any] | None:
    """The objective as plain values; None where a part holds something else, such as a generator of images.

    Examples:
        >>> from undelta.attacker.replays import CoarseRollout
        >>> encode(Objective(replay=CoarseRollout(steps=5)))["replay"]
        {'part': 'CoarseRollout', 'steps': 5}
    """
    try:
        return {field.name: _encoded(getattr(parts, field.name)) for field in fields(Objective)}
    except TypeError:
        return None


def _encoded(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple):
        return [_encoded(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        name = _registered(type(value))
        return {"part": name} | {field.name: _encoded(getattr(value, field.name)) for field in fields(value)}
    if inspect.isfunction(value):
        return {"function": _registered(value)}
    raise TypeError(f"no plain value: {type(value).__name__}")


def _registered(part: Any) -> str:
    """Its name, under which a part of the user's own is found again in this process."""
    name = part.__name__
    if _PARTS.setdefault(name, part) is not part:
        raise TypeError(f"two parts are called {name}")
    return str(name)


def decode(values: Mapping[str, Any]) -> Objective:
    """The objective that `encode` wrote down."""
    try:
        objective = Objective(**{name: _decoded(value) for name, value in values.items()})
    except (TypeError, KeyError, ValueError, AttributeError) as problem:
        raise ConfigError(f"not a readable objective ({problem})") from problem
    for part in (objective.replay, objective.distance, objective.weights, *objective.priors):
        if not callable(part):
            raise ConfigError(f"not a readable objective (expected a part, got {part!r})")
    return objective


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_decoded(item) for item in value)
    if isinstance(value, Mapping):
        if "function" in value:
            return _PARTS[value["function"]]
        arguments = {key: _decoded(item) for key, item in value.items() if key != "part"}
        return _PARTS[value["part"]](**arguments)
    return value
