"""Soteria (Sun et al. 2021): hide the entries of the representation that say most about the image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from undelta.client.defenses.checks import check_range
from undelta.client.defenses.defense import InTraining
from undelta.client.sgd import loss_of, trained
from undelta.errors import ConfigError
from undelta.training import LocalTraining

MOST_PIXELS = 2**18  # of images and entries together in one sweep


@dataclass(frozen=True, kw_only=True)
class Soteria(InTraining):
    """Prune a share ``ratio`` of the representation r, the input of the last linear layer, from its gradient.

    Pruned are the entries with the largest |r_j| / ‖∂r_j/∂x‖, summed over the mini-batch: the paper's approximation of
    |r_j (∂r_j/∂x)⁻¹|, how far a change of r_j moves the image. As there, the columns of these entries are set to zero
    in the gradient of that layer's weight, and no other layer is touched; here in every local step. Where BatchNorm
    couples the images of a mini-batch, ∂r/∂x is that of the sum over them.
    """

    ratio: float

    def __post_init__(self) -> None:
        check_range("ratio", self.ratio, low=0, high=1)

    def check(self, model: nn.Module) -> None:
        last_linear(model)

    def gradients(
        self, model: nn.Module, images: Tensor, labels: Tensor, training: LocalTraining
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """Those of the last layer's weight are masked."""
        layer = last_linear(model)
        images = images.detach().requires_grad_()
        seen: list[Tensor] = []
        hook = layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        try:
            loss = loss_of(model, images, labels, training)
        finally:
            hook.remove()
        if not seen:
            raise ConfigError("soteria protects the input of the last linear layer, which this model does not use")
        mask = self.mask(seen[-1], images)
        parameters = trained(model)
        slopes = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        pairs = zip(parameters, slopes, strict=True)
        return loss, [slope * mask if parameter is layer.weight else slope for parameter, slope in pairs]

    def mask(self, representation: Tensor, images: Tensor) -> Tensor:
        """Ones, and zeros where an entry of the representation is pruned, (D,)."""
        if representation.dim() != 2:
            raise ConfigError(
                f"soteria needs one representation per image before the last linear layer, (N, D); "
                f"this model has {tuple(representation.shape)} there"
            )
        mask = representation.new_ones(representation.shape[1])
        count = round(self.ratio * len(mask))
        if count:
            mask[_scores(representation, images).argsort(descending=True, stable=True)[:count]] = 0
        return mask


def _scores(representation: Tensor, images: Tensor) -> Tensor:
    """Σ |r_j| / ‖∂r_j/∂x‖ over the images, (D,); an entry that is zero says nothing, whatever its slope."""
    size = representation.detach().abs()
    steepness = torch.cat([_steepness(representation, images, part) for part in _parts(representation, images)], 1)
    return torch.where(size > 0, size / steepness, torch.zeros_like(size)).sum(0)


def _steepness(representation: Tensor, images: Tensor, part: Tensor) -> Tensor:
    """‖∂r_j/∂x‖ of some entries, (N, len(part)): one backward sweep for each, all at once."""
    chosen = representation.new_zeros(len(part), *representation.shape)
    chosen[torch.arange(len(part)), :, part] = 1
    (slopes,) = torch.autograd.grad(representation, images, chosen, retain_graph=True, is_grads_batched=True)
    sizes: Tensor = slopes.flatten(2).norm(dim=2)
    return sizes.T


def _parts(representation: Tensor, images: Tensor) -> Sequence[Tensor]:
    """The entries, as many at a time as fit into some memory."""
    size = max(1, MOST_PIXELS // images.numel())
    return tuple(torch.arange(representation.shape[1], device=images.device).split(size))


def last_linear(model: nn.Module) -> nn.Linear:
    """The last linear layer."""
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not layers:
        raise ConfigError("soteria protects the input of the last linear layer, and this model has none")
    return layers[-1]
