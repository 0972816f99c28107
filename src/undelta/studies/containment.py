"""The span test as a job: which of some pictures took part in a recorded update?"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from undelta.attacker.span import Containment, contains
from undelta.client.datasets import open_dataset
from undelta.client.datasets.folders import SUFFIXES, read_picture
from undelta.engine.devices import device_of
from undelta.errors import DataError
from undelta.files import write_bytes
from undelta.observation.file import load_observation

REFERENCES = 200


class Found(NamedTuple):
    """One candidate picture."""

    name: str
    containment: Containment


def contains_job(
    observation_path: Path,
    images: Path,
    *,
    reference: str = "patches",
    model: str | None = None,
    device: str = "auto",
    out: Path | None = None,
) -> list[Found]:
    """Test every picture of a folder, or one picture, against a recorded update.

    Args:
        observation_path: The recorded update.
        images: A folder of pictures, or one picture; each is cropped and resized as a scenario's are.
        reference: A source of images that took no part, to compare with; at most 200 of them are used.
        model: A custom model, which the user trusts.
        device: Where to compute.
        out: A JSON file to write the results to.
    """
    observation = load_observation(observation_path, model=model).to(device_of(device))
    channels, height, width = observation.image.shape
    if height != width:
        raise DataError(f"the update's images are {height} x {width}; only squares can be cut from pictures")
    paths = [images]
    if images.is_dir():
        paths = sorted(path for path in images.iterdir() if path.suffix.lower() in SUFFIXES)
    if not paths:
        raise DataError(f"{images}: no pictures in it ({', '.join(sorted(SUFFIXES))})")
    candidates = torch.stack([_in_channels(read_picture(path, height), channels) for path in paths])
    source = open_dataset(reference)
    count = min(REFERENCES, len(source))
    chosen = torch.linspace(0, len(source) - 1, count).round().long()
    others = torch.stack([_in_channels(picture, channels) for picture in source.draw(chosen, height)])
    tested = contains(observation, candidates, others)
    found = [Found(path.name, containment) for path, containment in zip(paths, tested, strict=True)]
    if out is not None:
        rows = [{"image": one.name, **asdict(one.containment)} for one in found]
        write_bytes(out, json.dumps({"reference": reference, "references": count, "images": rows}, indent=1).encode())
    return found


def _in_channels(picture: Tensor, channels: int) -> Tensor:
    """A picture with as many channels as the model takes: grey ones repeat, colors are averaged."""
    if picture.shape[0] == channels:
        return picture
    return picture.mean(0, keepdim=True).expand(channels, -1, -1)
