"""The two networks whose features LPIPS compares, as data: convolutions in stages, named as torchvision names them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from torch import Tensor

from undelta.errors import DataError

BackboneName: TypeAlias = Literal["alex", "vgg"]


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """A convolution and the ReLU after it."""

    place: int
    """Its index in torchvision's ``features``."""
    shape: tuple[int, int, int, int]
    """Of its weight: (out, in, height, width)."""
    stride: int = 1
    padding: int = 1


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Convolutions in a row; LPIPS compares what leaves the last of them."""

    convolutions: tuple[Convolution, ...]
    pooled: bool
    """Whether a max-pooling comes first."""


@dataclass(frozen=True, kw_only=True)
class Backbone:
    """A network up to its last convolution, with one linear head per stage (LPIPS v0.1)."""

    name: BackboneName
    title: str
    stages: tuple[Stage, ...]
    pool: tuple[int, int]
    """Side and stride of the max-pooling."""

    def convolutions(self) -> Iterator[Convolution]:
        return (convolution for stage in self.stages for convolution in stage.convolutions)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """All tensors of a weights file, by name."""
        shapes: dict[str, tuple[int, ...]] = {}
        for convolution in self.convolutions():
            shapes[f"features.{convolution.place}.weight"] = convolution.shape
            shapes[f"features.{convolution.place}.bias"] = convolution.shape[:1]
        for head, stage in enumerate(self.stages):
            shapes[f"lin{head}.model.1.weight"] = (1, stage.convolutions[-1].shape[0], 1, 1)
        return shapes

    def check(self, weights: Mapping[str, Tensor], where: str) -> None:
        """Refuse weights that are not this network's.

        Raises:
            DataError: naming the first tensor that is missing, superfluous or of another shape.
        """
        expected = self.shapes()
        found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
        for name in sorted(expected.keys() | found.keys()):
            if expected.get(name) != found.get(name):
                wanted, came = expected.get(name, "no such tensor"), found.get(name, "none")
                raise DataError(f"{where} is no LPIPS v0.1 {self.title}: expected {name} {wanted}, got {came}.")


def _vgg_stage(first: int, channels: int, out: int, depth: int) -> Stage:
    """`depth` convolutions of 3 x 3, each followed by its ReLU in torchvision's count; all but the first stage pool."""
    return Stage(
        pooled=first > 0,
        convolutions=tuple(
            Convolution(place=first + 2 * index, shape=(out, out if index else channels, 3, 3))
            for index in range(depth)
        ),
    )


BACKBONES: dict[BackboneName, Backbone] = {
    "alex": Backbone(
        name="alex",
        title="AlexNet",
        pool=(3, 2),
        stages=(
            Stage(pooled=False, convolutions=(Convolution(place=0, shape=(64, 3, 11, 11), stride=4, padding=2),)),
            Stage(pooled=True, convolutions=(Convolution(place=3, shape=(192, 64, 5, 5), padding=2),)),
            Stage(pooled=True, convolutions=(Convolution(place=6, shape=(384, 192, 3, 3)),)),
            Stage(pooled=False, convolutions=(Convolution(place=8, shape=(256, 384, 3, 3)),)),
            Stage(pooled=False, convolutions=(Convolution(place=10, shape=(256, 256, 3, 3)),)),
        ),
    ),
    "vgg": Backbone(
        name="vgg",
        title="VGG16",
        pool=(2, 2),
        stages=(
            _vgg_stage(0, 3, 64, 2),
            _vgg_stage(5, 64, 128, 2),
            _vgg_stage(10, 128, 256, 3),
            _vgg_stage(17, 256, 512, 3),
            _vgg_stage(24, 512, 512, 3),
        ),
    ),
}
