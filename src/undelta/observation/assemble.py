"""Two states of any federation into an Observation: what a server sent, what it got back, and what it told the client.

They come from checkpoints (`checkpoint`) or from the messages of a framework (`undelta.integrations`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

import torch
from torch import Tensor, nn

from undelta.errors import ConfigError
from undelta.observation.checkpoint import Notes
from undelta.observation.file import import_builder
from undelta.observation.fitting import check_pair, compare_steps, fit, same_precision
from undelta.observation.observation import Architecture, Hyperparameter, ImageSpec, Observation
from undelta.schema import parse
from undelta.seeding import global_stream
from undelta.training import LocalTraining

HYPERPARAMETERS: tuple[Hyperparameter, ...] = get_args(Hyperparameter)


def make_model(architecture: Architecture, *, shape: tuple[int, int, int], classes: int) -> nn.Module:
    """The named model, to compare states with; its weights do not matter."""
    with global_stream("rebuild"):
        return architecture.build(import_builder(architecture.name), shape=shape, classes=classes)


def count_classes(model: nn.Module, shape: tuple[int, int, int]) -> int:
    """How many logits the model gives for an image of this shape; refuses a shape that the model does not take."""
    try:
        with torch.no_grad():
            logits = model.eval()(torch.zeros(1, *shape))
    except (RuntimeError, ValueError, TypeError, IndexError) as problem:
        reason = " ".join(str(problem).split())[:200]
        raise ConfigError(f"the model refuses an image of shape {shape} ({reason}); give the right shape") from problem
    if not isinstance(logits, Tensor) or logits.dim() != 2:
        found = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
        raise ConfigError(f"expected the model to return logits of shape (1, classes) for one image, got {found}")
    return logits.shape[1]


SPELLINGS = {
    "epochs": ("epochs", "local-epochs"),
    "batches": ("batches",),
    "batch_size": ("batch-size",),
    "learning_rate": ("learning-rate", "lr"),
    "loss": ("loss",),
    "norm_mode": ("norm-mode",),
}
"""How configurations call a client's hyperparameters; underscores may stand for dashes."""

CUTS = {"batches", "batch_size"}


def hyperparameters(*configurations: Mapping[str, object]) -> dict[str, object]:
    """What configurations with any other keys say of a client's training, under our names; later ones count more."""
    told: dict[str, object] = {}
    for configuration in configurations:
        plain = {key.replace("_", "-"): value for key, value in configuration.items() if value is not None}
        found = {name: plain[word] for name, words in SPELLINGS.items() for word in reversed(words) if word in plain}
        if found.keys() & CUTS:  # a number of batches replaces an earlier size of them, and the reverse
            told = {key: value for key, value in told.items() if key not in CUTS}
        told |= found
    return told


def training_from(
    settings: Mapping[str, object], num_samples: int
) -> tuple[LocalTraining, tuple[Hyperparameter, ...], Notes]:
    """A client's training out of a configuration; which of E and η it does not say; notes.

    Examples:
        >>> training, unknown, notes = training_from({"local-epochs": 2, "batch-size": 4, "num-server-rounds": 3}, 10)
        >>> training.epochs, training.batches, unknown
        (2, 3, ('learning_rate',))
    """
    given = hyperparameters(settings)
    size = given.pop("batch_size", None)
    notes = Notes()
    if size is not None and "batches" in given:
        raise ConfigError("expected batches or a batch size, got both; leave one out")
    if size is not None:
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ConfigError(f"expected a whole batch size of at least 1, got {size!r}")
        given["batches"], notes = _batches(size, num_samples)
    if "batches" not in given:
        raise ConfigError("expected the number of mini-batches (batches) or their size (batch-size), got neither")
    unknown: tuple[Hyperparameter, ...] = tuple(key for key in HYPERPARAMETERS if key not in given)
    if unknown:
        given |= dict.fromkeys(unknown, 1)
        notes.append(f"no {' and no '.join(unknown)}: attacks that replay the client's steps do not apply")
    return parse(LocalTraining, given, where="training", error=ConfigError), unknown, notes


def _batches(size: int, num_samples: int) -> tuple[int, Notes]:
    """How many mini-batches a data loader makes, and a note if undelta's are of other sizes."""
    count = -(-num_samples // size)
    loaded = (*[size] * (count - 1), num_samples - size * (count - 1))
    replayed = LocalTraining(epochs=1, batches=count, learning_rate=1.0).sizes(num_samples)
    if loaded == replayed:
        return count, Notes()
    return count, [
        f"a loader of batch size {size} makes mini-batches of {size} and a last one of {loaded[-1]}; attacks replay "
        f"{count} of {replayed[0]} and a last one of {replayed[-1]}, which is near but not the same"
    ]


def observe(
    before: Mapping[str, Tensor],
    after: Mapping[str, Tensor],
    *,
    model: str,
    image: ImageSpec,
    training: LocalTraining,
    num_samples: int,
    model_arguments: Mapping[str, object] | None = None,
    labels: Tensor | None = None,
    unknown: Sequence[Hyperparameter] = (),
    names: tuple[str, str] = ("before", "after"),
) -> tuple[Observation, Notes]:
    """What a server saw of one client, from the state that it sent and the one that it received.

    Args:
        before: What the client was sent; all of the model's state.
        after: What it returned; buffers may be missing.
        model: A built-in model, or ``package.module:function``: it is imported, since you name it.
        image: What the model's inputs look like.
        training: What the client was told to do.
        num_samples: How many images it trained on.
        model_arguments: For the model's function.
        labels: Their multiset, if you grant it; sorted here.
        unknown: Hyperparameters that the server does not know.
        names: What messages call the two states.

    Returns:
        The observation, and notes on what was changed to make the states fit.
    """
    architecture = Architecture(name=model, arguments=dict(model_arguments or {}))
    network = make_model(architecture, shape=image.shape, classes=image.classes)
    found = count_classes(network, image.shape)
    if found != image.classes:
        raise ConfigError(f"the model gives {found} logits, but {image.classes} classes were named")
    initial, notes = fit(before, network, where=names[0])
    received, more = fit(after, network, where=names[1], received=True)
    initial, received = same_precision(initial, received)
    check_pair(initial, received, network, names)
    notes += more
    if "epochs" not in unknown:
        notes += compare_steps(initial, received, training)
    observation = Observation(
        architecture=architecture,
        initial=initial,
        received=received,
        training=training,
        num_samples=num_samples,
        image=image,
        labels=None if labels is None else labels.sort().values.clone(),
        unknown=tuple(sorted(unknown)),
        builder=import_builder(model),
    )
    return observation, notes
