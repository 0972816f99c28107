"""A VGG-like ConvNet with batch normalization and one linear layer."""

from __future__ import annotations

from torch import nn

from undelta.models.checks import Shape, choice, image_shape, layer_width, num_classes
from undelta.models.norms import NORMS, norm_layer


def convnet(*, shape: Shape, classes: int, width: int = 64, norm: str = "batch") -> nn.Module:
    """Three stages of two conv3x3-norm-ReLU (``width``, 2x, 4x), max pooling between; mean, logits."""
    channels, _, _ = image_shape(shape, least=4)
    layer_width(width)
    choice("norm", norm, NORMS)
    layers: list[nn.Module] = []
    for stage in range(3):
        if stage > 0:
            layers.append(nn.MaxPool2d(2))
        for _ in range(2):
            outputs = width * 2**stage
            layers += [
                nn.Conv2d(channels, outputs, 3, padding=1, bias=norm == "none"),
                norm_layer(norm, outputs),
                nn.ReLU(),
            ]
            channels = outputs
    head = nn.Linear(channels, num_classes(classes))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
