"""Where to look next: at random at first, then where the expected improvement is largest (AWA eq_argmax_EI).

Optuna's GPSampler does the work: a Gaussian process with a Matérn-5/2 kernel, and the logarithm of the expected
improvement, whose maximum is that of the expected improvement itself; `gaussian` has the paper's kernel instead. What
is added here:

- **A proposal depends on the seed, the trial's place in line, and the results before it, on nothing else.** A sampler
  is made anew for each trial, with a random stream of its own; so a study that was killed and resumes proposes what it
  would have proposed.
- **Pruned trials count.** GPSampler looks at completed trials only. From the same completed trials it gets the same
  process, and would propose the point of a pruned trial again and again. Here the process is told an estimate: the
  last value that was seen, times what the completed trials gained from that step to their end (the median of their
  ratios), but never better than the best.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, Literal

import optuna
import torch
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, GPSampler, RandomSampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from undelta.seeding import stream
from undelta.studies.tuning import gaussian
from undelta.studies.tuning.space import Space
from undelta.studies.tuning.storage import as_experimental

SLOT = "slot"
AGAIN = "again"
DIVERGED = "diverged"

Kernel = Literal["matern", "gaussian"]


def placed_trials(study: optuna.Study) -> list[FrozenTrial]:
    """A study's trials; whoever adds some by hand gives them no place in line."""
    return [trial for trial in study.get_trials(deepcopy=False) if SLOT in trial.user_attrs]


def slot_of(trial: FrozenTrial) -> int:
    """A trial's place in line."""
    return int(trial.user_attrs[SLOT])


class Proposals(BaseSampler):
    """Gives each trial its point of the search space, by its place in line."""

    def __init__(self, space: Space, *, seed: int, random: int, kernel: Kernel = "matern") -> None:
        self.space, self.seed, self.random, self.kernel = space, seed, random, kernel

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """The whole search space, for every trial."""
        return dict(self.space)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The point to evaluate; that of a trial that is repeated is given."""
        if again := trial.user_attrs.get(AGAIN):
            return dict(again)
        others = [other for other in placed_trials(study) if other.number != trial.number]
        place = {"seed": self.seed, "slot": slot_of(trial), "random": self.random}
        return propose(others, self.space, study.direction, kernel=self.kernel, **place)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Never needed: all that is searched is in the search space."""
        raise LookupError(f"{param_name} is not a side of the search space")


def propose(
    trials: Sequence[FrozenTrial],
    space: Space,
    direction: optuna.study.StudyDirection,
    *,
    seed: int,
    slot: int,
    random: int,
    kernel: Kernel = "matern",
) -> dict[str, Any]:
    """A point of the space for the trial in this slot, after these results."""
    number = int(torch.randint(2**31, (), generator=stream("tuner", seed, slot)))
    begun = [trial for trial in trials if set(space) <= set(trial.params)]  # not those that have no whole point yet
    minimized = direction == optuna.study.StudyDirection.MINIMIZE
    known = what_is_known(begun, minimize=minimized)
    completed = sum(trial.state == TrialState.COMPLETE for trial in known)
    sampler: BaseSampler = RandomSampler(seed=number)
    if slot >= random and completed:
        if kernel == "gaussian":
            return gaussian.propose(known, space, minimized=minimized, seed=number)
        with as_experimental():
            sampler = GPSampler(seed=number, n_startup_trials=0, deterministic_objective=True)
    mirror = optuna.create_study(direction=direction, sampler=sampler)
    mirror.add_trials(known)
    return mirror.ask(dict(space)).params


def what_is_known(trials: Sequence[FrozenTrial], *, minimize: bool) -> list[FrozenTrial]:
    """The trials as a Gaussian process may use them: with a value, or under way."""
    completed = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    known = list(completed)
    if completed:
        known += [_valued(trial, completed, minimize) for trial in trials if trial.state == TrialState.PRUNED]
    known += [trial for trial in trials if trial.state == TrialState.RUNNING]
    # Repeated trials have higher numbers; their place in line is what counts.
    return sorted(known, key=slot_of)


def _valued(trial: FrozenTrial, completed: Sequence[FrozenTrial], minimize: bool) -> FrozenTrial:
    return create_trial(
        value=estimate(trial, completed, minimize=minimize),
        params=trial.params,
        distributions=trial.distributions,
        user_attrs=trial.user_attrs,
    )


def estimate(trial: FrozenTrial, completed: Sequence[FrozenTrial], *, minimize: bool) -> float:
    """How a pruned trial would have ended, by what the completed ones still gained; without any value, the worst."""
    best, worst = (min, max) if minimize else (max, min)
    values = [float(one.value) for one in completed if one.value is not None]
    step = trial.last_step
    if step is None or trial.value is None or trial.user_attrs.get(DIVERGED):
        return worst(values)
    ratios = [
        float(one.value) / one.intermediate_values[step]
        for one in completed
        if one.value is not None and one.intermediate_values.get(step, 0.0) > 0
    ]
    guess = float(trial.value) * (statistics.median(ratios) if ratios else 1.0)
    return worst(guess, best(values))
