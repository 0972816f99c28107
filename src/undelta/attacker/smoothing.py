"""Smoothed gradients: coarse shapes first, detail later (docs/strongest.md).

A pixel's gradient through a deep network is mostly noise, because units switch on and off from pixel to pixel; what
neighboring pixels agree on is not. A descent that follows blurred gradients finds the large shapes first, which a plain
one, stepping in every pixel on its own, does not find later. (The blurred gradient is the steepest direction under a
Sobolev-like norm, which prices rough steps higher.)
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

LEAST = 0.3  # pixels; a narrower blur changes next to nothing
REACH = 3.0  # standard deviations


def width_at(iteration: int, steps: int, share: float, side: int) -> float:
    """The blur's standard deviation in pixels: a share of the image's side at first, none at the end."""
    return share * side * (1 - iteration / steps) ** 2


def blurred(images: Tensor, width: float) -> Tensor:
    """Images (N, C, H, W) under a Gaussian blur, mirrored at their edges."""
    if width < LEAST:
        return images
    for axis in (2, 3):
        reach = min(int(REACH * width) + 1, images.shape[axis] - 1)
        offsets = torch.arange(-reach, reach + 1, dtype=images.dtype, device=images.device)
        kernel = (-0.5 * (offsets / width).square()).softmax(0)
        lines = images.movedim(axis, -1)  # (N, C, ..., pixels)
        padded = F.pad(lines.flatten(0, 1), (reach, reach), mode="reflect")
        filtered = F.conv1d(padded.flatten(0, 1)[:, None], kernel[None, None])
        images = filtered.view_as(lines).movedim(-1, axis)
    return images
