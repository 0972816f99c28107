"""What `undelta observe` and `join` do: checkpoints, or several rounds, become one observation file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from undelta.errors import ConfigError
from undelta.files import make_way
from undelta.models import MODELS
from undelta.observation import Architecture, ImageSpec, together
from undelta.observation.assemble import Missing, count_classes, make_model, observe, training_from
from undelta.observation.checkpoint import Notes, read_checkpoint
from undelta.observation.consistency import consistency
from undelta.observation.file import digest_of, load_observation, save_observation
from undelta.schema import numbers


def observe_job(
    before: Path,
    after: Path,
    *,
    model: str,
    model_arguments: Mapping[str, Any],
    num_samples: int,
    shape: str,
    classes: int | None,
    mean: str,
    std: str,
    training: Mapping[str, object],
    labels: str | None,
    out: Path,
    missing: str | None = None,
) -> Notes:
    """Read, check and fit two checkpoints, and write what the server saw; returns notes for the user."""
    for path in (before, after):
        if path.resolve() == out.resolve():
            raise ConfigError(f"--out is the checkpoint {path}; choose another file")
    make_way(out)
    size = numbers("--shape", shape, int)
    if len(size) != 3:
        raise ConfigError(f"--shape: expected channels, height and width, such as 3,32,32, got {shape!r}")
    image = _image(model, model_arguments, (size[0], size[1], size[2]), classes, mean, std)
    told, unknown, notes = training_from(training, num_samples)
    if mean == "0" and std == "1":
        notes.append("no --mean and --std: inputs are taken as pixels in [0, 1], not normalized")
    sent, more = read_checkpoint(before)
    received, others = read_checkpoint(after)
    observation, fitted = observe(
        sent,
        received,
        model=model,
        model_arguments=model_arguments,
        image=image,
        training=told,
        num_samples=num_samples,
        labels=None if labels is None else _labels(labels),
        unknown=unknown,
        missing=cast("Missing | None", missing),
        names=(str(before), str(after)),
    )
    save_observation(observation, out)
    return [*notes, *more, *others, *fitted, *consistency(observation)]


def join_job(paths: Sequence[Path], *, out: Path, model: str | None = None) -> int:
    """Write one observation of several rounds, and say how many there are."""
    if any(path.resolve() == out.resolve() for path in paths):
        raise ConfigError(f"--out is one of the rounds, {out}; choose another file")
    make_way(out)
    joined = together([load_observation(path, model=model) for path in paths])
    if len(set(map(digest_of, joined.rounds))) < len(joined.rounds):
        raise ConfigError("the same round was given twice; name each once")
    save_observation(joined, out)
    return len(joined.rounds)


def _image(
    model: str, arguments: Mapping[str, Any], shape: tuple[int, int, int], classes: int | None, mean: str, std: str
) -> ImageSpec:
    if classes is None:
        if model in MODELS:
            raise ConfigError(f"the built-in model {model!r} is made for a number of classes; give --classes")
        named = Architecture(name=model, arguments=arguments)
        classes = count_classes(make_model(named, shape=shape, classes=1), shape)
    channels = [numbers("--mean", mean, float), numbers("--std", std, float)]
    means, deviations = (values * shape[0] if len(values) == 1 else values for values in channels)
    return ImageSpec(shape=shape, mean=means, std=deviations, classes=classes)


def _labels(words: str) -> Tensor:
    """Whole numbers, given or in a file, between commas, blanks or lines."""
    given = re.fullmatch(r"[-+\d\s,]+", words)
    try:
        text = words if given else Path(words).read_text(encoding="utf-8")
    except (OSError, ValueError) as problem:
        raise ConfigError(f"--labels: expected numbers such as 0,1,1 or a file of them ({problem})") from problem
    values = numbers("--labels", text, int)
    if max(map(abs, values)) >= 2**31:
        raise ConfigError("--labels: expected classes, got a number far too large")
    return torch.tensor(values, dtype=torch.int64)
