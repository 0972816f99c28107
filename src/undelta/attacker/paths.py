"""Replays along a learned path from θ to θ⁺: interpolations other than the paper's linear one.

The client's mean gradient along its hidden path is approximated by full-batch gradients at a few nodes of a path whose
shape is learned along with the images. SME is the case of one node, whose position on the straight line is learned;
NL-SME that of one node on a learned curve, PI-SME that of several.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from undelta.attacker.replay import NOTHING, Gradients, Held, Replayed, extended
from undelta.attacker.replays import check_position, decayed, length_or_one, observed_update, without
from undelta.engine import MomentPrior, Network, Room, Step, rollout
from undelta.errors import ConfigError, MissingKnowledge
from undelta.observation import Observation
from undelta.updates import Update, along, inner

Shape: TypeAlias = Callable[[Update, Update, Mapping[str, Tensor]], tuple[list[Update], Tensor]]
"""(θ, u, learned variables) -> the nodes' parameters and their shares of the path's length, differentiable."""

CONTROL, FACTOR = "control/", "factor/"  # and a parameter's name: variables as large as it
NO_RATES: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class PathReplay:
    """−η·E·B·Σ_j share_j ∇ℓ(θ_j), matched with u."""

    network: Network
    start: Update
    target: Update
    way: Update
    """From θ to θ⁺, along which the nodes lie: the target with what weight decay did."""
    length: float
    shape: Shape = field(repr=False)
    variables: Mapping[str, Tensor]
    bounds: Mapping[str, tuple[float, float]]
    rates: Mapping[str, float] = field(default_factory=dict)
    ridges: Mapping[str, float] = field(default_factory=dict)
    """Weights of the squared distances of variables from where they started."""

    def project(self, variables: Mapping[str, Tensor]) -> None:
        """Clamp to the bounds."""
        for name, (low, high) in self.bounds.items():
            variables[name].clamp_(low, high)

    def ridge(self, variables: Mapping[str, Tensor]) -> Tensor | None:
        """Σ weight·|v − v₀|²; nothing has moved where nothing is given."""
        if not self.ridges:
            return None
        now = variables or self.variables
        parts = [weight * (now[name] - self.variables[name]).square().sum() for name, weight in self.ridges.items()]
        return torch.stack(parts).sum()

    def __call__(
        self,
        images: Tensor,
        labels: Tensor,
        variables: Mapping[str, Tensor] = NOTHING,
        prior: MomentPrior | None = None,
    ) -> Replayed:
        """The quadrature of the path's gradients."""
        leaves = {name: value.detach().requires_grad_() for name, value in (variables or self.variables).items()}
        with torch.enable_grad():
            nodes, shares = self.shape(self.start, self.way, leaves)
        rates = shares.detach() * self.length
        step = [Step(images, labels, 1.0)]
        parts = [
            rollout(
                self.network,
                {name: value.detach() for name, value in node.items()},
                step,
                pull_start=bool(leaves),
                prior=prior and _shared(prior, len(nodes)),
                room=Room.of(self.network, step, share=1 / len(nodes)),
            )
            for node in nodes
        ]
        update = {
            name: torch.stack([rate * part.update[name] for rate, part in zip(rates, parts, strict=True)]).sum(0)
            for name in self.target
        }

        def pullback(cotangent: Update) -> Gradients:
            image_gradient = torch.zeros_like(images)
            label_gradient = torch.zeros_like(labels) if labels.is_floating_point() else None
            outputs: list[Tensor] = [shares]
            seen = [{name: part.update[name] for name in cotangent} for part in parts]
            outer = [self.length * torch.stack([inner(cotangent, part) for part in seen])]
            for node, rate, part in zip(nodes, rates, parts, strict=True):
                scaled = {name: rate * value for name, value in extended(cotangent, self.start).items()}
                pulled = part.pullback(scaled)
                image_gradient += pulled.images[0]
                if label_gradient is not None and pulled.labels[0] is not None:
                    label_gradient += pulled.labels[0]
                if pulled.start is not None:
                    moving = [name for name, value in node.items() if value.requires_grad]
                    outputs.extend(node[name] for name in moving)
                    outer.extend(pulled.start[name] for name in moving)
            if not leaves:
                return Gradients(image_gradient, label_gradient, {})
            pairs = [(out, grad) for out, grad in zip(outputs, outer, strict=True) if out.requires_grad]
            gradients = torch.autograd.grad(
                [out for out, _ in pairs], list(leaves.values()), [grad for _, grad in pairs], retain_graph=True
            )
            slopes = {
                name: slope + 2 * self.ridges.get(name, 0.0) * (leaves[name].detach() - self.variables[name])
                for name, slope in zip(leaves, gradients, strict=True)
            }
            return Gradients(image_gradient, label_gradient, slopes)

        return Replayed(update, torch.stack([part.penalty for part in parts]).sum(), pullback)


