"""LPIPS (Zhang et al. 2018), version 0.1 with AlexNet: a learned distance, close to human judgment.

The weights are not part of the package. They are one safetensors file with torchvision's AlexNet
(``features.N``) and the linear heads of LPIPS v0.1 (``linN.model.1``); without it there is no LPIPS.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (the name everyone uses)

from undelta.errors import DataError

MIN_SIDE = 64
"""Smaller images are enlarged to this side first."""

# (place in torchvision's features, shape of the weight, stride, padding), a ReLU after each
_CONVOLUTIONS = (
    (0, (64, 3, 11, 11), 4, 2),
    (3, (192, 64, 5, 5), 1, 2),
    (6, (384, 192, 3, 3), 1, 1),
    (8, (256, 384, 3, 3), 1, 1),
    (10, (256, 256, 3, 3), 1, 1),
)
SHAPES: dict[str, tuple[int, ...]] = {
    **{f"features.{place}.weight": shape for place, shape, _, _ in _CONVOLUTIONS},
    **{f"features.{place}.bias": shape[:1] for place, shape, _, _ in _CONVOLUTIONS},
    **{f"lin{head}.model.1.weight": (1, row[1][0], 1, 1) for head, row in enumerate(_CONVOLUTIONS)},
}
"""All tensors of a weights file, by name."""


class Lpips:
    """The distance of image pairs: ``Lpips(weights)(images, originals)``, two (N, C, H, W) in [0, 1] -> (N,).

    Images are scaled to [-1, 1], as the authors of LPIPS do; grey ones are repeated to three channels.
    AlexNet needs sides of 31 at least, and below 64 its deep features are one or two pixels. So, and this
    is our rule, an image whose shorter side is below `MIN_SIDE` is enlarged to it first (bilinear,
    keeping the aspect); compare such values only with values obtained in the same way.
    """

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self._weights = dict(weights)

    @torch.no_grad()
    def __call__(self, images: Tensor, originals: Tensor) -> Tensor:
        """Distance per pair, 0 for identical images: (N,) float64."""
        if images.ndim != 4 or images.shape != originals.shape or images.shape[1] not in (1, 3):
            raise ValueError(
                "expected two batches (N, C, H, W) of 1 or 3 channels, "
                f"got {tuple(images.shape)} and {tuple(originals.shape)}"
            )
        distance = torch.zeros(len(images), dtype=torch.float64, device=images.device)
        pairs = zip(self._features(images), self._features(originals), strict=True)
        for head, (x, y) in enumerate(pairs):
            weight = self._weights[f"lin{head}.model.1.weight"].to(x)
            distance += F.conv2d((x - y).square(), weight).mean(dim=(1, 2, 3))
        return distance

    def _features(self, images: Tensor) -> list[Tensor]:
        """Activations after the five ReLUs, each of unit length per pixel."""
        x = images.float().expand(-1, 3, -1, -1)
        height, width = x.shape[-2:]
        shorter = min(height, width)
        if shorter < MIN_SIDE:
            size = (round(height * MIN_SIDE / shorter), round(width * MIN_SIDE / shorter))
            x = F.interpolate(x, size=size, mode="bilinear", align_corners=False)
        # LPIPS's own shift and scale, for inputs in [-1, 1].
        shift = x.new_tensor([-0.030, -0.088, -0.188]).view(1, 3, 1, 1)
        scale = x.new_tensor([0.458, 0.448, 0.450]).view(1, 3, 1, 1)
        x = (2 * x - 1 - shift) / scale
        features = []
        for place, _, stride, padding in _CONVOLUTIONS:
            if place in (3, 6):
                x = F.max_pool2d(x, kernel_size=3, stride=2)
            weight, bias = (self._weights[f"features.{place}.{name}"].to(x) for name in ("weight", "bias"))
            x = F.relu(F.conv2d(x, weight, bias, stride=stride, padding=padding))
            features.append(x / (x.square().sum(dim=1, keepdim=True).sqrt() + 1e-10))
        return features


def find_weights() -> Path | None:
    """The weights file: ``$UNDELTA_LPIPS``, else undelta/lpips-alex.safetensors in the user's cache, if any.

    Raises:
        DataError: if the variable names a file that is not there, since a metric that silently goes
            missing is worse.
    """
    named = os.environ.get("UNDELTA_LPIPS")
    if named:
        if not Path(named).is_file():
            raise DataError(f"UNDELTA_LPIPS names {named!r}, which is no file; correct or unset it.")
        return Path(named)
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    except RuntimeError:  # a user without a home
        return None
    path = cache / "undelta" / "lpips-alex.safetensors"
    return path if path.is_file() else None


def load_lpips(path: Path | None = None) -> Callable[[Tensor, Tensor], Tensor] | None:
    """LPIPS with the weights at `path`, or where `find_weights` finds them; None if it finds none.

    Raises:
        DataError: if the file is missing, unreadable, or holds other tensors.
    """
    path = path or find_weights()
    if path is None:
        return None
    try:
        weights = load_file(path)
    except (OSError, SafetensorError) as error:
        raise DataError(f"cannot read LPIPS weights from {str(path)!r}: {error}") from error
    found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    wrong = sorted(name for name in SHAPES.keys() | found.keys() if SHAPES.get(name) != found.get(name))
    if wrong:
        name = wrong[0]
        expected, came = SHAPES.get(name, "no such tensor"), found.get(name, "none")
        raise DataError(f"{str(path)!r} is no LPIPS v0.1 AlexNet: expected {name} {expected}, got {came}.")
    return Lpips(weights)
