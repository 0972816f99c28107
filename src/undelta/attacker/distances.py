"""Distances between a dummy and an observed update, layer by layer weighted (Dist_Q in AWA eq_weighted_loss)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
from torch import Tensor

from undelta.updates import Update

Weights: TypeAlias = Mapping[str, Tensor]
"""The weight of every parameter's layer, as scalars, by parameter name."""

Distance: TypeAlias = Callable[[Update, Update, Weights], Tensor]


def cosine(dummy: Update, target: Update, weights: Weights) -> Tensor:
    """1 − ⟨d, t⟩_q / (|d|_q |t|_q), layers weighted by q (AWA eq_weighted_cosine_distance).

    Scaling all weights alike changes nothing. A zero update has no direction: its distance is 1.
    """
    product = _weighted(dummy, target, weights)
    squares = _weighted(dummy, dummy, weights) * _weighted(target, target, weights)
    tiny = torch.finfo(squares.dtype).tiny
    return 1 - product / squares.clamp_min(tiny).sqrt()


def l2(dummy: Update, target: Update, weights: Weights) -> Tensor:
    """Σ_l q_l ‖d_l − t_l‖² (DLG, with layer weights)."""
    gap = {name: dummy[name] - target[name] for name in dummy}
    return _weighted(gap, gap, weights)


def mismatch(dummy: Update, target: Update) -> float:
    """The unweighted cosine distance: the attacker's own measure of success (f of AWA eq_obj_func_BO_f_Q)."""
    with torch.no_grad():
        one = next(iter(dummy.values())).new_ones(())
        return float(cosine(dummy, target, dict.fromkeys(dummy, one)))


def _weighted(a: Update, b: Update, weights: Weights) -> Tensor:
    # float32 inner products are scaled by up to 1000 and summed over layers; they stay far from overflow.
    products = [torch.dot(a[name].reshape(-1), b[name].reshape(-1)) for name in a]
    return torch.dot(torch.stack(products), torch.stack([weights[name] for name in a]))