@dataclass(frozen=True, kw_only=True)
class StraightPath:
    """The paper's linear interpolation with all its epochs at once: a node at the start of each, θ + e/E·u.

    ``nodes`` is the number of stretches, E by default; ``middle`` puts the nodes in the middle of their stretches.
    """

    nodes: int | None = None
    middle: bool = False

    def __post_init__(self) -> None:
        if self.nodes is not None:
            _check_nodes(self.nodes)

    def held(self, observation: Observation) -> Held:
        return _held(observation, observation.epochs if self.nodes is None else self.nodes)

    def __call__(self, observation: Observation, generator: torch.Generator) -> PathReplay:
        count = observation.epochs if self.nodes is None else self.nodes
        shift = 0.5 if self.middle else 0.0

        def shape(start: Update, update: Update, learned: Mapping[str, Tensor]) -> tuple[list[Update], Tensor]:
            places = [(index + shift) / count for index in range(count)]
            return [along(start, update, place) for place in places], _equal_shares(count, observation)

        return _path(observation, shape, {}, {})


@dataclass(frozen=True, kw_only=True)
class LearnedPosition:
    """One node θ + α·u, α learned from ``position`` and kept in [0, 1] (SME: Zhu et al. 2023)."""

    position: float = 0.5

    def __post_init__(self) -> None:
        check_position(self.position)

    def __call__(self, observation: Observation, generator: torch.Generator) -> PathReplay:

        def shape(start: Update, update: Update, learned: Mapping[str, Tensor]) -> tuple[list[Update], Tensor]:
            alpha = learned["position"]
            return [_point(start, update, alpha)], torch.ones_like(alpha)[None]

        alpha = torch.tensor(self.position, dtype=observation.dtype)
        return _path(observation, shape, {"position": alpha}, {"position": (0.0, 1.0)})


@dataclass(frozen=True, kw_only=True)
class UnevenSteps:
    """Nodes on the straight line whose step lengths are learned: early epochs move farther than late ones."""

    nodes: int = 4

    def __post_init__(self) -> None:
        _check_nodes(self.nodes)

    def held(self, observation: Observation) -> Held:
        return _held(observation, self.nodes)

    def __call__(self, observation: Observation, generator: torch.Generator) -> PathReplay:

        def shape(start: Update, update: Update, learned: Mapping[str, Tensor]) -> tuple[list[Update], Tensor]:
            # Equal shares of the training, learned lengths: node j sits in the middle of its learned stretch.
            lengths = learned["lengths"].softmax(0)
            middles = lengths.cumsum(0) - lengths / 2
            shares = torch.full_like(lengths, 1 / self.nodes)
            return [_point(start, update, middle) for middle in middles.unbind()], shares

        lengths = torch.zeros(self.nodes, dtype=observation.dtype)
        return _path(observation, shape, {"lengths": lengths}, {})


@dataclass(frozen=True, kw_only=True)
class QuadraticPath:
    """Nodes on θ + s·u + 2s(1−s)·c: a parabola (Bézier curve) whose control point's offset c is learned.

    ``gauss`` puts them where Gauss and Legendre do, with their shares (PI-SME), and ``ridge`` keeps c small.
    """

    nodes: int = 3
    gauss: bool = False
    ridge: float = 0.0

    def __post_init__(self) -> None:
        _check_nodes(self.nodes)
        _check_ridge(self.ridge)

    def held(self, observation: Observation) -> Held:
        return _held(observation, self.nodes)

    def __call__(self, observation: Observation, generator: torch.Generator) -> PathReplay:

        shares = _equal_shares(self.nodes, observation)
        places = [(index + 0.5) / self.nodes for index in range(self.nodes)]
        if self.gauss:
            ordinates, weights = np.polynomial.legendre.leggauss(self.nodes)  # on [-1, 1], where weights sum to 2
            places, shares = ((ordinates + 1) / 2).tolist(), shares.new_tensor(weights / 2)

        def shape(start: Update, update: Update, learned: Mapping[str, Tensor]) -> tuple[list[Update], Tensor]:
            points = []
            for s in places:
                line = along(start, update, s)
                bends = {name: 2 * s * (1 - s) * learned[CONTROL + name] for name in line}
                points.append({name: value + bends[name] for name, value in line.items()})
            return points, shares

        _, start, _ = observed_update(observation)
        control = {CONTROL + name: torch.zeros_like(value) for name, value in start.items()}
        return _path(observation, shape, control, {}, ridges=_ridges(self.ridge, control))


