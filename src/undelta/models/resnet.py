"""Residual networks (He et al., 2016) under torchvision's parameter names, for small and large images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn

from undelta.models.checks import Shape, choice, image_shape, layer_width, num_classes
from undelta.models.norms import NORMS, norm_layer

STEMS = ("imagenet", "cifar", "auto")


def _conv(inputs: int, outputs: int, kernel: int, stride: int, norm: str) -> nn.Conv2d:
    # A norm's shift does a bias's work.
    return nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=norm == "none")


def _shortcut(inputs: int, outputs: int, stride: int, norm: str) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(_conv(inputs, outputs, 1, stride, norm), norm_layer(norm, outputs))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    expansion: ClassVar[int] = 1

    def __init__(self, inputs: int, width: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1 = _conv(inputs, width, 3, stride, norm)
        self.bn1 = norm_layer(norm, width)
        self.relu1 = nn.ReLU()
        self.conv2 = _conv(width, width, 3, 1, norm)
        self.bn2 = norm_layer(norm, width)
        self.downsample = _shortcut(inputs, width, stride, norm)
        self.relu2 = nn.ReLU()

    def forward(self, features: Tensor) -> Tensor:
        """Features (N, inputs, H, W) to (N, width, H / stride, W / stride)."""
        residual = self.relu1(self.bn1(self.conv1(features)))
        residual = self.bn2(self.conv2(residual))
        output: Tensor = self.relu2(residual + self.downsample(features))
        return output


class Bottleneck(nn.Module):
    """A 3x3 convolution between two 1x1 convolutions, beside a shortcut; the 3x3 one has the stride."""

    expansion: ClassVar[int] = 4

    def __init__(self, inputs: int, width: int, stride: int, norm: str) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1 = _conv(inputs, width, 1, 1, norm)
        self.bn1 = norm_layer(norm, width)
        self.relu1 = nn.ReLU()
        self.conv2 = _conv(width, width, 3, stride, norm)
        self.bn2 = norm_layer(norm, width)
        self.relu2 = nn.ReLU()
        self.conv3 = _conv(width, outputs, 1, 1, norm)
        self.bn3 = norm_layer(norm, outputs)
        self.downsample = _shortcut(inputs, outputs, stride, norm)
        self.relu3 = nn.ReLU()

    def forward(self, features: Tensor) -> Tensor:
        """Features (N, inputs, H, W) to (N, 4 * width, H / stride, W / stride)."""
        residual = self.relu1(self.bn1(self.conv1(features)))
        residual = self.relu2(self.bn2(self.conv2(residual)))
        residual = self.bn3(self.conv3(residual))
        output: Tensor = self.relu3(residual + self.downsample(features))
        return output


class ResNet(nn.Module):
    """A stem, stages of blocks (each after the first doubles the width and halves the sides), a head."""

    def __init__(
        self,
        block: type[BasicBlock | Bottleneck],
        blocks: Sequence[int],
        *,
        shape: Shape,
        classes: int,
        width: int,
        stem: str,
        norm: str,
    ) -> None:
        super().__init__()
        channels, *sides = image_shape(shape)
        layer_width(width)
        choice("norm", norm, NORMS)
        if choice("stem", stem, STEMS) == "auto":
            stem = "cifar" if max(sides) <= 64 else "imagenet"
        large = stem == "imagenet"
        self.conv1 = _conv(channels, width, 7 if large else 3, 2 if large else 1, norm)
        self.bn1 = norm_layer(norm, width)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1) if large else nn.Identity()
        inputs = width
        self.stages = [f"layer{index + 1}" for index in range(len(blocks))]
        for index, name in enumerate(self.stages):
            stage = nn.Sequential()
            for number in range(blocks[index]):
                stride = 2 if index > 0 and number == 0 else 1
                stage.append(block(inputs, width * 2**index, stride, norm))
                inputs = width * 2**index * block.expansion
            self.add_module(name, stage)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(inputs, num_classes(classes))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> Tensor:
        features = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        for name in self.stages:
            features = self.get_submodule(name)(features)
        logits: Tensor = self.fc(self.flatten(self.avgpool(features)))
        return logits


def resnet8(*, shape: Shape, classes: int, width: int = 64, stem: str = "auto", norm: str = "batch") -> nn.Module:
    """Three stages of one basic block, for small images."""
    return ResNet(BasicBlock, (1, 1, 1), shape=shape, classes=classes, width=width, stem=stem, norm=norm)


def resnet18(*, shape: Shape, classes: int, width: int = 64, stem: str = "auto", norm: str = "batch") -> nn.Module:
    """Four stages of two basic blocks; stem="auto" is the CIFAR stem for sides up to 64."""
    return ResNet(BasicBlock, (2, 2, 2, 2), shape=shape, classes=classes, width=width, stem=stem, norm=norm)


def resnet34(*, shape: Shape, classes: int, width: int = 64, stem: str = "auto", norm: str = "batch") -> nn.Module:
    """Stages of 3, 4, 6 and 3 basic blocks; stem="auto" is the CIFAR stem for sides up to 64."""
    return ResNet(BasicBlock, (3, 4, 6, 3), shape=shape, classes=classes, width=width, stem=stem, norm=norm)


def resnet50(*, shape: Shape, classes: int, width: int = 64, stem: str = "auto", norm: str = "batch") -> nn.Module:
    """Stages of 3, 4, 6 and 3 bottlenecks; stem="auto" is the CIFAR stem for sides up to 64."""
    return ResNet(Bottleneck, (3, 4, 6, 3), shape=shape, classes=classes, width=width, stem=stem, norm=norm)
