"""Checks of what an observation holds: names, shapes, types, finite values."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from undelta.errors import ObservationError

FLOATS = (torch.float32, torch.float64)
PART = 2**18  # values that are checked at a time, so that a check of a mapped file holds no copy of it


def check_labels(labels: Tensor, num_samples: int, classes: int) -> None:
    """Labels are a sorted multiset of known classes."""
    if labels.dtype != torch.int64 or labels.shape != (num_samples,):
        raise ObservationError(
            f"labels: expected {num_samples} int64 values, got {labels.dtype} of shape {tuple(labels.shape)}"
        )
    if labels.min() < 0 or labels.max() >= classes:
        raise ObservationError(f"labels: expected classes 0 to {classes - 1}, got {labels.min()} to {labels.max()}")
    if (labels.diff() < 0).any():
        raise ObservationError("labels: expected a sorted multiset; their order would reveal the client's")


def check_names(side: str, needed: set[str], known: set[str], found: set[str]) -> None:
    """A state has the entries that it must have, and no others."""
    if not found:
        raise ObservationError(f"the {side} state is empty")
    for problem, names in (("lacks", needed - found), ("has the unknown entry", found - known)):
        if names:
            raise ObservationError(f"the {side} state {problem} {some(names)}; is it the state of another model?")


def some(names: Iterable[str]) -> str:
    """The first of several names, and how many more there are."""
    first, *more = sorted(names)
    return f"{first!r}{f' and {len(more)} more' if more else ''}"


def kind(dtype: torch.dtype) -> str:
    """A type as people write it, such as float32."""
    return str(dtype).removeprefix("torch.")


def check_tensor(where: str, tensor: Tensor, expected: Tensor) -> None:
    """A tensor is like the one that is expected, and finite."""
    if tensor.shape != expected.shape:
        raise ObservationError(f"{where}: expected shape {tuple(expected.shape)}, got {tuple(tensor.shape)}")
    allowed = FLOATS if expected.is_floating_point() else (expected.dtype,)
    if tensor.dtype not in allowed:
        raise ObservationError(f"{where}: expected {' or '.join(map(kind, allowed))}, got {kind(tensor.dtype)}")
    if bad := sum(int((~torch.isfinite(part)).sum()) for part in tensor.reshape(-1).split(PART)):
        raise ObservationError(f"{where}: {bad} of {tensor.numel()} values are NaN or infinite")
