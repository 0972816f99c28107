"""A function with a known optimum in place of an attack."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from undelta.studies.tuning.objective import OpenRun, Report
from undelta.studies.tuning.space import PAPER, Space
from undelta.studies.tuning.study import Slots

SIDES: Space = {name: PAPER[name] for name in ("conv", "linear", "p_mean")}
OPTIMUM = {"conv": 700.0, "linear": 150.0, "p_mean": 0.4}


class Bowl:
    """The squared distance to the optimum, sides scaled to 1; on its way it falls from ten times that."""

    def __init__(self) -> None:
        self.seen: list[dict[str, float]] = []

    def __call__(self, settings: Mapping[str, Any], *, report: Report, open_run: OpenRun) -> float:
        point = {name: settings["q"][name] for name in OPTIMUM}
        self.seen.append(point)
        widths = {name: side.high - side.low for name, side in SIDES.items()}
        value: float = sum(((point[name] - best) / widths[name]) ** 2 for name, best in OPTIMUM.items())
        for step in range(1, 10):
            report(step, value * (11 - step))
        return value


OpenSlots = Callable[..., Slots]
"""A fixture: the places of a study; every call is another worker."""
