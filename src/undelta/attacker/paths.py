"""Replays along a learned path from θ to θ⁺: interpolations other than the paper's linear one.

The client's mean gradient along its hidden path is approximated by full-batch gradients at a few nodes of a path whose
shape is learned along with the images. SME is the case of one node, whose position on the straight line is learned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

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

    def project(self, variables: Mapping[str, Tensor]) -> None:
        """Clamp to the bounds."""
        for name, (low, high) in self.bounds.items():
            variables[name].clamp_(low, high)

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
            return Gradients(image_gradient, label_gradient, dict(zip(leaves, gradients, strict=True)))

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
    """Nodes on θ + s·u + 2s(1−s)·c: a parabola (Bézier curve) whose control point's offset c is learned."""

    nodes: int = 3

    def __post_init__(self) -> None:
        _check_nodes(self.nodes)

    def held(self, observation: Observation) -> Held:
        return _held(observation, self.nodes)

    def __call__(self, observation: Observation, generator: torch.Generator) -> PathReplay:

        def shape(start: Update, update: Update, learned: Mapping[str, Tensor]) -> tuple[list[Update], Tensor]:
            bend = {name.removeprefix("control/"): value for name, value in learned.items()}
            points = []
            for s in [(index + 0.5) / self.nodes for index in range(self.nodes)]:
                line = along(start, update, s)
                points.append({name: value + 2 * s * (1 - s) * bend[name] for name, value in line.items()})
            return points, _equal_shares(self.nodes, observation)

        _, start, _ = observed_update(observation)
        control = {f"control/{name}": torch.zeros_like(value) for name, value in start.items()}
        return _path(observation, shape, control, {})


def _path(
    observation: Observation,
    shape: Shape,
    variables: Mapping[str, Tensor],
    bounds: Mapping[str, tuple[float, float]],
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
    )


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
