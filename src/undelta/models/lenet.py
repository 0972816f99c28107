"""The sigmoid LeNet that gradient inversion began with (Zhu et al., Deep Leakage from Gradients, 2019)."""

from __future__ import annotations

import math

from torch import Tensor, nn

from undelta.models.checks import Shape, image_shape, layer_width, num_classes


class LeNet(nn.Module):
    """Three convolutions and one linear layer, all smooth, so that second derivatives exist everywhere."""

    def __init__(self, shape: Shape, classes: int, width: int) -> None:
        super().__init__()
        channels, *sides = shape
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 5, stride=2, padding=2),
            nn.Sigmoid(),
            nn.Conv2d(width, width, 5, stride=2, padding=2),
            nn.Sigmoid(),
            nn.Conv2d(width, width, 5, stride=1, padding=2),
            nn.Sigmoid(),
        )
        self.flatten = nn.Flatten()
        # Each stride of 2 halves a side, rounding up.
        features = width * math.prod(math.ceil(side / 4) for side in sides)
        self.fc = nn.Sequential(nn.Linear(features, classes))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.5, 0.5)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.flatten(self.body(images)))
        return logits


def lenet(*, shape: Shape, classes: int, width: int = 12) -> nn.Module:
    """DLG's LeNet with ``width`` channels in every convolution; weights and biases start as U(-0.5, 0.5)."""
    return LeNet(image_shape(shape), num_classes(classes), layer_width(width))
