"""Canvases: the variables that an attack moves, and how they become dummy images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call

from undelta.assignment import match
from undelta.errors import ConfigError
from undelta.observation import Observation

Variables: TypeAlias = dict[str, Tensor]


class Canvas(Protocol):
    """What dummy images are made of."""

    def start(self, observation: Observation, generator: torch.Generator) -> Variables:
        """Random variables to begin with."""

    def carry(self, images: Tensor, variables: Variables, observation: Observation) -> Variables:
        """Variables that continue an earlier phase, which ended with these images and variables."""

    def images(self, variables: Variables, observation: Observation) -> Tensor:
        """The dummy images (M, C, H, W) in the model's input space, differentiable."""

    def labels(self, labels: Tensor, observation: Observation) -> Tensor:
        """The labels of all M dummy images, from those of N."""

    def collapse(self, images: Tensor, labels: Tensor, observation: Observation) -> tuple[Tensor, Tensor]:
        """N images and labels for the reconstruction, from all M."""


@dataclass(frozen=True, kw_only=True)
class Pixels:
    """Free pixels; one dummy image per private image, or ``per_epoch`` one for each epoch, too."""

    per_epoch: bool = False
    average: bool = True
    """Whether the result is the mean over epochs; else it is the first epoch's images."""

    def _copies(self, observation: Observation) -> int:
        return observation.epochs if self.per_epoch else 1

    def start(self, observation: Observation, generator: torch.Generator) -> Variables:
        """Standard normal noise."""
        count = observation.num_samples * self._copies(observation)
        noise = torch.randn((count, *observation.image.shape), generator=generator, dtype=observation.dtype)
        return {"images": noise.to(observation.device)}

    def carry(self, images: Tensor, variables: Variables, observation: Observation) -> Variables:
        """The earlier phase's images."""
        return {"images": images.repeat(self._copies(observation), 1, 1, 1)}

    def images(self, variables: Variables, observation: Observation) -> Tensor:
        return variables["images"]

    def labels(self, labels: Tensor, observation: Observation) -> Tensor:
        """The same labels for every epoch."""
        return torch.cat([labels] * self._copies(observation))

    def collapse(self, images: Tensor, labels: Tensor, observation: Observation) -> tuple[Tensor, Tensor]:
        """Every epoch's images matched one-to-one with the first epoch's, then averaged; or the first epoch's."""
        count = observation.num_samples
        parts, classes = images.split(count), labels[:count]
        if not self.average:
            return parts[0], classes
        matched = [part[match(part, parts[0], classes, classes).to(images.device)] for part in parts[1:]]
        return torch.stack([parts[0], *matched]).mean(0), classes


@dataclass(frozen=True, kw_only=True)
class Latents:
    """Images that a generator makes from latents, (N, dim) -> (N, C, H, W) pixels in [0, 1]."""

    generator: nn.Module
    dim: int

    def start(self, observation: Observation, generator: torch.Generator) -> Variables:
        """Standard normal latents."""
        latents = torch.randn((observation.num_samples, self.dim), generator=generator, dtype=observation.dtype)
        return {"latents": latents.to(observation.device)}

    def carry(self, images: Tensor, variables: Variables, observation: Observation) -> Variables:
        """The earlier phase's latents."""
        return {"latents": _latents(variables).clone()}

    def images(self, variables: Variables, observation: Observation) -> Tensor:
        return _generated(observation, self.generator(variables["latents"].to(self._dtype)))

    @property
    def _dtype(self) -> torch.dtype:
        return next(self.generator.parameters()).dtype

    def labels(self, labels: Tensor, observation: Observation) -> Tensor:
        return labels

    def collapse(self, images: Tensor, labels: Tensor, observation: Observation) -> tuple[Tensor, Tensor]:
        return images, labels


@dataclass(frozen=True, kw_only=True)
class GeneratorWeights(Latents):
    """One generator per image, whose weights move while its latent stays (Jeon et al. 2021, second stage)."""

    def carry(self, images: Tensor, variables: Variables, observation: Observation) -> Variables:
        """A copy of the generator for every image, at the latents found so far."""
        own = dict(self.generator.named_parameters())
        stacked = {
            f"generator/{name}": value.detach().expand(observation.num_samples, *value.shape).clone()
            for name, value in own.items()
        }
        # A name with a leading underscore is carried along, but not moved.
        return {**stacked, "_latents": _latents(variables).to(self._dtype)}

    def start(self, observation: Observation, generator: torch.Generator) -> Variables:
        """Random latents, as in the first stage."""
        return self.carry(torch.empty(0), super().start(observation, generator), observation)

    def images(self, variables: Variables, observation: Observation) -> Tensor:
        """Every image from its own generator."""
        names = [name for name in variables if name.startswith("generator/")]
        pictures = []
        for index, latent in enumerate(variables["_latents"]):
            weights = {name.removeprefix("generator/"): variables[name][index] for name in names}
            pictures.append(functional_call(self.generator, weights, (latent[None],)))
        return _generated(observation, torch.cat(pictures))


def _latents(variables: Mapping[str, Tensor]) -> Tensor:
    for name in ("latents", "_latents"):
        if name in variables:
            return variables[name]
    raise ConfigError("a generator's phase can only follow another one: the phase before has no latents")


def _generated(observation: Observation, pixels: Tensor) -> Tensor:
    if pixels.shape[1:] != observation.image.shape:
        raise ConfigError(f"expected a generator of images {observation.image.shape}, got {tuple(pixels.shape[1:])}")
    return observation.image.normalize(pixels.to(observation.dtype))
