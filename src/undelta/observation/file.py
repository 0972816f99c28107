"""Observation files: one safetensors file with JSON metadata, versioned and sealed with a digest.

A file from outside is never trusted: nothing is unpickled, nothing imported, and every field is checked.
The digest finds accidents (a truncated download, a flipped bit), not forgeries.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from undelta.errors import ConfigError, ObservationError, UndeltaError
from undelta.files import FORMAT, read_tensors, seal_of, write_tensors
from undelta.observation.observation import Hyperparameter, Observation
from undelta.observation.rounds import MOST_ROUNDS, together
from undelta.observation.specs import Architecture, Builder, ImageSpec
from undelta.schema import import_part, parse
from undelta.training import LocalTraining, spelled

KIND = "observation"


@dataclass(frozen=True, kw_only=True)
class _Metadata:
    """The fields of an Observation that are not tensors."""

    architecture: Architecture
    training: LocalTraining
    num_samples: int
    image: ImageSpec
    unknown: tuple[Hyperparameter, ...] = ()
    further: tuple[LocalTraining, ...] = ()
    """Of every other round, where there are some."""


def save_observation(observation: Observation, path: str | Path) -> None:
    """Write an observation; the file appears whole or not at all.

    Examples:
        >>> import tempfile
        >>> from undelta import Scenario, disclose
        >>> small = {"width": 4, "hidden": 16}
        >>> scenario = Scenario(data="digits", num_samples=2, model_arguments=small, epochs=2, batches=1)
        >>> observation = disclose(scenario.draw(seed=0), scenario, seed=0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_observation(observation, f"{folder}/seen.safetensors")
        ...     digest_of(load_observation(f"{folder}/seen.safetensors")) == digest_of(observation)
        True
    """
    write_tensors(path, *_contents(observation))


def _contents(observation: Observation) -> tuple[dict[str, Tensor], dict[str, Any]]:
    kept = {field.name: getattr(observation, field.name) for field in fields(_Metadata) if field.name != "further"}
    metadata = asdict(_Metadata(**kept))
    metadata["training"] = spelled(observation.training)  # so that files of plain SGD stay what they were
    metadata["further"] = [spelled(one.training) for one in observation.further]
    if not observation.further:
        del metadata["further"]  # and those of one round
    tensors: dict[str, Tensor] = {}
    for number, one in enumerate(observation.rounds):
        for side, state in (("initial", one.initial), ("received", one.received)):
            tensors |= {f"{_side(side, number)}/{name}": tensor for name, tensor in state.items()}
    if observation.labels is not None:
        tensors["labels"] = observation.labels
    return tensors, {"format": FORMAT, "kind": KIND, **metadata}


def _side(side: str, number: int) -> str:
    """What the names of a round's tensors begin with."""
    return f"{side} {number + 1}" if number else side


def digest_of(observation: Observation) -> str:
    """What identifies an observation: the digest that its file carries."""
    return seal_of(*_contents(observation))


def digests_of(observation: Observation) -> set[str]:
    """Its own digest and those of its rounds: a truth that belongs to one of them belongs to all."""
    return {digest_of(observation), *map(digest_of, observation.rounds)}


def load_observation(path: str | Path, *, model: str | Builder | None = None) -> Observation:
    """Read and check an observation.

    Args:
        path: The file.
        model: A custom model's function or its ``package.module:function``. A model that is not built in is
            only ever imported when it is named here; what the file says is not enough.
    """
    tensors, values = read_tensors(path, kind=KIND, error=ObservationError)
    values = {key: value for key, value in values.items() if key not in ("format", "kind")}
    metadata = parse(_Metadata, values, where=str(path), error=ObservationError)
    if len(metadata.further) >= MOST_ROUNDS:
        raise ObservationError(f"{path}: expected at most {MOST_ROUNDS} rounds, got {len(metadata.further) + 1}")
    sides = [[_side(side, number) for side in ("initial", "received")] for number in range(1 + len(metadata.further))]
    states: dict[str, dict[str, Tensor]] = {side: {} for pair in sides for side in pair}
    labels = tensors.pop("labels", None)
    for key, tensor in tensors.items():
        side, _, name = key.partition("/")
        if side not in states or not name:
            raise ObservationError(f"{path}: unknown tensor {key[:80]!r}")
        states[side][name] = tensor
    common = {
        **{name: value for name, value in vars(metadata).items() if name not in ("training", "further")},
        "labels": labels,
        "builder": import_builder(model) if isinstance(model, str) else model,
    }
    try:
        return together(
            [
                Observation(initial=states[initial], received=states[received], training=training, **common)
                for (initial, received), training in zip(sides, (metadata.training, *metadata.further), strict=True)
            ]
        )
    except UndeltaError as problem:
        raise ObservationError(f"{path}: {problem}") from problem


def import_builder(name: str) -> Builder | None:
    """The function behind ``package.module:function``; None for a built-in model's name."""
    if ":" not in name:
        return None
    function = import_part(name, "model")

    def builder(**arguments: Any) -> nn.Module:
        model = function(**arguments)
        if not isinstance(model, nn.Module):
            raise ConfigError(f"expected {name!r} to return an nn.Module, got {type(model).__name__}")
        return model

    return builder
