"""Layer weights q⁽ˡ⁾: uniform, ramps per kind of layer, and the paper's error-driven enhancement."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, Protocol

import torch
from torch import Tensor

from undelta.errors import ConfigError
from undelta.updates import Layer, Update


class WeightsPart(Protocol):
    """Any callable that gives the layers' weights for the current dummy update."""

    def __call__(self, layers: Sequence[Layer], dummy: Update, target: Update) -> Tensor:
        """The weights, (L,)."""


@dataclass(frozen=True, kw_only=True)
class Q:
    """The paper's parameter vector (AWA eq_Q): ramps' ends per kind, the enhanced weight, and two shares.

    ``other`` extends it to kinds of parameters that a ResNet does not have (class tokens, scales).
    """

    conv: float
    norm: float
    linear: float
    enhanced: float
    p_mean: float
    p_var: float
    other: float = 1.0

    def __post_init__(self) -> None:
        for key in ("conv", "norm", "linear", "enhanced", "other"):
            if not 0 < getattr(self, key) < math.inf:
                raise ConfigError(f"expected a weight {key} > 0, got {key}={getattr(self, key)}")
        for key in ("p_mean", "p_var"):
            if not 0 <= getattr(self, key) <= 1:
                raise ConfigError(f"expected 0 <= {key} <= 1, got {key}={getattr(self, key)}")


PAPER_Q = Q(conv=694.99, norm=898.67, linear=441.64, enhanced=789.51, p_mean=0.497, p_var=0.314)
"""Tuned by the paper for ResNet-18 at N=16, E=32, B=4 (AWA tab_search_ranges_BO)."""
SEARCH_RANGES: Mapping[str, tuple[float, float]] = MappingProxyType(
    {**dict.fromkeys(("conv", "norm", "linear", "enhanced"), (1, 1000)), **dict.fromkeys(("p_mean", "p_var"), (0, 0.5))}
)
"""Where the paper looked for it."""


@dataclass(frozen=True, kw_only=True)
class Uniform:
    """All layers weigh the same."""

    def __call__(self, layers: Sequence[Layer], dummy: Update, target: Update) -> Tensor:
        return _like(target).new_ones(len(layers))


MANY = 100_000


@dataclass(frozen=True, kw_only=True)
class Ramps:
    """Weights that change linearly with depth from 1 to q, per kind of layer (AWA eq_q_max_3kinds).

    An end below 1 makes a ramp that decreases, which the paper does not consider.
    """

    conv: float
    norm: float
    linear: float
    other: float = 1.0

    def __call__(self, layers: Sequence[Layer], dummy: Update, target: Update) -> Tensor:
        return _like(target).new_tensor(ramps(layers, vars(self)))


@dataclass(frozen=True, kw_only=True)
class ErrorEnhanced:
    """The paper's weights: ramps, and q_en for the layers with the largest errors (AWA eq_weight_aug)."""

    q: Q = PAPER_Q

    def __call__(self, layers: Sequence[Layer], dummy: Update, target: Update) -> Tensor:
        weights = _like(target).new_tensor(ramps(layers, vars(self.q)))
        # Replace, not multiply: the ramps already favor deep layers (AWA eq_weight_aug).
        weights[largest_errors(layers, dummy, target, self.q.p_mean, self.q.p_var)] = self.q.enhanced
        return weights


Family = Literal["cnn", "vgg", "resnet", "vit"]

FAMILIES: dict[Family, Q] = {
    "cnn": Q(conv=0.001, norm=1.0, linear=0.359, enhanced=9.67, p_mean=0.5, p_var=0.286),
    "vgg": Q(conv=1000.0, norm=1.0, linear=0.001, enhanced=1.0, p_mean=0.0, p_var=0.0),
    "resnet": Q(conv=40.29, norm=0.001, linear=0.00164, enhanced=1.0, p_mean=0.0, p_var=0.0),
    "vit": Q(conv=1000.0, norm=1000.0, linear=66.1, enhanced=1.0, p_mean=0.0, p_var=0.0, other=0.00489),
}
"""Tuned on public images, one network of each family; docs/tuning.md has commands and records."""

DEEP = 6  # convolutions from which a network without norms counts as a VGG


