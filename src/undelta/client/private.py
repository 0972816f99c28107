"""What must not leak."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from undelta.client.datasets.folders import read_shaped
from undelta.errors import DataError
from undelta.files import FORMAT, read_tensors, write_tensors
from undelta.observation import Observation
from undelta.observation.checks import FLOATS, kind
from undelta.observation.file import digest_of


@dataclass(frozen=True, kw_only=True)
class Private:
    """One client's training data."""

    images: Tensor = field(repr=False)  # (N, C, H, W), pixels in [0, 1]
    labels: Tensor = field(repr=False)  # (N,) int64

    def __post_init__(self) -> None:
        if self.images.dim() != 4 or self.labels.shape != self.images.shape[:1]:
            raise DataError(
                f"expected images (N, C, H, W) and labels (N,), got shapes {tuple(self.images.shape)} "
                f"and {tuple(self.labels.shape)}"
            )

    def __len__(self) -> int:
        return len(self.labels)


def save_private(private: Private, path: str | Path, scenario: dict[str, Any], observation: Observation) -> None:
    """Write the truth, with the scenario and the digest of the observation it belongs to, for scoring later."""
    metadata = {"format": FORMAT, "kind": "truth", "scenario": scenario, "observation": digest_of(observation)}
    write_tensors(path, {"images": private.images, "labels": private.labels}, metadata, private=True)


def load_private(path: str | Path) -> tuple[Private, dict[str, Any], str]:
    """Read the truth, its scenario, and the digest of its observation."""
    tensors, metadata = read_tensors(path, kind="truth", error=DataError)
    if set(tensors) != {"images", "labels"} or not isinstance(metadata.get("scenario"), dict):
        raise DataError(f"{path}: expected images, labels and a scenario, got {', '.join(sorted(tensors))}")
    private = Private(images=tensors["images"], labels=tensors["labels"])
    if private.images.dtype not in FLOATS or private.labels.dtype != torch.int64:
        found = f"{kind(private.images.dtype)} and {kind(private.labels.dtype)}"
        raise DataError(f"{path}: expected images of float32 or float64 and labels of int64, got {found}")
    if not torch.isfinite(private.images).all():
        raise DataError(f"{path}: the images hold NaN or infinite values")
    return private, metadata["scenario"], str(metadata.get("observation"))


UNKNOWN = -1
"""The label of a picture whose class nobody said."""


def private_pictures(folder: str | Path, observation: Observation) -> Private:
    """The private images of a recorded update from a folder of pictures, whose labels are not known."""
    _, images = read_shaped(Path(folder), observation.image.shape)
    if len(images) != observation.num_samples:
        raise DataError(
            f"{folder}: expected the {observation.num_samples} pictures that the client trained on, got {len(images)}"
        )
    return Private(images=images, labels=torch.full((len(images),), UNKNOWN))
