"""Two states of any federation into an Observation: what a server sent, what it got back, and what it told the client.

They come from checkpoints (`checkpoint`) or from the messages of a framework (`undelta.integrations`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from undelta.errors import ConfigError
from undelta.observation.checkpoint import Notes
from undelta.observation.checks import some
from undelta.observation.file import import_builder
from undelta.observation.fitting import check_pair, compare_frozen, compare_steps, fit, renamed, same_precision
from undelta.observation.observation import HYPERPARAMETERS, Hyperparameter, Observation
from undelta.observation.specs import Architecture, ImageSpec
from undelta.schema import numbers, parse
from undelta.seeding import global_stream
from undelta.training import LocalTraining, Recipe, check_samples
from undelta.updates import State, freeze

Missing: TypeAlias = Literal["frozen", "withheld"]
"""What parameters are that a client does not return: never trained, or trained and kept to itself."""


def make_model(
    architecture: Architecture, *, shape: tuple[int, int, int], classes: int, draw: str = "rebuild"
) -> nn.Module:
    """The named model, to compare states with; its weights do not matter. Another ``draw`` gives other random ones."""
    with global_stream(draw):
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
        raise ConfigError(
            f"expected the model to return logits of shape (1, classes) for one image, or an object with such .logits, "
            f"got {found}"
        )
    return logits.shape[1]


SPELLINGS = {
    "epochs": ("epochs", "local-epochs"),
    "batches": ("batches",),
    "batch_size": ("batch-size",),
    "learning_rate": ("learning-rate", "lr"),
    **{field.name: (field.name.replace("_", "-"),) for field in fields(Recipe) if field.name != "batch_size"},
    "weight_decay": ("weight-decay", "wd"),
    "adam_epsilon": ("adam-epsilon", "eps"),
    "clip_norm": ("clip-norm", "max-grad-norm"),
    "proximal": ("proximal", "proximal-mu"),
}
"""How configurations call a client's hyperparameters; underscores may stand for dashes."""

LISTS = {"betas": float, "trained": str}
"""Fields that a configuration may spell as one text, with commas."""

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
    if str(told.get("optimizer")).lower() not in ("adam", "adamw"):
        told.pop("adam_epsilon", None)  # an eps may be anything else's, such as a privacy budget
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
    check_samples(num_samples)
    given = hyperparameters(settings)
    for key, kind in LISTS.items():
        if isinstance(words := given.get(key), str):
            given[key] = tuple(word.strip() for word in words.split(",")) if kind is str else numbers(key, words, float)
    if isinstance(optimizer := given.get("optimizer"), str):
        given["optimizer"] = optimizer.lower()
    size = given.pop("batch_size", None)
    notes = Notes()
    if size is not None and "batches" in given:
        raise ConfigError("expected batches or a batch size, got both; leave one out")
    if size is not None:
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ConfigError(f"expected a whole batch size of at least 1, got {repr(size)[:100]}")
        given |= _batches(size, bool(given.get("drop_last")), num_samples)
    unknown: tuple[Hyperparameter, ...] = tuple(key for key in HYPERPARAMETERS if key not in given)
    if unknown:
        given |= dict.fromkeys(unknown, 1)
        notes.append(
            f"no {' and no '.join(unknown)}: attacks that need this do not apply; strongest learns SGD's path length"
        )
    return parse(LocalTraining, given, where="training", error=ConfigError), unknown, notes


def _batches(size: int, drop_last: bool, num_samples: int) -> dict[str, int]:
    """How many mini-batches a data loader makes; and their size, if the number alone would cut them differently."""
    loader = LocalTraining(epochs=1, batches=1, learning_rate=1.0, batch_size=size, drop_last=drop_last)
    loaded = loader.cut(num_samples)
    own = replace(loader, batches=loaded.number, batch_size=None, drop_last=False)
    same = not drop_last and own.cut(num_samples) == loaded
    return {"batches": loaded.number} if same else {"batches": loaded.number, "batch_size": size}


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
    missing: Missing | None = None,
    names: tuple[str, str] = ("before", "after"),
) -> tuple[Observation, Notes]:
    """What a server saw of one client, from the state that it sent and the one that it received.

    Args:
        before: What the client was sent; all of the model's state. What is frozen may be missing if the model is your
            own and its function loads it.
        after: What it returned; buffers and frozen parameters may be missing.
        model: A built-in model, or ``package.module:function``: it is imported, since you name it.
        image: What the model's inputs look like.
        training: What the client was told to do.
        num_samples: How many images it trained on.
        model_arguments: For the model's function.
        labels: Their multiset, if you grant it; sorted here.
        unknown: Hyperparameters that the server does not know.
        missing: What other parameters are that ``after`` lacks; by default, such a state is refused.
        names: What messages call the two states.

    Returns:
        The observation, and notes on what was changed to make the states fit.
    """
    architecture = Architecture(name=model, arguments=dict(model_arguments or {}))
    network = make_model(architecture, shape=image.shape, classes=image.classes)
    training = _trained(training, after, network, missing, names[1])
    freeze(network, training.trained)
    found = count_classes(network, image.shape)
    if found != image.classes:
        raise ConfigError(f"the model gives {found} logits, but {image.classes} classes were named")
    own = _own(before, network, architecture, image, names[0])
    initial, notes = fit(before, network, where=names[0], own=own)
    received, more = fit(after, network, where=names[1], received=True, withheld=missing == "withheld")
    initial, received = same_precision(initial, received)
    check_pair(initial, received, network, names)
    notes += [*more, *compare_frozen(initial, received, network)]
    if not {"epochs", "batches"} & {*unknown}:
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


def _trained(
    training: LocalTraining, after: Mapping[str, Tensor], model: nn.Module, missing: Missing | None, where: str
) -> LocalTraining:
    """With the names of what was returned as those of what was trained, if the rest is said to be frozen."""
    if missing is None:
        return training
    if missing not in get_args(Missing):
        raise ConfigError(f"expected missing to be {' or '.join(get_args(Missing))}, got {missing!r}")
    if training.trained:
        raise ConfigError("expected trained or missing, got both; leave one out: trained says what is frozen")
    sent = renamed(after, model, where, Notes())
    names = [name for name, value in model.named_parameters() if value.requires_grad]
    returned = tuple(name for name in names if name in sent)
    whole = missing == "withheld" or len(returned) in (0, len(names))
    return training if whole else replace(training, trained=returned)


def _own(
    before: Mapping[str, Tensor], model: nn.Module, architecture: Architecture, image: ImageSpec, where: str
) -> State | None:
    """What the model's own function loads, if the state lacks frozen parameters; refuses what it draws at random."""
    trained = {name for name, value in model.named_parameters() if value.requires_grad}
    absent = model.state_dict().keys() - trained - renamed(before, model, where, Notes()).keys()
    if not architecture.custom or not absent & {name for name, _ in model.named_parameters()}:
        return None
    again = make_model(architecture, shape=image.shape, classes=image.classes, draw="again").state_dict()
    own = model.state_dict()
    if drawn := [name for name in absent if not torch.equal(own[name], again[name])]:
        raise ConfigError(
            f"{where} lacks {some(drawn)}, which is frozen, and {architecture.name} draws it at random; "
            "save all of the model's state, or let that function load the weights that clients have"
        )
    return own
