"""Checks of a defense's numbers."""

from __future__ import annotations

import math

from undelta.errors import ConfigError


def check_range(name: str, value: float, *, low: float, high: float = math.inf, open_low: bool = False) -> None:
    """Refuse a number that is not in [low, high], or with ``open_low`` not in (low, high]."""
    if math.isfinite(value) and (low < value if open_low else low <= value) and value <= high:
        return
    bounds = f"{low:g} {'<' if open_low else '<='} {name}" + (f" <= {high:g}" if high < math.inf else "")
    raise ConfigError(f"expected {bounds}, got {name}={value}")
