"""Observation files: one safetensors file with JSON metadata, versioned and sealed with a digest.

A file from outside is never trusted: nothing is unpickled, nothing imported, and every field is checked.
The digest finds accidents (a truncated download, a flipped bit), not forgeries.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from undelta.errors import ConfigError, ObservationError, UndeltaError
from undelta.observation import Architecture, Builder, Hyperparameter, ImageSpec, Observation
from undelta.parsing import parse
from undelta.training import LocalTraining

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class _Metadata:
    format: int
    kind: str
    architecture: Architecture
    training: LocalTraining
    num_samples: int
    image: ImageSpec
    unknown: tuple[Hyperparameter, ...] = ()


def save_observation(observation: Observation, path: str | Path) -> None:
    """Write an observation; the file appears whole or not at all.

    >>> from undelta import Scenario, disclose
    >>> small = {"width": 4, "hidden": 16}
    >>> scenario = Scenario(data="digits", num_samples=2, model_arguments=small, epochs=2, batches=1)
    >>> observation = disclose(scenario.draw(seed=0), scenario, seed=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_observation(observation, f"{folder}/seen.safetensors")
    ...     digest_of(load_observation(f"{folder}/seen.safetensors")) == digest_of(observation)
    True
    """
    _write(path, *_contents(observation))


def _contents(observation: Observation) -> tuple[dict[str, Tensor], str]:
    metadata = _Metadata(
        format=FORMAT,
        kind="observation",
        architecture=observation.architecture,
        training=observation.training,
        num_samples=observation.num_samples,
        image=observation.image,
        unknown=observation.unknown,
    )
    tensors = {f"initial/{name}": tensor for name, tensor in observation.initial.items()}
    tensors |= {f"received/{name}": tensor for name, tensor in observation.received.items()}
    if observation.labels is not None:
        tensors["labels"] = observation.labels
    return _plain(tensors), _text(asdict(metadata))


def digest_of(observation: Observation) -> str:
    """What identifies an observation: the digest that its file carries."""
    return _digest(*_contents(observation))


def load_observation(path: str | Path, *, model: str | Builder | None = None) -> Observation:
    """Read and check an observation.

    Args:
        path: The file.
        model: A custom model's function or its ``package.module:function``. A model that is not built in is
            only ever imported when it is named here; what the file says is not enough.
    """
    tensors, values = read_tensors(path, kind="observation", error=ObservationError)
    metadata = parse(_Metadata, values, where=str(path), error=ObservationError)
    states: dict[str, dict[str, Tensor]] = {"initial": {}, "received": {}}
    labels = tensors.pop("labels", None)
    for key, tensor in tensors.items():
        side, _, name = key.partition("/")
        if side not in states or not name:
            raise ObservationError(f"{path}: unknown tensor {key[:80]!r}")
        states[side][name] = tensor
    try:
        return Observation(
            architecture=metadata.architecture,
            initial=states["initial"],
            received=states["received"],
            training=metadata.training,
            num_samples=metadata.num_samples,
            image=metadata.image,
            labels=labels,
            unknown=metadata.unknown,
            builder=import_builder(model) if isinstance(model, str) else model,
        )
    except UndeltaError as problem:
        raise ObservationError(f"{path}: {problem}") from problem


def import_builder(name: str) -> Builder | None:
    """The function behind ``package.module:function``; None for a built-in model's name."""
    if ":" not in name:
        return None
    module_name, _, function_name = name.partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)  # the user named it, perhaps a file beside the scenario
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError, ValueError, TypeError) as problem:
        raise ConfigError(f"cannot import the model {name!r}: {problem}") from problem
    if not callable(function):
        raise ConfigError(f"expected {name!r} to be a function that returns a model, got {type(function).__name__}")

    def builder(**arguments: Any) -> nn.Module:
        model = function(**arguments)
        if not isinstance(model, nn.Module):
            raise ConfigError(f"expected {name!r} to return an nn.Module, got {type(model).__name__}")
        return model

    return builder


def write_tensors(path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """Write tensors and JSON metadata as a sealed safetensors file, atomically."""
    _write(path, _plain(tensors), _text(metadata))


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def _text(metadata: Mapping[str, Any]) -> str:
    return json.dumps(metadata, sort_keys=True, allow_nan=False)


def _write(path: str | Path, plain: dict[str, Tensor], text: str) -> None:
    # One key only: safetensors keeps no order of several, and equal content should give equal bytes.
    write_bytes(path, to_bytes(plain, metadata={"undelta": f"{_digest(plain, text)} {text}"}))


def read_tensors(path: str | Path, *, kind: str, error: type[UndeltaError]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read and verify what `write_tensors` wrote."""
    if not Path(path).is_file():
        raise error(f"{path}: no such file")
    try:
        with safe_open(str(path), framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, UnicodeDecodeError) as problem:
        raise error(f"{path}: not a readable safetensors file, or truncated ({problem})") from problem
    if "undelta" not in header:
        raise error(f"{path}: a safetensors file, but not one that undelta wrote (no metadata)")
    digest, _, text = header["undelta"].partition(" ")
    if _digest(tensors, text) != digest:
        raise error(f"{path}: damaged: its content does not match its checksum; copy or record it again")
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise error(f"{path}: its metadata is not JSON ({problem})") from problem
    if not isinstance(values, dict) or values.get("kind") != kind:
        found = values.get("kind") if isinstance(values, dict) else values
        raise error(f"{path}: expected a file of kind {kind!r}, got {found!r}")
    if values.get("format") != FORMAT:
        raise error(f"{path}: format {values.get('format')!r} is not known to this version (it reads {FORMAT})")
    return tensors, values


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write a file atomically: readers see the old content or the new, never half of it."""
    path = Path(path)
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as problem:
        raise ConfigError(f"cannot write {path}: {problem.strerror}") from problem
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except OSError as problem:
        Path(temporary).unlink(missing_ok=True)
        raise ConfigError(f"cannot write {path}: {problem.strerror}") from problem
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
