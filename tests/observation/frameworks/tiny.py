"""One client's round, small enough to commit: what `make.py` trains in other frameworks, and what tests look for."""

from __future__ import annotations

import torch
from torch import Tensor, nn

SHAPE = (1, 4, 4)
CLASSES = 3
RATE = 0.1
LABEL = 1


def tiny() -> nn.Module:
    """A linear layer first: the gradient of one image reveals it (Phong et al. 2018)."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.Sigmoid(), nn.Linear(5, CLASSES))


def picture() -> Tensor:
    """The client's only image, (1, 1, 4, 4) in [0, 1]."""
    return torch.rand(1, *SHAPE, generator=torch.Generator().manual_seed(1))