def family_of(layers: Sequence[Layer]) -> Family:
    """The family whose Q fits best, by the kinds of a network's layers."""
    count = Counter(layer.kind for layer in layers)
    if count["linear"] > count["conv"] and count["norm"]:
        return "vit"
    if count["norm"]:
        return "resnet"
    return "vgg" if count["conv"] >= DEEP else "cnn"


@dataclass(frozen=True, kw_only=True)
class ByFamily:
    """The paper's weights with the Q of the network's own family: ramps, or with the enhancement too."""

    enhanced: bool = True

    def __call__(self, layers: Sequence[Layer], dummy: Update, target: Update) -> Tensor:
        return weights_of(FAMILIES[family_of(layers)], enhanced=self.enhanced)(layers, dummy, target)


def weights_of(q: Q, *, enhanced: bool) -> Ramps | ErrorEnhanced:
    """A Q's ramps, or with the enhancement of the layers with the largest errors too."""
    if enhanced and min(q.p_mean, q.p_var) > 0:
        return ErrorEnhanced(q=q)
    return Ramps(conv=q.conv, norm=q.norm, linear=q.linear, other=q.other)


@dataclass(frozen=True, kw_only=True)
class Decaying:
    """1, e⁻¹, e⁻², … from the first layer on (DLFA: Dimitrov et al. 2022)."""

    def __call__(self, layers: Sequence[Layer], dummy: Update, target: Update) -> Tensor:
        return torch.exp(-torch.arange(len(layers)).to(_like(target)))


def ramps(layers: Sequence[Layer], ends: Mapping[str, float]) -> list[float]:
    """The weight of each layer, by its rank among the layers of its kind."""
    counts: dict[str, int] = {}
    for layer in layers:
        counts[layer.kind] = counts.get(layer.kind, 0) + 1
    ranks = dict.fromkeys(counts, 0)
    weights = []
    for layer in layers:
        end, count, rank = ends[layer.kind], counts[layer.kind], ranks[layer.kind]
        weights.append(end if count == 1 else (end - 1) / (count - 1) * rank + 1)
        ranks[layer.kind] += 1
    return weights


def largest_errors(layers: Sequence[Layer], dummy: Update, target: Update, p_mean: float, p_var: float) -> list[int]:
    """P = P_mean ∩ P_var: layers whose mean and variance both are among the most wrong (AWA eq_subsec_P)."""
    with torch.no_grad():
        means, variances = _moments(layers, dummy)
        target_means, target_variances = _moments(layers, target)
        # A layer with mean exactly zero would divide by it; the guard ranks it first, as its limit does.
        tiny = torch.finfo(means.dtype).tiny
        mean_errors = (means - target_means).abs() / target_means.abs().clamp_min(tiny)
        variance_errors = (variances - target_variances).abs() / target_variances.abs().clamp_min(tiny)
        count = len(layers)
        by_mean = mean_errors.argsort(descending=True, stable=True)[: math.ceil(p_mean * count)]
        by_variance = variance_errors.argsort(descending=True, stable=True)[: math.ceil(p_var * count)]
        return sorted(set(by_mean.tolist()) & set(by_variance.tolist()))


def _moments(layers: Sequence[Layer], update: Update) -> tuple[Tensor, Tensor]:
    """Mean and variance of each layer's entries, weight and bias together."""
    means, variances = [], []
    for layer in layers:
        parts = [update[name].reshape(-1) for name in layer.parameters]
        # torch.var_mean would do, but takes ten times as long on the CPU.
        count = sum(part.numel() for part in parts)
        sums = [part.sum() for part in parts]
        mean = torch.stack(sums).sum() / count
        means.append(mean)
        squares = [_squares(part, total, mean) for part, total in zip(parts, sums, strict=True)]
        variances.append(torch.stack(squares).sum() / count)
    return torch.stack(means), torch.stack(variances)


def _squares(values: Tensor, total: Tensor, mean: Tensor) -> Tensor:
    """Σ (v − mean)² with Σ v known; of many values, whose mean is small, without a copy of them."""
    if values.numel() < MANY:
        return (values - mean).square().sum()
    return (torch.dot(values, values) - mean * (2 * total - values.numel() * mean)).clamp_min(0)


def _like(update: Update) -> Tensor:
    return next(iter(update.values()))
