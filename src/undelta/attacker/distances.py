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
    tiny = torch.finfo(product.dtype).tiny
    sizes = [_weighted(update, update, weights).clamp_min(tiny).sqrt() for update in (dummy, target)]
    return 1 - product / (sizes[0] * sizes[1])


def l2(dummy: Update, target: Update, weights: Weights) -> Tensor:
    """Σ_l q_l ‖d_l − t_l‖² (DLG, with layer weights)."""
    gap = {name: dummy[name] - target[name] for name in dummy}
    return _weighted(gap, gap, weights)


def relative_l2(dummy: Update, target: Update, weights: Weights) -> Tensor:
    """l2 in units of the target's own (weighted) square, so that regularizers keep their meaning at any η."""
    return l2(dummy, target, weights) / _floor(_weighted(target, target, weights))


def l2_norms(dummy: Update, target: Update, weights: Weights) -> Tensor:
    """Σ q ‖d − t‖₂ / ‖t‖₂ over parameters: norms, not squares (GradInversion, relative to the target)."""
    terms = [
        weights[name]
        * (dummy[name] - target[name]).norm()
        / (target[name].norm() + torch.finfo(dummy[name].dtype).tiny)
        for name in dummy
    ]
    return torch.stack(terms).sum() / len(terms)


def l1(dummy: Update, target: Update, weights: Weights) -> Tensor:
    """Σ_l q_l |d_l − t_l|₁ in units of the target's own."""
    gap = torch.stack([weights[name] * (dummy[name] - target[name]).abs().sum() for name in dummy]).sum()
    size = torch.stack([weights[name] * target[name].abs().sum() for name in dummy]).sum()
    return gap / _floor(size)


def gaussian_kernel(dummy: Update, target: Update, weights: Weights) -> Tensor:
    """Σ q (1 − exp(−‖d − t‖² / (n σ²))) with σ² = Var(t) (SAPAG: Wang et al. 2020).

    The kernel's width follows each parameter's own variance. ‖·‖² is taken per entry (n of them): summed, as the paper
    may be read, every kernel of a real network is saturated at its start and has no gradient.
    """
    terms = []
    for name in dummy:
        variance = target[name].var(unbiased=False).clamp_min(torch.finfo(dummy[name].dtype).tiny)
        terms.append(weights[name] * (1 - torch.exp(-(dummy[name] - target[name]).square().mean() / variance)))
    return torch.stack(terms).sum() / torch.stack([weights[name] for name in dummy]).sum()


def larger_entries(dummy: Update, target: Update, weights: Weights) -> Tensor:
    """Σ q (|d − t|₁ / |t|₁ + 1 − cos(d, t)) over parameters, in the larger half of d's entries (FedLeak)."""
    terms = []
    for name, value in dummy.items():
        sizes = value.detach().abs().flatten()
        kept = value.detach().abs() >= sizes.kthvalue(len(sizes) // 2 + 1).values
        d, t = value[kept], target[name][kept]
        lengths = [_floor(torch.dot(each, each)).sqrt() for each in (d, t)]
        gap = (d - t).abs().sum() / _floor(t.abs().sum())
        terms.append(weights[name] * (gap + 1 - torch.dot(d, t) / (lengths[0] * lengths[1])))
    return torch.stack(terms).sum()


def with_cotangent(distance: Distance, dummy: Update, target: Update, weights: Weights) -> tuple[Tensor, Update]:
    """A distance and its gradient by the dummy update; the cosine's in closed form, since parameters are many."""
    if distance is cosine:
        return _cosine_with_cotangent(dummy, target, weights)
    leaves = {name: value.detach().requires_grad_() for name, value in dummy.items()}
    with torch.enable_grad():
        value = distance(leaves, target, weights)
        gradients = torch.autograd.grad(value, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return value.detach(), dict(zip(leaves, gradients, strict=True))


def _cosine_with_cotangent(dummy: Update, target: Update, weights: Weights) -> tuple[Tensor, Update]:
    """∂/∂d = q (⟨d, t⟩_q d / |d|_q² − t) / (|d|_q |t|_q)."""
    product = _weighted(dummy, target, weights)
    tiny = torch.finfo(product.dtype).tiny
    square, other = (_weighted(update, update, weights).clamp_min(tiny) for update in (dummy, target))
    size = square.sqrt() * other.sqrt()
    # A zero dummy update has no direction to turn: there the clamp has no slope, as autograd says.
    turn = torch.where(square > tiny, product / square, torch.zeros_like(product))
    factors = torch.stack([weights[name] for name in dummy]) / size
    cotangent = {
        name: (target[name] * -factor).addcmul_(value, factor * turn)
        for (name, value), factor in zip(dummy.items(), factors.unbind(), strict=True)
    }
    return 1 - product / size, cotangent


def mismatch(dummy: Update, target: Update) -> float:
    """The unweighted cosine distance: the attacker's own measure of success (f of AWA eq_obj_func_BO_f_Q)."""
    with torch.no_grad():
        one = next(iter(dummy.values())).new_ones(())
        return float(cosine(dummy, target, dict.fromkeys(dummy, one)).clamp_min(0))  # rounding goes below


def _floor(size: Tensor) -> Tensor:
    """A size to divide by: far enough from zero that weights up to a thousand do not overflow."""
    return size.clamp_min(1e6 * torch.finfo(size.dtype).tiny)


def _weighted(a: Update, b: Update, weights: Weights) -> Tensor:
    # float32 inner products are scaled by up to 1000 and summed over layers; they stay far from overflow.
    products = [torch.dot(a[name].reshape(-1), b[name].reshape(-1)) for name in a]
    return torch.dot(torch.stack(products), torch.stack([weights[name] for name in a]))
