"""Less knowledge than the paper's server has: every function returns an Observation with fields missing or changed.

Attacks degrade, or refuse with `MissingKnowledge`; they are never told what was taken away.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from undelta.errors import ConfigError
from undelta.observation.observation import Hyperparameter, Observation
from undelta.updates import in_levels, layers_of


def only_layers(observation: Observation, names: Iterable[str]) -> Observation:
    """Only the updates of these layers (module names) were received; buffers are withheld with the rest."""
    layers = {layer.name: layer for layer in layers_of(observation.model())}
    wanted = list(names)
    for name in wanted:
        if name not in layers:
            raise ConfigError(f"no layer {name!r}; choose from {', '.join(filter(None, layers))}")
    kept = {parameter for name in wanted for parameter in layers[name].parameters}
    return replace(observation, received={key: value for key, value in observation.received.items() if key in kept})


def without_buffers(observation: Observation) -> Observation:
    """The client sends parameters only, no BatchNorm statistics."""
    names = {name for name, _ in observation.model().named_parameters()}
    return replace(observation, received={key: value for key, value in observation.received.items() if key in names})


def without_labels(observation: Observation) -> Observation:
    """No labels are granted."""
    return replace(observation, labels=None)


def without(observation: Observation, *hyperparameters: Hyperparameter) -> Observation:
    """The server does not know these hyperparameters."""
    training = observation.training
    blank = replace(
        training,
        epochs=1 if "epochs" in hyperparameters else training.epochs,
        learning_rate=1.0 if "learning_rate" in hyperparameters else training.learning_rate,
    )
    return replace(observation, training=blank, unknown=tuple(sorted({*observation.unknown, *hyperparameters})))


def mistaken(observation: Observation, *, epochs: float = 1.0, learning_rate: float = 1.0) -> Observation:
    """The server is wrong about hyperparameters by these factors."""
    training = observation.training
    wrong = replace(
        training,
        epochs=max(1, round(training.epochs * epochs)),
        learning_rate=training.learning_rate * learning_rate,
    )
    return replace(observation, training=wrong)


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
