"""VGG-11 (Simonyan and Zisserman, 2015) under torchvision's parameter names."""

from __future__ import annotations

from torch import Tensor, nn

from undelta.models.checks import Shape, choice, hidden_width, image_shape, layer_width, num_classes, number
from undelta.models.norms import NORMS, norm_layer

_STAGES = ((1,), (2,), (4, 4), (8, 8), (8, 8))  # Widths, in units of the first; a max pool ends each stage.


class VGG(nn.Module):
    """Convolutions with max pooling, then three linear layers on a 7x7 map."""

    def __init__(self, channels: int, classes: int, width: int, hidden: int, norm: str, dropout: float) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for stage in _STAGES:
            for factor in stage:
                layers.append(nn.Conv2d(channels, factor * width, 3, padding=1))
                if norm != "none":  # No identity in its place: torchvision numbers vgg11 without it.
                    layers.append(norm_layer(norm, factor * width))
                layers.append(nn.ReLU())
                channels = factor * width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(7)
        self.flatten = nn.Flatten()
        self.classifier = nn.Sequential(
            nn.Linear(channels * 7 * 7, hidden),
            nn.ReLU(),
            _dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            _dropout(dropout),
            nn.Linear(hidden, classes),
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.01)
            if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.flatten(self.avgpool(self.features(images))))
        return logits


def _dropout(probability: float) -> nn.Module:
    # An identity never asks for random numbers, whatever the version of torch.
    return nn.Dropout(probability) if probability > 0 else nn.Identity()


def vgg11(
    *,
    shape: Shape,
    classes: int,
    width: int = 64,
    hidden: int = 4096,
    norm: str = "none",
    dropout: float = 0.0,
) -> nn.Module:
    """VGG-11; norm="batch" is torchvision's vgg11_bn. Five poolings need images of at least 32x32."""
    return VGG(
        image_shape(shape, least=32)[0],
        num_classes(classes),
        layer_width(width),
        hidden_width(hidden),
        choice("norm", norm, NORMS),
        number("dropout", dropout, 0.0, 0.9),
    )
