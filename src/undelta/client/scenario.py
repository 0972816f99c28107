"""A scenario: whose data, which model, what training and defenses, how many rounds, what the server is granted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor, nn

from undelta.client.datasets import Dataset, open_dataset, pick
from undelta.client.defenses import Defense, DpSgd, check_defenses, make_defenses
from undelta.client.private import Private
from undelta.errors import ConfigError
from undelta.models.checks import MOST_CLASSES
from undelta.observation import Architecture, Builder, ImageSpec
from undelta.observation.file import import_builder
from undelta.observation.rounds import MOST_ROUNDS
from undelta.seeding import stream
from undelta.training import MOST_SAMPLES, LocalTraining, Recipe

DEFAULT_SIZE = 32  # side of photographs, which have no native one


@dataclass(frozen=True, kw_only=True)
class Scenario(Recipe):
    """All that determines an update, given a seed. The attacked client is the first of ``clients``.

    How clients train, apart from E, B and η, is a `Recipe`; plain SGD by default.

    Examples:
        >>> scenario = Scenario(data="digits", num_samples=6, epochs=3, batches=2, learning_rate=0.01)
        >>> scenario.draw(seed=0).images.shape
        torch.Size([6, 1, 8, 8])
        >>> scenario.training.sizes(6)  # of the mini-batches
        (3, 3)
        >>> Scenario(data="digits", num_samples=6, batches=7)
        Traceback (most recent call last):
        undelta.errors.ConfigError: 6 samples cannot fill 7 mini-batches; lower batches or raise num_samples
    """

    data: str = "photos"
    """A named source (photos, patches, faces, digits), a folder of images, a file, hf:NAME or torchvision:NAME."""
    image_size: int | None = None
    """Side of the images; None keeps the data's own, or 32 for photographs."""
    num_samples: int = 8
    model: str = "cnn"
    """A built-in model, or ``package.module:function``."""
    model_arguments: Mapping[str, Any] = field(default_factory=dict)
    initial: str | None = None
    """A checkpoint that the server starts from (.safetensors, .pt, .npz); None draws a fresh network."""
    classes: int | None = None
    """Outputs of the model, where it has more than the data have classes; None: as many."""
    epochs: int = 10
    batches: int = 4
    learning_rate: float = 0.004
    rounds: int = 0
    """FedAvg rounds over all clients before the attacked one."""
    observed_rounds: int = 1
    """Consecutive rounds of the attacked client that the server sees, starting with the attacked one."""
    clients: int = 1
    participants: int = 1
    """Clients that the server selects for each earlier round, and with the attacked ones for each observed round."""
    client_samples: tuple[int, ...] = ()
    """Samples of each client; empty: ``num_samples`` each. The first must equal ``num_samples``."""
    client_weights: tuple[float, ...] = ()
    """The weights ρ_k of AWA eq_FL; empty: proportional to the clients' samples."""
    aggregate: int = 1
    """Clients of the attacked round whose updates the server sees only as their weighted average."""
    grant_labels: bool = True
    """Whether the server learns the multiset of labels."""
    defenses: tuple[Mapping[str, Any], ...] = ()
    """What every client does to protect its data, in order: tables such as ``{"defense": "clipping", "norm": 1.0}``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size is not None:
            object.__setattr__(self, "batches", self.training.cut(self.num_samples).number)
        self.training.cut(self.num_samples)
        for key, least in (("num_samples", 1), ("clients", 1), ("rounds", 0), ("observed_rounds", 1)):
            if getattr(self, key) < least:
                raise ConfigError(f"expected {key} >= {least}, got {key}={getattr(self, key)}")
        if self.observed_rounds > MOST_ROUNDS:
            raise ConfigError(f"expected observed_rounds <= {MOST_ROUNDS}, got {self.observed_rounds}")
        if self.clients * self.num_samples > MOST_SAMPLES:
            raise ConfigError(
                f"expected clients x num_samples <= {MOST_SAMPLES:,}, got {self.clients} x {self.num_samples}"
            )
        for key in ("participants", "aggregate"):
            if not 1 <= getattr(self, key) <= self.clients:
                raise ConfigError(f"expected 1 <= {key} <= clients={self.clients}, got {key}={getattr(self, key)}")
        if self.image_size is not None and not 1 <= self.image_size <= 4096:
            raise ConfigError(f"expected 1 <= image_size <= 4096, got image_size={self.image_size}")
        for key in ("client_samples", "client_weights"):
            if getattr(self, key) and len(getattr(self, key)) != self.clients:
                raise ConfigError(f"expected {self.clients} {key}, got {len(getattr(self, key))}")
        if self.client_samples and self.client_samples[0] != self.num_samples:
            raise ConfigError(
                f"the attacked client is the first: expected client_samples[0] = {self.num_samples}, "
                f"got {self.client_samples[0]}"
            )
        for samples in self.client_samples:
            self.training.cut(samples)
        finite = all(map(math.isfinite, self.client_weights))
        if self.client_weights and (not finite or min(self.client_weights) < 0 or sum(self.client_weights) <= 0):
            raise ConfigError(f"expected finite client_weights >= 0 that are not all 0, got {self.client_weights}")
        if self.classes is not None and not 1 <= self.classes <= MOST_CLASSES:
            raise ConfigError(f"expected 1 <= classes <= {MOST_CLASSES}, got classes={self.classes}")
        check_defenses(self.defenses, self.training)

    @property
    def training(self) -> LocalTraining:
        """What the server assigns to each client."""
        return LocalTraining(**{field.name: getattr(self, field.name) for field in fields(LocalTraining)})

    @property
    def architecture(self) -> Architecture:
        return Architecture(name=self.model, arguments=dict(self.model_arguments))

    @property
    def samples(self) -> tuple[int, ...]:
        """N^(k) of every client."""
        return self.client_samples or (self.num_samples,) * self.clients

    @property
    def weights(self) -> tuple[float, ...]:
        """ρ_k of every client, summing to one (AWA eq_FL)."""
        raw = self.client_weights or tuple(map(float, self.samples))
        return tuple(weight / sum(raw) for weight in raw)

    @property
    def protection(self) -> tuple[Defense, ...]:
        return make_defenses(self.defenses)

    def privacy(self, rounds: int | None = None) -> tuple[float | None, float] | None:
        """(ε, δ) of a client that trains in this many rounds; by default, in all up to the last one observed.

        None without a defense that promises something; ε is None where it has no noise. A client that the server did
        not select for some of the rounds has lost less.
        """
        private = next((defense for defense in self.protection if isinstance(defense, DpSgd)), None)
        if private is None:
            return None
        rounds = self.rounds + self.observed_rounds if rounds is None else rounds
        return private.epsilon(self.training, rounds=rounds), private.delta

    def builder(self) -> Builder | None:
        """The function behind a custom model; a scenario is the user's own word, so it is imported."""
        return import_builder(self.model)

    def make_model(self, image: ImageSpec) -> nn.Module:
        """A model with fresh weights."""
        return self.architecture.build(self.builder(), shape=image.shape, classes=image.classes)

    def image_spec(self, dataset: Dataset | None = None) -> ImageSpec:
        """What the model's inputs look like; the data set is opened unless it is given."""
        dataset = open_dataset(self.data) if dataset is None else dataset
        side = self._side(dataset)
        classes = dataset.classes if self.classes is None else self.classes
        if classes < dataset.classes:
            raise ConfigError(f"{dataset.name} has {dataset.classes} classes, more than classes={classes}")
        return ImageSpec(shape=(dataset.channels, side, side), mean=dataset.mean, std=dataset.std, classes=classes)

    def _side(self, dataset: Dataset) -> int:
        return self.image_size or dataset.native_size or DEFAULT_SIZE

    def draw(self, seed: int) -> Private:
        """The attacked client's data; of all aggregated clients, one after the other, if there are several."""
        attacked = self.draw_all(seed)[: self.aggregate]
        return Private(
            images=torch.cat([client.images for client in attacked]),
            labels=torch.cat([client.labels for client in attacked]),
        )

    def draw_all(self, seed: int) -> tuple[Private, ...]:
        """Every client's data: disjoint random draws from the source."""
        dataset = open_dataset(self.data)
        indices = pick(dataset, sum(self.samples), stream("client", seed, "data"))
        return tuple(self._take(dataset, part) for part in indices.split(list(self.samples)))

    def draw_held_out(self, seed: int, most: int) -> Private:
        """Images of the source that no client has, at most so many; there may be none."""
        dataset = open_dataset(self.data)
        shuffled = pick(dataset, len(dataset), stream("client", seed, "data"))  # begins as the clients' draw does
        return self._take(dataset, shuffled[sum(self.samples) :][:most])

    def _take(self, dataset: Dataset, indices: Tensor) -> Private:
        return Private(images=dataset.draw(indices, self._side(dataset)), labels=dataset.labels[indices])
