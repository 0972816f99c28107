"""The singular values of J = ∂u/∂x: how far each direction of pixel space moves the update.

A direction with singular value s is fixed to within σ/s by an update with noise of deviation σ. Lanczos' method on JᵀJ
finds the largest values; from random starts its quadrature estimates the density of all of them (Ubaru, Chen and Saad
2017).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from undelta.evaluation.jacobian import Jacobian
from undelta.evaluation.lanczos import Keep, Krylov, resumed
from undelta.seeding import stream

LEADING = 5  # singular values that are reported, of either end
FIXED = 0.1  # of the range of a pixel: a direction that noise moves by less counts as fixed


@dataclass(frozen=True, kw_only=True)
class Spectrum:
    """What Lanczos' method found of J's singular values, in units of the update per unit of a pixel."""

    leading: tuple[float, ...]
    """The largest ones, falling."""
    smallest: float
    """An upper bound of the smallest one; zero where J is known to have a kernel."""
    sensitivity: tuple[float, ...]
    """Of each image: the root mean square of the singular values of its own columns."""
    directions: int
    """Of pixel space, N·C·H·W."""
    entries: int
    """Of the update."""
    nodes: Tensor = field(repr=False)
    """(P, k), singular values, from each of P random starts."""
    weights: Tensor = field(repr=False)
    """(P, k), the share of all directions that each stands for: the density."""

    def above(self, value: float) -> float:
        """The number of directions with singular values above this one, about.

        At a node, half of its weight counts (the truth is between none and all of it); between nodes, on a logarithmic
        scale, the count is interpolated.
        """
        shares = [_share(nodes, weights, value) for nodes, weights in zip(self.nodes, self.weights, strict=True)]
        return sum(shares) / len(shares) * self.directions

    def fixed(self, deviation: float) -> float:
        """The number of directions that an update with this noise fixes to within `FIXED`, about."""
        return self.above(deviation / FIXED)


@dataclass(frozen=True, kw_only=True)
class Alone:
    """The singular values of one image's own columns of J: what the update tells of it if all others are known."""

    leading: tuple[float, ...]
    """The largest ones, falling."""
    trailing: tuple[float, ...]
    """Upper bounds of the smallest ones, rising."""
    fixed: Tensor = field(repr=False)
    """(C, H, W), of length one: the direction of the largest."""
    free: Tensor = field(repr=False)
    """(C, H, W), of length one: a direction that moves the update by exactly the first of the trailing values."""

    @property
    def values(self) -> dict[str, tuple[float, ...]]:
        """For a file."""
        return {"leading": self.leading, "trailing_at_most": self.trailing}


def alone(jacobian: Jacobian, image: int, *, products: int = 20, seed: int = 0, keep: Keep | None = None) -> Alone:
    """The singular values of one image's own columns of J, from so many products.

    Lanczos' method has the largest ones soon. Of the smallest it has upper bounds, since its values interlace; each is
    the slope |Jw| along a direction w that it knows.
    """
    shape = jacobian.shape[1:]

    def gram(vector: Tensor) -> Tensor:
        pixels = vector.new_zeros(jacobian.shape)
        pixels[image] = vector.view(shape)
        return jacobian.pull(jacobian.push(pixels))[image].flatten()

    generator = stream("evaluation", "spectrum", seed, "image", image)
    signs = torch.randint(0, 2, (math.prod(shape),), generator=generator) * 2.0 - 1
    found = resumed(gram, signs.to(jacobian.std), products, f"image {image}", keep)
    squares, vectors = found.ritz()
    values = squares.sqrt()
    fixed, free = (vectors[:, place] @ found.basis[: len(values)] for place in (-1, 0))
    return Alone(
        leading=tuple(values.flip(0)[:LEADING].tolist()),
        trailing=tuple(values[:LEADING].tolist()),
        fixed=fixed.view(shape).cpu(),
        free=free.view(shape).cpu(),
    )


def _share(nodes: Tensor, weights: Tensor, value: float) -> float:
    """The share of directions above a value, from nodes that rise."""
    if value < float(nodes[0]):
        return 1.0
    if value >= float(nodes[-1]):
        return 0.0
    after = int((nodes <= value).sum())  # the first node above it
    counted = weights.flip(0).cumsum(0).flip(0) - weights / 2
    low, high = (max(float(node), 1e-300) for node in nodes[after - 1 : after + 1])
    part = math.log(max(value, 1e-300) / low) / math.log(high / low) if high > low else 1.0
    return float(counted[after - 1] + part * (counted[after] - counted[after - 1]))


def spectrum(
    jacobian: Jacobian, *, probes: int = 2, products: int = 20, seed: int = 0, keep: Keep | None = None
) -> Spectrum:
    """The spectrum of J, from ``products`` products with JᵀJ for each of ``probes`` random starts."""
    size, count = math.prod(jacobian.shape), jacobian.shape[0]

    def gram(vector: Tensor) -> Tensor:
        return jacobian.pull(jacobian.push(vector.view(jacobian.shape))).flatten()

    found, sensitivity = list[Krylov](), torch.zeros(count, dtype=torch.float64)
    for probe in range(probes):
        signs = torch.randint(0, 2, (size,), generator=stream("evaluation", "spectrum", seed, probe)) * 2.0 - 1
        start = signs.to(jacobian.std)
        space = resumed(gram, start, products, f"spectrum {probe}", keep)
        parts = (start * space.first_product).view(count, -1).sum(1)  # each a trace of the image's own block, about
        sensitivity += (parts.cpu() / (size // count)).clamp_min(0) / probes
        found.append(space)
    steps = min(len(space.diagonal) for space in found)
    pairs = [space.cut(steps).ritz() for space in found]
    nodes = torch.stack([values.sqrt() for values, _ in pairs]).cpu()
    entries = sum(value.numel() for value in jacobian.update.values())
    return Spectrum(
        leading=tuple(max(space.ritz()[0].sqrt().flip(0)[:LEADING].tolist() for space in found)),
        smallest=0.0 if entries < size else float(nodes.min()),
        sensitivity=tuple(sensitivity.sqrt().tolist()),
        directions=size,
        entries=entries,
        nodes=nodes,
        weights=torch.stack([vectors[0].square() for _, vectors in pairs]).cpu(),
    )
