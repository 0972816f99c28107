"""Model updates, as dictionaries of named tensors, and the layers they fall into."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from undelta.errors import ConfigError

State: TypeAlias = dict[str, Tensor]
"""Parameters and buffers by name, as in ``nn.Module.state_dict``."""

Update: TypeAlias = dict[str, Tensor]
"""A change of the parameters (no buffers), by name."""

Kind: TypeAlias = Literal["conv", "norm", "linear", "other"]

_NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.LocalResponseNorm)
_LINEAR = (nn.Linear, nn.Bilinear, nn.Embedding, nn.EmbeddingBag, nn.MultiheadAttention)


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One module's own parameters (weight and bias together): the unit that layer weights apply to."""

    name: str
    kind: Kind
    parameters: tuple[str, ...]


def layers_of(model: nn.Module) -> tuple[Layer, ...]:
    """The layers of any module in registration order, each parameter in exactly one layer.

    A module that occurs several times, or a parameter tied to another one, counts once, under its first
    name; that is also how ``named_parameters`` names it. Embeddings and attention projections count as
    linear. Parameters that belong to no known kind of module (class tokens, scales) are ``other``.
    """
    seen: set[int] = set()
    layers = []
    for name, module in model.named_modules():
        own = [
            (f"{name}.{key}" if name else key, id(parameter))
            for key, parameter in module.named_parameters(recurse=False)
        ]
        fresh = tuple(key for key, identity in own if identity not in seen)
        seen.update(identity for _, identity in own)
        if fresh:
            layers.append(Layer(name=name, kind=_kind(module), parameters=fresh))
    return tuple(layers)


def layers_within(layers: Iterable[Layer], names: Container[str]) -> tuple[Layer, ...]:
    """The layers of which some parameters are among these, with those parameters only."""
    parts = (replace(layer, parameters=tuple(name for name in layer.parameters if name in names)) for layer in layers)
    return tuple(layer for layer in parts if layer.parameters)


def _kind(module: nn.Module) -> Kind:
    if isinstance(module, _ConvNd):
        return "conv"
    if isinstance(module, _NORMS):
        return "norm"
    if isinstance(module, _LINEAR):
        return "linear"
    return "other"


def parameters_of(model: nn.Module) -> Update:
    """The parameters that training moves (frozen ones are left out), detached, by name."""
    return {name: value.detach() for name, value in model.named_parameters() if value.requires_grad}


def freeze(model: nn.Module, trained: Sequence[str]) -> None:
    """Freeze all parameters but those of these names, or within modules of these names; nothing if there are none."""
    names = [name for name, _ in model.named_parameters()]
    for word in trained:
        if not any(_within(name, word) for name in names):
            raise ConfigError(f"trained: the model has no parameter or module {word!r}; it has {', '.join(names[:6])}")
    for name, parameter in model.named_parameters():
        if trained and not any(_within(name, word) for word in trained):
            parameter.requires_grad_(False)


def _within(name: str, word: str) -> bool:
    return name == word or name.startswith(f"{word}.")


def difference(after: Mapping[str, Tensor], before: Mapping[str, Tensor], names: Iterable[str]) -> Update:
    """After minus before, for the given names."""
    return {name: after[name] - before[name] for name in names}


def along(start: Mapping[str, Tensor], update: Update, fraction: float) -> Update:
    """The point θ + fraction·u on the straight line from θ (AWA eq_theta_approximate).

    Where the update is not observed, the point stays at θ.
    """
    if fraction == 0:
        return dict(start)
    return {name: value + fraction * update[name] if name in update else value for name, value in start.items()}


def scaled(update: Update, factor: float) -> Update:
    """Every entry times ``factor``."""
    if factor == 1:
        return update
    return {name: factor * tensor for name, tensor in update.items()}


def inner(a: Update, b: Update) -> Tensor:
    """The inner product over all entries."""
    return torch.stack([torch.dot(a[name].reshape(-1), b[name].reshape(-1)) for name in a]).sum()


def in_levels(values: Tensor, bits: int) -> Tensor:
    """The values rounded to 2**bits uniform levels between their extremes."""
    low, high = values.min(), values.max()
    step = (high - low) / (2**bits - 1)
    return torch.where(step > 0, low + ((values - low) / step.clamp_min(1e-38)).round() * step, values)


def noise_like(update: Update, generator: torch.Generator) -> Update:
    """Gaussian noise as long as the update, tensor by tensor."""
    return {name: _as_long(gaussian(value, generator), value) for name, value in update.items()}


def gaussian(like: Tensor, generator: torch.Generator) -> Tensor:
    """Normal random numbers in the shape of a tensor; drawn on the CPU, so that they are the same everywhere."""
    return torch.randn(like.shape, generator=generator, dtype=like.dtype).to(like.device)


def _as_long(noise: Tensor, value: Tensor) -> Tensor:
    size: Tensor = value.norm() / noise.norm().clamp_min(torch.finfo(value.dtype).tiny)
    return noise * size