@dataclass(frozen=True, kw_only=True)
class LearnedCurve:
    """One node θ + d·(t·u + 2t(1−t)·c), with t, the control point's offset c and a factor d learned (NL-SME).

    That is a quadratic Bézier curve from θ to θ⁺ (Xia et al. 2025). There is a c and a d for each parameter, kept near
    0 and 1 by ``ridge``.
    """

    position: float = 0.5
    position_rate: float = 1e-2
    control_rate: float = 1e-3
    factor_rate: float = 1e-4
    ridge: float = 0.01

    def __post_init__(self) -> None:
        check_position(self.position)
        _check_ridge(self.ridge)

    def held(self, observation: Observation) -> Held:
        return _held(observation, 3)  # the node, and two variables as large as it, with their slopes

    def __call__(self, observation: Observation, generator: torch.Generator) -> PathReplay:

        def shape(start: Update, update: Update, learned: Mapping[str, Tensor]) -> tuple[list[Update], Tensor]:
            t, node = learned["position"], Update()
            for name, value in start.items():
                bend = 2 * t * (1 - t) * learned[CONTROL + name]
                way = bend + t * update[name] if name in update else bend
                node[name] = value + learned[FACTOR + name] * way
            return [node], torch.ones_like(t)[None]

        _, start, _ = observed_update(observation)
        control = {CONTROL + name: torch.zeros_like(value) for name, value in start.items()}
        factor = {FACTOR + name: torch.ones_like(value) for name, value in start.items()}
        t = torch.tensor(self.position, dtype=observation.dtype)
        return _path(
            observation,
            shape,
            {"position": t, **control, **factor},
            {"position": (0.0, 1.0)},
            rates={
                "position": self.position_rate,
                **dict.fromkeys(control, self.control_rate),
                **dict.fromkeys(factor, self.factor_rate),
            },
            ridges=_ridges(self.ridge, control) | _ridges(self.ridge, factor),
        )


def _path(
    observation: Observation,
    shape: Shape,
    variables: Mapping[str, Tensor],
    bounds: Mapping[str, tuple[float, float]],
    *,
    rates: Mapping[str, float] = NO_RATES,
    ridges: Mapping[str, float] = NO_RATES,
) -> PathReplay:
    network, start, update = observed_update(observation)
    if observation.training.adaptive:
        raise MissingKnowledge(
            f"this attack matches a mean gradient along a learned path, which {observation.training.optimizer} does "
            "not send. Use strongest, awa or ig, which divide gradients as the client did."
        )
    return PathReplay(
        network=network,
        start=start,
        target=without(update, decayed(observation, start, update)),
        way=update,
        length=length_or_one(observation),
        shape=shape,
        variables={name: value.to(observation.device) for name, value in variables.items()},
        bounds=bounds,
        rates=rates,
        ridges=ridges,
    )


def _ridges(weight: float, variables: Mapping[str, Tensor]) -> dict[str, float]:
    return dict.fromkeys(variables, weight) if weight else {}


def _check_ridge(ridge: float) -> None:
    if not 0 <= ridge < math.inf:
        raise ConfigError(f"expected ridge >= 0, got ridge={ridge}")


def _held(observation: Observation, nodes: int) -> Held:
    """Every node's parameters, their gradient, and the gradient at its share."""
    return Held(observation.num_samples, nodes, 3 * nodes)


def _check_nodes(nodes: int) -> None:
    if nodes < 1:
        raise ConfigError(f"expected nodes >= 1, got nodes={nodes}")


def _shared(prior: MomentPrior, count: int) -> MomentPrior:
    """A prior that ``count`` nodes have in common."""
    return lambda moments: prior(moments) / count


def _equal_shares(count: int, observation: Observation) -> Tensor:
    return torch.full((count,), 1 / count, dtype=observation.dtype, device=observation.device)


def _point(start: Update, update: Update, fraction: Tensor) -> Update:
    return {name: value + fraction * update[name] if name in update else value for name, value in start.items()}
