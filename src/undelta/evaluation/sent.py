"""What a client sends of its update, as far as a bound can follow it: a linear map at the truth, and noise.

A `noise` defense is noise. Quantization is taken as uniform noise of variance step²/12, and so is the rounding of
float32. DP-SGD's noise is summed over the steps. Clipping scales, and removes the update's own direction; what is
pruned is not sent. Other defenses are refused, since no bound here would be about them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from undelta.client.defenses import Defense, DpSgd
from undelta.client.defenses.clipping import Clipping
from undelta.client.defenses.noise import Noise, PureNoise
from undelta.client.defenses.pruning import Pruning, TopK
from undelta.client.defenses.quantization import EXACT, Quantization
from undelta.client.defenses.withholding import Withholding
from undelta.errors import ConfigError
from undelta.observation import Observation
from undelta.updates import Update, inner

Map: TypeAlias = Callable[[Update], Update]


@dataclass(frozen=True, kw_only=True)
class Sent:
    """Noise of a deviation for every entry of the update, after symmetric linear maps of it."""

    deviation: Update = field(repr=False)
    """In the update's shapes; infinite for what is not sent."""
    source: str
    """Where the noise is from, in words."""
    maps: tuple[Map, ...] = field(default=(), repr=False)
    """In the order in which they act."""
    notes: tuple[str, ...] = ()
    """What is only nearly so."""

    def alone(self, source: str) -> Sent:
        """With noise of deviation one, in place of its own, wherever something is sent."""
        ones = {name: torch.where(value.isinf(), value, 1.0) for name, value in self.deviation.items()}
        return replace(self, deviation=ones, source=source)

    def whitened(self, tangent: Update) -> Update:
        """What becomes of a change of the update, in units of the noise."""
        for one in self.maps:
            tangent = one(tangent)
        return {name: value / self.deviation[name] for name, value in tangent.items()}

    def transposed(self, cotangent: Update) -> Update:
        """The way back through `whitened`."""
        cotangent = {name: value / self.deviation[name] for name, value in cotangent.items()}
        for one in reversed(self.maps):
            cotangent = one(cotangent)
        return cotangent

    @property
    def size(self) -> float:
        """The root mean square of the noise over all entries that are sent; zero where none is."""
        known = torch.cat([value[value.isfinite()].flatten() for value in self.deviation.values()])
        return float(known.square().mean().sqrt()) if len(known) else 0.0


def sent(update: Update, observation: Observation, defenses: Sequence[Defense]) -> Sent:
    """What is sent of a replayed update under these defenses, rounded to the observation's floats.

    Args:
        update: The update before any defense.
        observation: What was received, for the size of its rounding, and the training that was assigned.
        defenses: In the order in which they act.
    """
    variance = {name: torch.zeros_like(value) for name, value in update.items()}
    sources, maps, notes = list[str](), list[Map](), list[str]()
    for defense in defenses:
        match defense:
            case Clipping():
                update, variance, map_ = _clipped(defense, update, variance)
                maps.append(map_)
                notes.append("singular values and the update's size are those before clipping")
            case Noise():
                deviation = defense.scale * (1.0 if defense.bound is None else defense.bound)
                variance = _plus(variance, deviation**2)
                sources.append(f"the noise defense, {deviation:.3g} on every entry")
            case Quantization() if defense.bits != EXACT:
                variance = _quantized(defense, update, variance)
                sources.append(f"quantization to {defense.bits} bits")
                notes.append("quantization is taken as independent noise of variance step²/12")
            case Pruning() | TopK():
                update = defense.protect(update, torch.Generator())
                hidden = {name: value == 0 for name, value in update.items()}
                variance = {name: value.masked_fill(hidden[name], math.inf) for name, value in variance.items()}
                notes.append("which entries are sent is taken as given; what their choice reveals is not counted")
            case PureNoise():
                variance = {name: torch.full_like(value, math.inf) for name, value in variance.items()}
            case DpSgd():
                deviation = _private(defense, observation)
                variance = _plus(variance, deviation**2)
                sources.append(f"DP-SGD's noise, {deviation:.3g} on every entry")
                notes.append(
                    "DP-SGD's noise is summed over the steps as if the path were straight, and its clipping, which "
                    "mostly takes information away, is left out"
                )
            case Quantization() | Withholding():
                pass
            case _:
                name = type(defense).__name__.lower()
                raise ConfigError(f"expected defenses that act on the update as a map and noise, got {name}")
    if not sources:
        bits = torch.finfo(observation.dtype).bits
        sources.append(f"rounding to float{bits} alone, taken as independent noise in every step")
    rounding = _rounding(update, observation)
    deviations = {name: (value + rounding[name]).sqrt() for name, value in variance.items()}
    return Sent(deviation=deviations, source=" and ".join(sources), maps=tuple(maps), notes=tuple(notes))


def _plus(variance: Update, more: float) -> Update:
    return {name: value + more for name, value in variance.items()}


def _clipped(defense: Clipping, update: Update, variance: Update) -> tuple[Update, Update, Map]:
    """u/|u|·c for a long u has the derivative c/|u| (I − u uᵀ/|u|²)."""
    parts = [{name: value} for name, value in update.items()] if defense.per_tensor else [update]
    long = [part for part in parts if float(inner(part, part).sqrt()) > defense.norm]
    factors = {name: float(defense.norm / inner(part, part).sqrt()) for part in long for name in part}
    scaled = {name: value * factors.get(name, 1.0) for name, value in update.items()}
    variance = {name: value * factors.get(name, 1.0) ** 2 for name, value in variance.items()}
    return scaled, variance, partial(_turned, long, factors)


def _turned(long: Sequence[Update], factors: dict[str, float], tangent: Update) -> Update:
    tangent = {name: value * factors.get(name, 1.0) for name, value in tangent.items()}
    for part in long:
        along = inner(part, tangent) / inner(part, part)
        tangent |= {name: tangent[name] - along * value for name, value in part.items()}
    return tangent


def _quantized(defense: Quantization, update: Update, variance: Update) -> Update:
    if defense.bits == 1:
        raise ConfigError("expected quantization to 2 bits or more, which is about noise, got bits=1; give --sigma")
    steps = {name: (value.max() - value.min()) / (2**defense.bits - 1) for name, value in update.items()}
    return {name: value + steps[name] ** 2 / 12 for name, value in variance.items()}


def _private(defense: DpSgd, observation: Observation) -> float:
    """Σ over the steps of (η z C/(N/B))², as a deviation."""
    training = observation.training
    if not training.plain:
        raise ConfigError("expected plain SGD under dp_sgd, whose steps add their noise up, got another optimizer")
    each = defense.noise_multiplier * defense.norm * training.batches / observation.num_samples
    return each * math.sqrt(sum(rate**2 for rate in training.rates))


def _rounding(update: Update, observation: Observation) -> Update:
    """The variance of storing every step's parameters in the floats that are sent, and of a gradient's own floats."""
    training, precise = observation.training, torch.finfo(observation.dtype).eps
    count = training.epochs * training.batches

    def spacing(values: Tensor) -> Tensor:
        sizes = values.abs()
        return (torch.nextafter(sizes, torch.full_like(sizes, math.inf)) - sizes).double()

    return {
        name: (count * spacing(observation.initial[name] + value.to(observation.dtype)).square()) / 12
        + (precise * value).square().mean()
        for name, value in update.items()
    }
