"""The replay along a path from θ to θ⁺: full-batch gradients at its nodes, and the way back to images and to the path.

`paths` has the shapes that a path may have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

import torch
from torch import Tensor

from undelta.attacker.replay import NOTHING, Gradients, Held, Replayed, extended
from undelta.attacker.replays import decayed, length_or_one, observed_update, without
from undelta.engine import MomentPrior, Network, Room, Step, rollout
from undelta.errors import MissingKnowledge
from undelta.observation import Observation
from undelta.updates import Update, inner

Shape: TypeAlias = Callable[[Update, Update, Mapping[str, Tensor]], tuple[list[Update], Tensor]]
"""(θ, u, learned variables) -> the nodes' parameters and their shares of the path's length, differentiable."""

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


def along_path(
    observation: Observation,
    shape: Shape,
    variables: Mapping[str, Tensor],
    bounds: Mapping[str, tuple[float, float]],
    *,
    rates: Mapping[str, float] = NO_RATES,
    ridges: Mapping[str, float] = NO_RATES,
) -> PathReplay:
    """The replay along a path of this shape, prepared for an observation."""
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


def held_by(observation: Observation, nodes: int, *, learned: int = 0) -> Held:
    """Every node's parameters, their gradient, and the gradient at its share.

    Of each learned variable that is as large as the model also its start, its value, its gradient and Adam's averages.
    """
    return Held(observation.num_samples, nodes, 3 * nodes + 5 * learned)


def _shared(prior: MomentPrior, count: int) -> MomentPrior:
    """A prior that ``count`` nodes have in common."""
    return lambda moments: prior(moments) / count
