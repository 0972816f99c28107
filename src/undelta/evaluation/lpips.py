"""LPIPS (Zhang et al. 2018), version 0.1 with AlexNet or VGG16: a learned distance, close to human judgment.

The weights are not part of the package. They are one safetensors file per backbone, which `undelta fetch lpips`
fetches and converts (see `lpips_weights`); without it there is no LPIPS.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (the name everyone uses)

from undelta.errors import ConfigError, DataError
from undelta.evaluation.backbones import BACKBONES, Backbone, BackboneName
from undelta.schema import unknown

MIN_SIDE = 64
"""Smaller images are enlarged to this side first."""

CHANNELS = (1, 3)
"""Images with another number of channels have no LPIPS."""

HINT = "LPIPS is n/a without its weights; fetch them once with: undelta fetch lpips"

VARIABLES: dict[BackboneName, str] = {"alex": "UNDELTA_LPIPS", "vgg": "UNDELTA_LPIPS_VGG"}
"""Environment variables that name a weights file."""

_PIXELS_AT_ONCE = 2**18  # VGG's first features take 256 bytes per pixel, so 64 MB


class Lpips:
    """The distance of image pairs: ``Lpips(weights, backbone)(images, originals)``, two (N, C, H, W) in [0, 1] -> (N,).

    Images are scaled to [-1, 1], as the authors of LPIPS do; grey ones are repeated to three channels.
    AlexNet needs sides of 31 at least, and below 64 its deep features are one or two pixels. So, and this
    is our rule for both backbones, an image whose shorter side is below `MIN_SIDE` is enlarged to it first
    (bilinear, keeping the aspect); compare such values only with values obtained in the same way.
    """

    def __init__(self, weights: Mapping[str, Tensor], backbone: Backbone) -> None:
        self._weights, self.backbone = dict(weights), backbone

    @torch.no_grad()
    def __call__(self, images: Tensor, originals: Tensor) -> Tensor:
        """Distance per pair, 0 for identical images: (N,) float64."""
        if images.ndim != 4 or images.shape != originals.shape or images.shape[1] not in CHANNELS:
            raise ValueError(
                "expected two batches (N, C, H, W) of 1 or 3 channels, "
                f"got {tuple(images.shape)} and {tuple(originals.shape)}"
            )
        size = _enlarged(images.shape[-2], images.shape[-1])
        # A few images at a time: the features of a batch would need gigabytes.
        count = max(1, _PIXELS_AT_ONCE // (size[0] * size[1]))
        parts = zip(images.split(count), originals.split(count), strict=True)
        return torch.cat([self._distance(x, y, size) for x, y in parts])

    def _distance(self, images: Tensor, originals: Tensor, size: tuple[int, int]) -> Tensor:
        distance = torch.zeros(len(images), dtype=torch.float64, device=images.device)
        pairs = zip(self._features(images, size), self._features(originals, size), strict=True)
        for head, (x, y) in enumerate(pairs):
            weight = self._weights[f"lin{head}.model.1.weight"].to(x)
            distance += F.conv2d((x - y).square(), weight).mean(dim=(1, 2, 3))
        return distance

    def _features(self, images: Tensor, size: tuple[int, int]) -> list[Tensor]:
        """Activations after each stage, of unit length per pixel."""
        x = images.float().expand(-1, 3, -1, -1)
        if x.shape[-2:] != size:
            x = F.interpolate(x, size=size, mode="bilinear", align_corners=False)
        # LPIPS's own shift and scale, for inputs in [-1, 1].
        shift = x.new_tensor([-0.030, -0.088, -0.188]).view(1, 3, 1, 1)
        scale = x.new_tensor([0.458, 0.448, 0.450]).view(1, 3, 1, 1)
        x = (2 * x - 1 - shift) / scale
        features = []
        for stage in self.backbone.stages:
            if stage.pooled:
                x = F.max_pool2d(x, *self.backbone.pool)
            for part in stage.convolutions:
                weight, bias = (self._weights[f"features.{part.place}.{name}"].to(x) for name in ("weight", "bias"))
                x = F.relu(F.conv2d(x, weight, bias, stride=part.stride, padding=part.padding))
            features.append(x / (x.square().sum(dim=1, keepdim=True).sqrt() + 1e-10))
        return features


def _enlarged(height: int, width: int) -> tuple[int, int]:
    shorter = min(height, width)
    if shorter >= MIN_SIDE:
        return height, width
    return round(height * MIN_SIDE / shorter), round(width * MIN_SIDE / shorter)


def choose(backbone: str) -> Backbone:
    """The backbone of that name."""
    for name, found in BACKBONES.items():
        if name == backbone:
            return found
    raise ConfigError(unknown("LPIPS backbone", backbone, BACKBONES))


def cached_weights(backbone: BackboneName = "alex") -> Path | None:
    """Where the user's cache has, or would have, the weights; None for a user without a home."""
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    except RuntimeError:
        return None
    return cache / "undelta" / f"lpips-{backbone}.safetensors"


def find_weights(backbone: BackboneName = "alex") -> Path | None:
    """The weights file: what the variable in `VARIABLES` names, else the one in the user's cache, if any.

    Raises:
        DataError: if the variable names a file that is not there, since a metric that silently goes
            missing is worse.
    """
    variable = VARIABLES[backbone]
    named = os.environ.get(variable)
    if named:
        if not Path(named).is_file():
            raise DataError(f"{variable} names {named!r}, which is no file; correct or unset it.")
        return Path(named)
    path = cached_weights(backbone)
    return path if path is not None and path.is_file() else None


def load_lpips(path: Path | None = None, *, backbone: str = "alex") -> Lpips | None:
    """LPIPS with the weights at `path`, or where `find_weights` finds them; None if it finds none.

    Raises:
        DataError: if the file is missing, unreadable, or holds other tensors.
    """
    network = choose(backbone)
    path = path or find_weights(network.name)
    if path is None:
        return None
    try:
        weights = load_file(path)
    except (OSError, SafetensorError) as error:
        raise DataError(
            f"cannot read LPIPS weights from {str(path)!r}: {error}; "
            f"fetch them anew with: undelta fetch lpips --backbone {network.name} --force"
        ) from error
    network.check(weights, repr(str(path)))
    return Lpips(weights, network)
