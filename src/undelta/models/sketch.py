"""Models without memory: their shapes and names, before anything is allocated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class _NoDraws(TorchFunctionMode):
    """Leave normal draws out where there is nothing to fill: torch would import a compiler for them, 2 s and 70 MB."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.normal_ and args[0].is_meta:
            return args[0]
        return func(*args, **(kwargs or {}))


@contextmanager
def sketched() -> Iterator[None]:
    """Models that are built within the block cost no memory, and draw no random numbers."""
    with _NoDraws(), torch.device("meta"):
        yield
