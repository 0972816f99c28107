"""What server and clients share: the model, what its inputs look like, and where recorded updates go."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor, nn

from undelta.client.datasets import open_dataset
from undelta.client.private import Private
from undelta.observation import ImageSpec
from undelta.seeding import stream

MODEL = "photo_federation.task:small_cnn"  # named once: for training, for recording, and for `undelta attack --model`
CLIENTS = 2
IMAGE = ImageSpec(shape=(3, 32, 32), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), classes=8)
OUT = Path(os.environ.get("PHOTO_FEDERATION_OUT", Path.home() / "photo-federation"))  # apps run in folders of their own


def small_cnn() -> nn.Module:
    """Two convolutions, two linear layers."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 8 * 8, 64),
        nn.ReLU(),
        nn.Linear(64, 8),
    )


def load_photos(partition: int) -> Private:
    """A client's own photographs: every second one of the eight that come with scikit-image."""
    photos = open_dataset("photos")
    mine = torch.arange(partition, len(photos), CLIENTS)
    return Private(images=photos.draw(mine, 32), labels=photos.labels[mine])


def shuffles(partition: int, server_round: int) -> tuple[str, int, str, int, int]:
    """The name of a client's random stream, so that anyone who has its photographs can repeat its round exactly."""
    return ("client", 0, "round", server_round, partition)


def train(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    epochs: int,
    size: int,
    rate: float,
    momentum: float,
    names: tuple[object, ...],
) -> float:
    """Local training as usual: shuffled mini-batches, SGD with momentum; returns the last loss."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum)
    generator = stream(*names, "shuffles")
    loss = torch.zeros(())
    for _ in range(epochs):
        for batch in torch.randperm(len(images), generator=generator).split(size):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
    return float(loss.detach())
