"""Axes: where to put ticks, and how values become positions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

LETTER = 7  # width of one, about


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A range of values along a length in pixels."""

    low: float
    high: float
    start: float
    """Position of `low`."""
    end: float
    """Position of `high`; smaller than `start` on an axis that goes up."""
    log: bool = False
    ticks: tuple[tuple[float, str], ...] = ()
    """Values and what to write beside them."""

    def position(self, value: float) -> float:
        """Where a value is drawn, to a tenth of a pixel."""
        low, high, at = (
            (math.log10(x) for x in (self.low, self.high, value)) if self.log else (self.low, self.high, value)
        )
        return round(self.start + (at - low) / (high - low) * (self.end - self.start), 1)


def linear_axis(values: Sequence[float], start: float, end: float, *, count: int = 5) -> Axis:
    """Round ticks around the values."""
    low, high = min(values), max(values)
    if high - low <= 1e-12 * max(abs(low), abs(high), 1e-100):  # nothing to tell apart
        margin = max(abs(low) / 10, 1e-100) if low else 1.0
        low, high = low - margin, high + margin
    step = _round_step((high - low) / count)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple((tick * step, short(tick * step)) for tick in range(first, last + 1))
    return Axis(low=first * step, high=last * step, start=start, end=end, ticks=ticks)


def log_axis(values: Sequence[float], start: float, end: float) -> Axis:
    """Decades, and 2 and 5 in between where there are few; all values must be positive."""
    low, high = math.log10(min(values)), math.log10(max(values))
    pad = max(0.05 * (high - low), 0.05)
    low, high = low - pad, high + pad
    decades = range(math.floor(low), math.ceil(high) + 1)
    every = -(-len(decades) // 6)
    factors = (1, 2, 5) if high - low < 2.2 else (1,)
    ticks = tuple(
        (factor * 10.0**decade, short(factor * 10.0**decade))
        for decade in decades
        if decade % every == 0
        for factor in factors
        if low <= math.log10(factor) + decade <= high
    )
    return Axis(low=10**low, high=10**high, start=start, end=end, log=True, ticks=ticks)


def measured_axis(ticks: Sequence[tuple[float, str]], start: float, end: float, *, log: bool = False) -> Axis:
    """Ticks at the values that were measured; half a step of air on both sides."""
    low, high = min(ticks)[0], max(ticks)[0]
    if low == high or not math.isfinite(high - low):
        low, high = (low / 2, high * 2) if log else (low - 1, high + 1)
    air = (end - start) * 0.08
    axis = Axis(low=low, high=high, start=start + air, end=end - air, log=log)
    shown: list[tuple[float, str]] = []
    free = -math.inf
    for value, text in ticks:
        # Labels that would overlap are left out; the grid line stays.
        half = LETTER * (len(text) + 1) / 2
        fits = axis.position(value) - half >= free
        shown.append((value, text if fits else ""))
        free = axis.position(value) + half if fits else free
    return replace(axis, ticks=tuple(shown))


def named_axis(names: Sequence[str], start: float, end: float) -> Axis:
    """Names at 0, 1, 2, ... with equal room; what does not fit is cut, and marks say it in full."""
    half = (end - start) / len(names) / 2
    most = max(1, int(2 * half / LETTER) - 1)
    texts = [name if len(name) <= most else name[: most - 1] + "…" for name in names]
    last = max(1, len(names) - 1)  # a single name sits at the start of a range that is never empty
    return Axis(
        low=0,
        high=last,
        start=start + half,
        end=end - half if len(names) > 1 else end,
        ticks=tuple(enumerate(texts)),
    )


def _round_step(step: float) -> float:
    """1, 2 or 5 times a power of ten, not below the given step."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9))


def short(value: float) -> str:
    """A tick's label."""
    return f"{value:.6g}"
