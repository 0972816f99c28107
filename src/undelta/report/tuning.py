"""The history of a Bayesian optimization of layer weights: the smallest value so far (AWA fig_loss_BO)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from undelta.report.charts import Chart, Series, chart
from undelta.report.read import TuningTrial


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """The chart, and the trial that was best."""

    chart: Chart
    best: TuningTrial
    trials: int
    failed: int


def tuning(trials: Sequence[TuningTrial]) -> Tuning | None:
    """The cumulative minimum over trials; None if no trial has a value."""
    valued = [
        (trial, trial.value) for trial in sorted(trials, key=lambda trial: trial.number) if trial.value is not None
    ]
    if not valued:
        return None
    values = [(float(trial.number), value) for trial, value in valued]
    smallest, lowest = [], float("inf")
    for number, value in values:
        lowest = min(lowest, value)
        smallest.append((number, lowest))
    drawn = chart(
        "Cumulative minimum of the objective",
        "trial",
        "f(Q)",
        [
            Series(
                name="one trial",
                style=1,
                points=values,
                texts=[f"{number:.0f}: {value:.5g}" for number, value in values],
                line=False,
            ),
            Series(
                name="smallest so far",
                style=0,
                points=smallest,
                texts=[f"{number:.0f}: {value:.5g}" for number, value in smallest],
                marks=False,
                stairs=True,
            ),
        ],
    )
    assert drawn is not None  # noqa: S101 (there are values)
    best = min(valued, key=lambda pair: pair[1])[0]
    return Tuning(chart=drawn, best=best, trials=len(trials), failed=len(trials) - len(valued))
