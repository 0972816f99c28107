"""Proposals: the library's expected improvement against quadrature; better than chance; the same after a resume."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
import torch
from optuna._gp import acqf, gp, prior, search_space
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial
from scipy.integrate import quad
from scipy.stats import norm

from undelta.studies.tuning import gaussian
from undelta.studies.tuning.proposals import DIVERGED, SLOT, estimate, propose, what_is_known
from undelta.studies.tuning.worker import evaluate

from .bowl import SIDES, Bowl, OpenSlots

SPACE: dict[str, BaseDistribution] = dict(SIDES)
MINIMIZE = optuna.study.StudyDirection.MINIMIZE


def small_process() -> tuple[gp.GPRegressor, search_space.SearchSpace, float]:
    """A Gaussian process on six values of a function of two variables, as GPSampler would fit it."""
    places = np.random.default_rng(0).random((6, 2))
    values = np.sin(5 * places[:, 0]) + places[:, 1] ** 2
    values = -(values - values.mean()) / values.std()  # the sampler maximizes what is to be minimized
    space = search_space.SearchSpace({"a": FloatDistribution(0, 1), "b": FloatDistribution(0, 1)})
    process = gp.fit_kernel_params(
        X=places,
        Y=values,
        is_categorical=space.is_categorical,
        log_prior=prior.default_log_prior,
        minimum_noise=prior.DEFAULT_MINIMUM_NOISE_VAR,
        deterministic_objective=True,
    )
    return process, space, float(values.max())


def test_the_librarys_expected_improvement_is_that_of_quadrature() -> None:
    process, space, highest = small_process()
    improvement = acqf.LogEI(process, space, threshold=highest)
    compared = 0
    for place in np.random.default_rng(1).random((20, 2)):
        with torch.no_grad():
            mean, variance = (float(value) for value in process.posterior(torch.from_numpy(place)))
        found = math.exp(improvement.eval_acqf_no_grad(place[None])[0])
        deviation = math.sqrt(variance + 1e-12)
        # E max(0, f_min - f): with g = -f it is the integral of (g - g_max) over the upper tail of the posterior.
        high = max(highest, mean) + 12 * deviation
        expected, _ = quad(lambda g, m=mean, s=deviation: (g - highest) * norm.pdf(g, m, s), highest, high, limit=200)
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-12)
        compared += expected > 1e-6
    assert compared >= 10  # not all of them are zero


def test_the_process_agrees_with_the_papers_posterior() -> None:
    """Mean and variance by the formulas of AWA eq_GP_posterior, written down once more."""
    process, _, _ = small_process()
    places, values = process._X_train, process._y_train
    with torch.no_grad():
        place = torch.tensor([[0.3, 0.6]], dtype=torch.float64)
        between = process.kernel(place, places)  # (1, 6)
        inverse = torch.linalg.inv(process.kernel() + process.noise_var * torch.eye(6, dtype=torch.float64))
        mean, variance = process.posterior(place)
        assert mean.item() == pytest.approx((between @ inverse @ values.reshape(-1)).item(), rel=1e-6)
        left = process.kernel_scale - (between @ inverse @ between.T).squeeze()
        assert variance.item() == pytest.approx(left.item(), rel=1e-5)


def test_our_expected_improvement_is_that_of_quadrature() -> None:
    for mean, deviation, least in ((0.3, 0.2, 0.25), (0.3, 0.2, 0.6), (-1.0, 2.0, -3.0), (0.5, 1e-3, 0.501)):
        low = min(least, mean) - 12 * deviation
        expected, _ = quad(lambda f, m=mean, s=deviation, b=least: (b - f) * norm.pdf(f, m, s), low, least, limit=200)
        found = gaussian.expected_improvement(np.array([mean]), np.array([deviation]), least)
        assert float(found[0]) == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_the_gaussian_kernel_finds_the_bottom_of_a_bowl_and_repeats_itself() -> None:
    def value(params: dict[str, Any]) -> float:
        return float((math.log10(params["tv"]) + 3) ** 2 + 4 * (params["position"] - 0.3) ** 2)

    space = {"tv": FloatDistribution(1e-6, 1e-1, log=True), "position": FloatDistribution(0, 1)}
    sides: dict[str, BaseDistribution] = dict(space)
    trials: list[FrozenTrial] = []

    def next_point(sign: int = 1) -> dict[str, Any]:
        direction = MINIMIZE if sign > 0 else optuna.study.StudyDirection.MAXIMIZE
        seen = [
            create_trial(value=sign * value(one), params=one, distributions=sides, user_attrs={SLOT: slot})
            for slot, one in enumerate(trial.params for trial in trials)
        ]
        return propose(seen, space, direction, seed=1, slot=len(trials), random=5, kernel="gaussian")

    for slot in range(12):
        found = next_point()
        trials.append(create_trial(value=value(found), params=found, distributions=sides, user_attrs={SLOT: slot}))
    assert next_point() == next_point()
    assert next_point(sign=-1) == pytest.approx(next_point(), rel=1e-3)  # the top of the same bowl, upside down
    values = [value(trial.params) for trial in trials]
    assert min(values[5:]) < 0.05 * min(values[:5])


@pytest.mark.parametrize("seed", [0, 1])
def test_tuning_comes_nearer_to_a_known_optimum_than_chance_does(
    open_slots: OpenSlots, tmp_path: Path, seed: int
) -> None:
    best = {}
    for name, random in (("gp", 8), ("chance", 20)):
        slots = open_slots(total=20, random=random, name=name, seed=seed)
        evaluate(slots, Bowl(), tmp_path)
        best[name] = min(trial.value or 0.0 for trial in slots.finished())
    assert best["gp"] < best["chance"] / 10


def test_the_first_trials_are_the_same_whatever_follows(open_slots: OpenSlots, tmp_path: Path) -> None:
    points = []
    for total, random in ((3, 3), (4, 12)):
        bowl = Bowl()
        evaluate(open_slots(total=total, random=random, name=f"{total}"), bowl, tmp_path)
        points.append(bowl.seen[:3])
    assert points[0] == points[1]
    assert points[0][0] != points[0][1]


def test_another_seed_proposes_other_points(open_slots: OpenSlots, tmp_path: Path) -> None:
    bowls = [Bowl(), Bowl()]
    for seed, bowl in enumerate(bowls):
        evaluate(open_slots(total=1, seed=seed, name=str(seed)), bowl, tmp_path)
    assert bowls[0].seen != bowls[1].seen


# Pruned trials


def trial(
    slot: int, value: float | None, reports: dict[int, float], state: TrialState, **attributes: bool
) -> FrozenTrial:
    point = {name: side.low + (side.high - side.low) * (0.05 + 0.13 * slot) for name, side in SIDES.items()}
    return create_trial(
        state=state,
        value=value,
        params=point,
        distributions=SPACE,
        user_attrs={SLOT: slot, **attributes},
        intermediate_values=reports,
    )


COMPLETED = [
    trial(0, 0.5, {10: 1.0, 20: 0.8}, TrialState.COMPLETE),
    trial(1, 0.3, {10: 1.2, 20: 0.6}, TrialState.COMPLETE),
    trial(2, 0.9, {10: 1.5, 20: 1.0}, TrialState.COMPLETE),
]


def test_a_pruned_trial_is_taken_to_gain_what_the_others_gained() -> None:
    pruned = trial(3, 2.0, {10: 3.0, 20: 2.0}, TrialState.PRUNED)
    assert estimate(pruned, COMPLETED, minimize=True) == pytest.approx(2.0 * 0.5 / 0.8)  # the median ratio


def test_a_pruned_trial_is_never_taken_to_be_the_best() -> None:
    lucky = trial(3, 0.01, {20: 0.01}, TrialState.PRUNED)
    assert estimate(lucky, COMPLETED, minimize=True) == 0.3
    assert estimate(trial(3, 9.0, {20: 9.0}, TrialState.PRUNED), COMPLETED, minimize=False) == 0.9


@pytest.mark.parametrize(
    "lost",
    [trial(3, None, {}, TrialState.PRUNED), trial(3, 0.4, {20: 0.4}, TrialState.PRUNED, **{DIVERGED: True})],
)
def test_a_diverged_trial_counts_as_the_worst(lost: FrozenTrial) -> None:
    assert estimate(lost, COMPLETED, minimize=True) == 0.9
    assert estimate(lost, COMPLETED, minimize=False) == 0.3


def test_the_point_of_a_pruned_trial_is_not_proposed_again() -> None:
    def proposal(trials: list[FrozenTrial]) -> dict[str, float]:
        return propose(trials, SIDES, MINIMIZE, seed=0, slot=5, random=3)

    first = proposal(COMPLETED)
    assert proposal(COMPLETED) == first  # without news, nothing changes
    pruned = create_trial(
        state=TrialState.PRUNED,
        value=2.0,
        params=first,
        distributions=SPACE,
        user_attrs={SLOT: 3},
        intermediate_values={20: 2.0},
    )
    second = proposal([*COMPLETED, pruned])
    assert max(abs(second[name] - first[name]) / (side.high - side.low) for name, side in SIDES.items()) > 0.05


def test_trials_under_way_are_known_and_failed_ones_are_not() -> None:
    running = create_trial(
        state=TrialState.RUNNING, params=COMPLETED[0].params, distributions=SPACE, user_attrs={SLOT: 4}
    )
    failed = create_trial(state=TrialState.FAIL, user_attrs={SLOT: 3})
    waiting = create_trial(state=TrialState.WAITING, user_attrs={SLOT: 5})
    known = what_is_known([failed, waiting, running, *COMPLETED], minimize=True)
    assert [one.user_attrs[SLOT] for one in known] == [0, 1, 2, 4]
    assert known[-1].state == TrialState.RUNNING
