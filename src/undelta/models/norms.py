"""Normalization layers by name."""

from __future__ import annotations

from torch import nn

from undelta.models.checks import choice

NORMS = ("batch", "group", "none")


def norm_layer(kind: str, channels: int) -> nn.Module:
    """The normalization of ``channels`` feature maps; "none" is the identity, which has no parameters."""
    choice("norm", kind, NORMS)
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    if kind == "group":
        return nn.GroupNorm(next(n for n in (32, 16, 8, 4, 2, 1) if channels % n == 0), channels)
    return nn.Identity()
