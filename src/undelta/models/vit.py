"""A small vision transformer (Dosovitskiy et al., 2021) under torchvision's parameter names."""

from __future__ import annotations

import math
from collections import OrderedDict

import torch
from torch import Tensor, nn

from undelta.errors import ConfigError
from undelta.models.checks import Shape, image_shape, integer, layer_width, num_classes

MOST_PATCHES = 4096  # Attention takes memory quadratic in their number.


class EncoderBlock(nn.Module):
    """Self-attention, then a perceptron of four times the width, each behind a norm and with a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, eps=1e-6)
        self.self_attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.ln_2 = nn.LayerNorm(width, eps=1e-6)
        # The identity stands where torchvision drops out, so that the second linear layer is number 3.
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Identity(), nn.Linear(4 * width, width))
        for layer in self.mlp:
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.normal_(layer.bias, std=1e-6)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (N, T, width) to tokens."""
        normed = self.ln_1(tokens)
        tokens = tokens + self.self_attention(normed, normed, normed, need_weights=False)[0]
        output: Tensor = tokens + self.mlp(self.ln_2(tokens))
        return output


class Encoder(nn.Module):
    """Position embeddings, the blocks, and a last norm."""

    def __init__(self, tokens: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.pos_embedding = nn.Parameter(torch.empty(1, tokens, width).normal_(std=0.02))
        self.layers = nn.Sequential(
            OrderedDict((f"encoder_layer_{index}", EncoderBlock(width, heads)) for index in range(depth))
        )
        self.ln = nn.LayerNorm(width, eps=1e-6)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (N, T, width) to tokens."""
        output: Tensor = self.ln(self.layers(tokens + self.pos_embedding))
        return output


class VisionTransformer(nn.Module):
    """Patches and a class token through an encoder; the class token gives the logits."""

    def __init__(self, shape: Shape, classes: int, patch: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        channels, rows, columns = shape
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.conv_proj = nn.Conv2d(channels, width, patch, stride=patch)
        self.encoder = Encoder((rows // patch) * (columns // patch) + 1, width, depth, heads)
        # torchvision starts the head at zero, so that a first gradient reaches no other layer. A linear
        # layer's usual start is kept here instead: an untrained model should be worth attacking.
        self.heads = nn.Sequential(OrderedDict(head=nn.Linear(width, classes)))
        nn.init.trunc_normal_(self.conv_proj.weight, std=math.sqrt(1 / (channels * patch**2)))
        if self.conv_proj.bias is not None:
            nn.init.zeros_(self.conv_proj.bias)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.conv_proj(images).flatten(2).transpose(1, 2)  # (N, patches, width)
        class_token = self.class_token.expand(len(images), -1, -1)
        tokens = self.encoder(torch.cat([class_token, tokens], dim=1))
        logits: Tensor = self.heads(tokens[:, 0])
        return logits


def vit(*, shape: Shape, classes: int, patch: int = 4, width: int = 64, depth: int = 4, heads: int = 4) -> nn.Module:
    """``depth`` blocks of ``heads`` heads on square patches; no dropout."""
    shape = _, rows, columns = image_shape(shape)
    integer("patch", patch, 1, 256)
    layer_width(width)
    integer("depth", depth, 1, 64)
    integer("heads", heads, 1, 64)
    if rows % patch or columns % patch:
        raise ConfigError(f"expected patch to divide the sides of {rows}x{columns} images, got {patch=}")
    if (rows // patch) * (columns // patch) > MOST_PATCHES:
        raise ConfigError(
            f"expected at most {MOST_PATCHES} patches, got {patch=} for {rows}x{columns} images. Use a larger patch."
        )
    if width % heads:
        raise ConfigError(f"expected width to be a multiple of heads, got {width=} and {heads=}")
    return VisionTransformer(shape, num_classes(classes), patch, width, depth, heads)
