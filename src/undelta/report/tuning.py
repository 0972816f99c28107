"""The history of a Bayesian optimization of layer weights: the best value so far (AWA fig_loss_BO)."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from undelta.report.charts import Chart, Mark, Series, chart
from undelta.trials.tuning_file import Evaluation, TuningFile


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """The chart, and the trial that was best."""

    chart: Chart
    best: Evaluation
    trials: int
    failed: int
    pruned: int
    superlative: str
    importance: tuple[tuple[str, float, float], ...]
    """Parameters, their shares, and lengths of bars in percent; the largest first."""


def tuning(file: TuningFile) -> Tuning | None:
    """The cumulative minimum over trials, or maximum; None if no trial has a value."""
    maximized = file.direction == "maximize"
    better, extreme, superlative = (max, "maximum", "largest") if maximized else (min, "minimum", "smallest")
    trials = sorted(file.trials, key=lambda trial: trial.number)
    valued = [(trial, trial.value) for trial in trials if trial.value is not None]
    values = [value for _, value in valued]
    every, reached = (
        [
            Mark(trial.number, value, f"{trial.number}: {value:.5g}")
            for (trial, _), value in zip(valued, column, strict=True)
        ]
        for column in (values, itertools.accumulate(values, better))
    )
    drawn = chart(
        f"Cumulative {extreme} of the objective",
        "trial",
        "PSNR on shadow clients" if maximized else "f(Q)",
        [
            Series(name="one trial", style=1, points=every, line=False),
            Series(name=f"{superlative} so far", style=0, points=reached, marks=False, stairs=True),
        ],
    )
    if drawn is None:
        return None
    pruned = sum(trial.value is None and trial.state == "pruned" for trial in trials)
    shares = sorted(file.importance.items(), key=lambda pair: -pair[1])
    return Tuning(
        chart=drawn,
        best=better(valued, key=lambda pair: pair[1])[0],
        trials=len(trials),
        failed=len(trials) - len(valued) - pruned,
        pruned=pruned,
        superlative=superlative,
        importance=tuple((name, share, round(min(max(share, 0.0), 1.0) * 100, 2)) for name, share in shares),
    )
