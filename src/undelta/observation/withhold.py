"""Less knowledge than the paper's server has: every function returns an Observation with fields missing or changed.

Attacks degrade, or refuse with `MissingKnowledge`; they are never told what was taken away. Of several rounds, every
one loses the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, Concatenate, ParamSpec

import torch

from undelta.errors import ConfigError
from undelta.observation.observation import HYPERPARAMETERS, Hyperparameter, Observation
from undelta.observation.rounds import together
from undelta.updates import difference, in_levels, layers_of, noise_like

Arguments = ParamSpec("Arguments")


def _every_round(
    change: Callable[Concatenate[Observation, Arguments], Observation],
) -> Callable[Concatenate[Observation, Arguments], Observation]:
    @wraps(change)
    def changed(observation: Observation, /, *arguments: Arguments.args, **named: Arguments.kwargs) -> Observation:
        return together([change(one, *arguments, **named) for one in observation.rounds])

    return changed


@_every_round
def only_layers(observation: Observation, names: Sequence[str]) -> Observation:
    """Only the updates of these layers (module names) were received; buffers are withheld with the rest."""
    layers = {layer.name: layer for layer in layers_of(observation.model())}
    wanted = list(names)
    for name in wanted:
        if name not in layers:
            raise ConfigError(f"no layer {name!r}; choose from {', '.join(filter(None, layers))}")
    kept = {parameter for name in wanted for parameter in layers[name].parameters}
    return replace(observation, received={key: value for key, value in observation.received.items() if key in kept})


@_every_round
def without_buffers(observation: Observation) -> Observation:
    """The client sends parameters only, no BatchNorm statistics."""
    names = {name for name, _ in observation.model().named_parameters()}
    return replace(observation, received={key: value for key, value in observation.received.items() if key in names})


@_every_round
def without_labels(observation: Observation) -> Observation:
    """No labels are granted."""
    return replace(observation, labels=None)


@_every_round
def without(observation: Observation, *hyperparameters: Hyperparameter) -> Observation:
    """The server does not know these hyperparameters."""
    for key in hyperparameters:
        if key not in HYPERPARAMETERS:
            raise ConfigError(f"expected {', '.join(HYPERPARAMETERS)}, got {key!r}")
    blank: dict[str, Any] = {key: 1.0 if key == "learning_rate" else 1 for key in hyperparameters}
    if "batches" in hyperparameters:
        blank |= {"batch_size": None, "drop_last": False}
    training = replace(observation.training, **blank)
    return replace(observation, training=training, unknown=tuple(sorted({*observation.unknown, *hyperparameters})))


@_every_round
def mistaken(observation: Observation, *, epochs: float = 1.0, learning_rate: float = 1.0) -> Observation:
    """The server is wrong about hyperparameters by these factors."""
    training = observation.training
    wrong = replace(
        training,
        epochs=max(1, round(training.epochs * epochs)),
        learning_rate=training.learning_rate * learning_rate,
    )
    return replace(observation, training=wrong)


@_every_round
def quantized(observation: Observation, bits: int) -> Observation:
    """The update arrived in ``bits`` bits per entry: uniform levels between each tensor's extremes."""
    if not 1 <= bits <= 16:
        raise ConfigError(f"expected 1 <= bits <= 16, got bits={bits}")
    received = {
        key: observation.initial[key] + in_levels(value - observation.initial[key], bits)
        if value.is_floating_point()
        else value
        for key, value in observation.received.items()
    }
    return replace(observation, received=received)


def pure_noise(observation: Observation, generator: torch.Generator) -> Observation:
    """The server received noise as long as the update, and nothing else; what an attack makes of it is its own.

    Of several rounds, all begin where the first did: where later ones begin, the client's updates have led.
    """
    rounds = []
    for one in without_buffers(observation).rounds:
        noise = noise_like(difference(one.received, one.initial, one.received), generator)
        received = {name: observation.initial[name] + value for name, value in noise.items()}
        rounds.append(replace(one, initial=observation.initial, received=received))
    return together(rounds)
