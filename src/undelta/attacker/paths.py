"""Replays along a learned path from θ to θ⁺: interpolations other than the paper's linear one.

The client's mean gradient along its hidden path is approximated by full-batch gradients at a few nodes of a path whose
shape is learned along with the images. SME is the case of one node, whose position on the straight line is learned;
NL-SME that of one node on a learned curve, PI-SME that of several.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from undelta.attacker.path_replay import PathReplay, along_path, held_by
from undelta.attacker.replay import Held
from undelta.attacker.replays import check_position, observed_update
from undelta.errors import ConfigError
from undelta.observation import Observation
from undelta.updates import Update, along

CONTROL, FACTOR = "control/", "factor/"  # and a parameter's name: variables as large as it


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
        return held_by(observation, observation.epochs if self.nodes is None else self.nodes)

    def __call__(self, observation: Observation, generator: torch.Generator) -> PathReplay:
        count = observation.epochs if self.nodes is None else self.nodes
        shift = 0.5 if self.middle else 0.0

        def shape(start: Update, update: Update, learned: Mapping[str, Tensor]) -> tuple[list[Update], Tensor]:
            places = [(index + shift) / count for index in range(count)]
            return [along(start, update, place) for place in places], _equal_shares(count, observation)

        return along_path(observation, shape, {}, {})


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
        return along_path(observation, shape, {"position": alpha}, {"position": (0.0, 1.0)})


@dataclass(frozen=True, kw_only=True)
class UnevenSteps:
    """Nodes on the straight line whose step lengths are learned: early epochs move farther than late ones."""

    nodes: int = 4

    def __post_init__(self) -> None:
        _check_nodes(self.nodes)

    def held(self, observation: Observation) -> Held:
        return held_by(observation, self.nodes)

    def __call__(self, observation: Observation, generator: torch.Generator) -> PathReplay:

        def shape(start: Update, update: Update, learned: Mapping[str, Tensor]) -> tuple[list[Update], Tensor]:
            # Equal shares of the training, learned lengths: node j sits in the middle of its learned stretch.
            lengths = learned["lengths"].softmax(0)
            middles = lengths.cumsum(0) - lengths / 2
            shares = torch.full_like(lengths, 1 / self.nodes)
            return [_point(start, update, middle) for middle in middles.unbind()], shares

        lengths = torch.zeros(self.nodes, dtype=observation.dtype)
        return along_path(observation, shape, {"lengths": lengths}, {})


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
        return held_by(observation, self.nodes, learned=1)

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
        return along_path(observation, shape, control, {}, ridges=_ridges(self.ridge, control))


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
        return held_by(observation, 1, learned=2)

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
        return along_path(
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


def _ridges(weight: float, variables: Mapping[str, Tensor]) -> dict[str, float]:
    return dict.fromkeys(variables, weight) if weight else {}


def _check_ridge(ridge: float) -> None:
    if not 0 <= ridge < math.inf:
        raise ConfigError(f"expected ridge >= 0, got ridge={ridge}")


def _check_nodes(nodes: int) -> None:
    if nodes < 1:
        raise ConfigError(f"expected nodes >= 1, got nodes={nodes}")


def _equal_shares(count: int, observation: Observation) -> Tensor:
    return torch.full((count,), 1 / count, dtype=observation.dtype, device=observation.device)


def _point(start: Update, update: Update, fraction: Tensor) -> Update:
    return {name: value + fraction * update[name] if name in update else value for name, value in start.items()}
