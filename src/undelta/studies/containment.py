"""The span test as a job: which of some pictures took part in a recorded update?"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import torch

from undelta.attacker.span import Containment, contains
from undelta.client.datasets import open_dataset
from undelta.client.datasets.folders import in_channels, read_shaped
from undelta.engine.devices import device_of
from undelta.files import make_way, write_bytes
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
    if out is not None:
        make_way(out)
    observation = load_observation(observation_path, model=model).to(device_of(device))
    names, candidates = read_shaped(images, observation.image.shape)
    channels, height, _ = observation.image.shape
    source = open_dataset(reference)
    count = min(REFERENCES, len(source))
    chosen = torch.linspace(0, len(source) - 1, count).round().long()
    others = torch.stack([in_channels(picture, channels) for picture in source.draw(chosen, height)])
    tested = contains(observation, candidates, others)
    found = [Found(name, containment) for name, containment in zip(names, tested, strict=True)]
    if out is not None:
        rows = [{"image": one.name, **asdict(one.containment)} for one in found]
        write_bytes(out, json.dumps({"reference": reference, "references": count, "images": rows}, indent=1).encode())
    return found
