"""What a tuning found: ``tuning.json`` for the report, ``weights.toml`` for the next attack, and what mattered."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import optuna
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import FrozenTrial, TrialState

from undelta.errors import DataError
from undelta.files import to_json, write_bytes
from undelta.studies.tuning.plan import Plan
from undelta.studies.tuning.proposals import DIVERGED, slot_of
from undelta.studies.tuning.space import settings_of
from undelta.trials.config import to_document
from undelta.trials.tuning_file import TUNING, Evaluation, TuningFile

WEIGHTS = "weights.toml"
FEWEST = 10  # completed trials from which on importances are more than noise


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """All trials, and the best of them."""

    plan: Plan
    trials: tuple[Evaluation, ...]
    best: Evaluation
    importance: Mapping[str, float] = field(default_factory=dict)
    """Shares that sum to one; empty where there are too few trials to tell."""
    model: str | None = None
    """The function that makes a custom model, which the user named."""

    @property
    def settings(self) -> dict[str, Any]:
        """The best point as settings of the attack."""
        return settings_of(self.best.parameters)


def best_value(plan: Plan, finished: Sequence[FrozenTrial]) -> float | None:
    """So far; None while no trial has a value."""
    values = [trial.value for trial in finished if trial.state == TrialState.COMPLETE and trial.value is not None]
    return (min if plan.direction == "minimize" else max)(values, default=None)


def conclude(plan: Plan, finished: Sequence[FrozenTrial], *, model: str | None = None) -> Tuned:
    """The best of the finished trials; of equal ones, the first."""
    trials = tuple(_evaluation(trial) for trial in finished)
    better = min if plan.direction == "minimize" else max
    valued = [trial for trial in trials if trial.value is not None]
    if not valued:
        raise DataError(
            f"none of {len(trials)} trials ended with a value: the attack diverges everywhere. "
            "Try a smaller step, such as --set learning_rate=0.01"
        )
    best = better(valued, key=lambda trial: trial.value or 0.0)
    return Tuned(plan=plan, trials=trials, best=best, importance=importances(plan, finished), model=model)


def _evaluation(trial: FrozenTrial) -> Evaluation:
    completed = trial.state == TrialState.COMPLETE
    state = "completed" if completed else DIVERGED if trial.user_attrs.get(DIVERGED) else "pruned"
    seconds = trial.duration.total_seconds() if trial.duration else None
    return Evaluation(
        number=slot_of(trial),
        state=state,
        value=trial.value if completed else None,
        last=trial.value if state == "pruned" else None,
        parameters=dict(trial.params),
        seconds=seconds,
    )


def importances(plan: Plan, finished: Sequence[FrozenTrial]) -> dict[str, float]:
    """How much each parameter decides whether a trial is among the best tenth (PED-ANOVA: Watanabe et al. 2023).

    It needs nothing but Optuna itself. It compares where the best of the completed trials lie with where all of them
    lie; with fifty trials that is a hint, not a measurement.
    """
    completed = [trial for trial in finished if trial.state == TrialState.COMPLETE]
    if len(completed) < FEWEST or len({trial.value for trial in completed}) < 2:
        return {}
    study = optuna.create_study(direction=plan.direction)
    study.add_trials(completed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some versions call the evaluator experimental
        found = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())
    return {name: float(share) for name, share in found.items()}


def write_outcome(tuned: Tuned, directory: Path) -> None:
    """Write what was found, for the report and for ``undelta attack --weights``."""
    plan, best, settings = tuned.plan, tuned.best, tuned.settings
    content = TuningFile(
        objective=plan.objective,
        direction=plan.direction,
        study=plan.name,
        settings=asdict(plan),
        best={"number": best.number, "value": best.value, "settings": settings},
        importance=dict(tuned.importance),
        trials=tuned.trials,
    )
    write_bytes(directory / TUNING, to_json(content))
    head = (
        f"# Trial {best.number} of {len(tuned.trials)}: {measured(tuned)}; search space {plan.space!r}, "
        f"{plan.steps} iterations a trial.\n# For: undelta attack OBSERVATION --weights THIS_FILE\n"
    )
    write_bytes(directory / WEIGHTS, (head + to_document({"attack": plan.attack, **settings})).encode())


def measured(tuned: Tuned) -> str:
    """The best value, in words."""
    value = tuned.best.value
    return f"f(Q) = {value:.6g}" if tuned.plan.objective == "mismatch" else f"{value:.2f} dB on shadow clients"
