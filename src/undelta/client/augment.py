"""Augmentation on the client's side: images that change from epoch to epoch, before any defense sees them."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from undelta.observation import ImageSpec
from undelta.training import Recipe


def augmented(images: Tensor, recipe: Recipe, image: ImageSpec, generator: torch.Generator) -> Tensor:
    """Each normalized image mirrored or not, and cropped somewhere from within its black padding, (N, C, H, W)."""
    count, _, height, width = images.shape
    if recipe.flip:
        mirrored = torch.rand(count, generator=generator) < 0.5
        images = torch.where(mirrored.view(-1, 1, 1, 1).to(images.device), images.flip(3), images)
    if recipe.crop:
        black = image.normalize(torch.zeros(image.shape[0], 1, 1, dtype=images.dtype, device=images.device))
        padded = F.pad(images - black, (recipe.crop,) * 4) + black  # zeros around what is black
        places = torch.randint(0, 2 * recipe.crop + 1, (count, 2), generator=generator).tolist()
        corners = zip(padded, places, strict=True)
        images = torch.stack([one[:, top : top + height, left : left + width] for one, (top, left) in corners])
    return images
