"""Checks of model arguments, which may come from an untrusted file: types, ranges, choices."""

from __future__ import annotations

import reprlib
from collections.abc import Collection

from undelta.errors import ConfigError

Shape = tuple[int, int, int]
"""Of one image: channels, height, width."""

MOST_CLASSES = 100_000
"""A larger label is a date or a serial number, and a model with as many outputs would not fit anywhere."""


def show(value: object) -> str:
    """``value`` on one short line, for a message."""
    try:
        return reprlib.repr(value)
    except ValueError:  # Python refuses to print integers of thousands of digits.
        return f"a very long {type(value).__name__}"


def integer(name: str, value: object, low: int, high: int) -> int:
    """``value`` if it is an int (no bool) between ``low`` and ``high``, both included."""
    if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
        return value
    hint = "" if type(value) is int else f" ({type(value).__name__}, not int)"
    raise ConfigError(f"expected {low} <= {name} <= {high}, got {name}={show(value)}{hint}")


def number(name: str, value: object, low: float, high: float) -> float:
    """``value`` as a float if it is a number (no bool) between ``low`` and ``high``, both included."""
    if isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high:
        return float(value)
    raise ConfigError(f"expected {low} <= {name} <= {high}, got {name}={show(value)}")


def choice(name: str, value: object, choices: Collection[str]) -> str:
    """``value`` if it is one of ``choices``."""
    if isinstance(value, str) and value in choices:
        return value
    raise ConfigError(f"expected {name} to be one of {', '.join(choices)}, got {name}={show(value)}")


def image_shape(shape: object, *, least: int = 1) -> Shape:
    """``shape`` as (channels, height, width) if images of it can be that small, or that large."""
    if not isinstance(shape, list | tuple) or len(shape) != 3:
        raise ConfigError(f"expected shape=(channels, height, width), got shape={show(shape)}")
    channels = integer("channels", shape[0], 1, 16)
    height = integer("height", shape[1], 1, 4096)
    width = integer("image width", shape[2], 1, 4096)
    if min(height, width) < least:
        raise ConfigError(
            f"expected images of at least {least}x{least} pixels, got {height}x{width}. "
            "Use larger images, or a model with less pooling."
        )
    return channels, height, width


def num_classes(classes: object) -> int:
    """``classes`` if a classifier can have that many."""
    return integer("classes", classes, 1, MOST_CLASSES)


def layer_width(width: object) -> int:
    """``width``, the channels of a model's first stage, if it is in range."""
    return integer("width", width, 1, 1024)


def hidden_width(hidden: object, name: str = "hidden") -> int:
    """``hidden``, the outputs of a hidden linear layer, if it is in range."""
    return integer(name, hidden, 1, 16_384)
