"""The history of a Bayesian optimization of layer weights: the best value so far (AWA fig_loss_BO)."""

from __future__ import annotations

from dataclasses import dataclass

from undelta.report.charts import Chart, Series, chart
from undelta.trials.tuning_file import Evaluation, TuningFile


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """The chart, and the trial that was best."""

    chart: Chart
    best: Evaluation
    trials: int
    failed: int
    pruned: int = 0
    superlative: str = "smallest"
    importance: tuple[tuple[str, float, float], ...] = ()
    """Parameters, their shares, and lengths of bars in percent; the largest first."""


def tuning(file: TuningFile) -> Tuning | None:
    """The cumulative minimum over trials, or maximum; None if no trial has a value."""
    trials, maximized = file.trials, file.direction == "maximize"
    better, extreme, superlative = (max, "maximum", "largest") if maximized else (min, "minimum", "smallest")
    valued = [
        (trial, trial.value) for trial in sorted(trials, key=lambda trial: trial.number) if trial.value is not None
    ]
    if not valued:
        return None
    values = [(float(trial.number), value) for trial, value in valued]
    reached: list[tuple[float, float]] = []
    for number, value in values:
        reached.append((number, better(value, reached[-1][1]) if reached else value))
    drawn = chart(
        f"Cumulative {extreme} of the objective",
        "trial",
        "PSNR on shadow clients" if maximized else "f(Q)",
        [
            Series(
                name="one trial",
                style=1,
                points=values,
                texts=[f"{number:.0f}: {value:.5g}" for number, value in values],
                line=False,
            ),
            Series(
                name=f"{superlative} so far",
                style=0,
                points=reached,
                texts=[f"{number:.0f}: {value:.5g}" for number, value in reached],
                marks=False,
                stairs=True,
            ),
        ],
    )
    assert drawn is not None  # noqa: S101 (there are values)
    best = better(valued, key=lambda pair: pair[1])[0]
    pruned = sum(trial.value is None and trial.state == "pruned" for trial in trials)
    shares = sorted(file.importance.items(), key=lambda pair: -pair[1])
    bars = tuple((name, share, round(min(max(share, 0.0), 1.0) * 100, 2)) for name, share in shares)
    return Tuning(
        chart=drawn,
        best=best,
        trials=len(trials),
        failed=len(trials) - len(valued) - pruned,
        pruned=pruned,
        superlative=superlative,
        importance=bars,
    )
