"""A multilayer perceptron on the pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from undelta.errors import ConfigError
from undelta.models.checks import Shape, hidden_width, image_shape, num_classes, show


def mlp(*, shape: Shape, classes: int, hidden: Sequence[int] = (256,)) -> nn.Module:
    """Linear layers with ReLUs between; no hidden layers at all make it a logistic regression."""
    pixels = math.prod(image_shape(shape))
    if not isinstance(hidden, list | tuple) or len(hidden) > 32:
        raise ConfigError(f"expected hidden to be a list of at most 32 widths, got {show(hidden)}")
    widths = [hidden_width(width, f"hidden[{index}]") for index, width in enumerate(hidden)]
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise([pixels, *widths]):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear([pixels, *widths][-1], num_classes(classes)))
