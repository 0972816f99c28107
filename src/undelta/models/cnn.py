"""The small CNN of the literature on attacks against FedAvg: two convolutions, two linear layers."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from undelta.models.checks import Shape, choice, hidden_width, image_shape, layer_width, num_classes
from undelta.models.norms import NORMS, norm_layer

POOLS = {"average": nn.AvgPool2d, "max": nn.MaxPool2d}


def cnn(
    *,
    shape: Shape,
    classes: int,
    width: int = 64,
    hidden: int = 200,
    norm: str = "none",
    pool: str = "average",
) -> nn.Module:
    """Two of conv3x3, norm, ReLU, pool to ``width`` and twice that; then ``hidden`` units, ReLU, logits."""
    channels, rows, columns = image_shape(shape, least=4)
    layer_width(width)
    choice("norm", norm, NORMS)
    pooling = POOLS[choice("pool", pool, POOLS)]
    bias = norm == "none"  # A norm's shift does a bias's work.
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            conv1=nn.Conv2d(channels, width, 3, padding=1, bias=bias),
            norm1=norm_layer(norm, width),
            relu1=nn.ReLU(),
            pool1=pooling(2),
            conv2=nn.Conv2d(width, 2 * width, 3, padding=1, bias=bias),
            norm2=norm_layer(norm, 2 * width),
            relu2=nn.ReLU(),
            pool2=pooling(2),
            flatten=nn.Flatten(),
            fc1=nn.Linear(2 * width * (rows // 4) * (columns // 4), hidden_width(hidden)),
            relu3=nn.ReLU(),
            fc2=nn.Linear(hidden, num_classes(classes)),
        )
    )


def cnn28(
    *,
    shape: Shape,
    classes: int,
    width: int = 32,
    hidden: int = 100,
    norm: str = "none",
    pool: str = "average",
) -> nn.Module:
    """``cnn`` at half the size, for gray images of 28x28 pixels."""
    return cnn(shape=shape, classes=classes, width=width, hidden=hidden, norm=norm, pool=pool)
