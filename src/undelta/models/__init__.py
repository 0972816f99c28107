"""The architectures a federation trains: functions of the image shape and the number of classes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

import torch
from torch import nn

from undelta.errors import ConfigError
from undelta.models import cnn, convnet, lenet, mlp, resnet, vgg, vit
from undelta.models.checks import Shape, show
from undelta.models.sketch import sketched

__all__ = ["MODELS", "MOST_PARAMETERS", "build"]

MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp": mlp.mlp,
    "lenet": lenet.lenet,
    "cnn": cnn.cnn,
    "cnn28": cnn.cnn28,
    "convnet": convnet.convnet,
    "resnet8": resnet.resnet8,
    "resnet18": resnet.resnet18,
    "resnet34": resnet.resnet34,
    "resnet50": resnet.resnet50,
    "vgg11": vgg.vgg11,
    "vit": vit.vit,
}

MOST_PARAMETERS = 500_000_000
"""What ``build`` allows: 2 GB in float32. Arguments in range can still multiply to more than that."""


def build(name: str, arguments: Mapping[str, object], *, shape: Shape, classes: int) -> nn.Module:
    """The named model; ``arguments`` may come from an untrusted file and are never executed.

    Args:
        name: A key of ``MODELS``.
        arguments: The builder's own keyword arguments; the others keep their defaults.
        shape: Of one image: (channels, height, width).
        classes: The number of logits.

    Raises:
        ConfigError: If the model or an argument is unknown, of a wrong type or out of range, or if the
            model would have more than ``MOST_PARAMETERS`` parameters.
    """
    if name not in list(MODELS):  # A list: a name from a file may be unhashable.
        raise ConfigError(f"unknown model {show(name)}; choose one of {', '.join(MODELS)}")
    builder = MODELS[name]
    accepted = [key for key in inspect.signature(builder).parameters if key not in ("shape", "classes")]
    for key in arguments:
        if key not in accepted:
            raise ConfigError(f"unknown argument {show(key)} of model {name}; it accepts {', '.join(accepted)}")
    with sketched():
        sketch = builder(shape=shape, classes=classes, **arguments)
    total = sum(parameter.numel() for parameter in sketch.parameters())
    if total > MOST_PARAMETERS:
        raise ConfigError(
            f"expected at most {MOST_PARAMETERS:,} parameters, got {total:,} for model {name}. "
            "Use a smaller width, or smaller images."
        )
    if torch.empty(0).is_meta:  # within `sketched`
        return sketch
    return builder(shape=shape, classes=classes, **arguments)
