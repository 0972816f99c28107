"""Optimizers and schedules: marks, descent, signs, and recovery from steps into nowhere."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from undelta.attacker.descent import Descent
from undelta.attacker.distances import Weights, l2
from undelta.attacker.method import GradientMatching
from undelta.attacker.optimizers import (
    LBFGS,
    SGD,
    Adam,
    AdamW,
    LookAheadAdam,
    Optimizer,
    constant,
    cosine_decay,
    three_step,
    warm_up_cosine,
)
from undelta.attacker.replays import OneStep
from undelta.client.disclose import disclose
from undelta.client.private import Private
from undelta.client.scenario import Scenario
from undelta.errors import ConfigError
from undelta.observation import Observation
from undelta.updates import Update

EACH: list[Optimizer] = [
    Adam(),
    AdamW(),
    SGD(learning_rate=0.02),
    SGD(learning_rate=0.02, momentum=0.9),
    LBFGS(),
    LookAheadAdam(),
]


@pytest.fixture
def smooth(scenario: Scenario, private: Private) -> Observation:
    """The sigmoid net's update."""
    chosen = Scenario(**{**vars(scenario), "model": "lenet", "model_arguments": {"width": 4}})
    return disclose(private, chosen)


def test_schedules_change_at_their_marks() -> None:
    assert [constant(iteration, 8) for iteration in range(8)] == [1] * 8
    assert [three_step(i, 8) for i in (0, 2, 3, 4, 5, 6, 7)] == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01, 0.001])
    assert three_step(374, 1000) == 1
    assert three_step(375, 1000) == pytest.approx(0.1)
    assert [cosine_decay(i, 8) for i in (0, 4, 8)] == pytest.approx([1, 0.5, 0])


def test_a_warm_up_rises_for_50_iterations_and_then_falls_to_zero() -> None:
    rates = [warm_up_cosine(iteration, 1000) for iteration in range(1001)]
    assert rates[:50] == pytest.approx([(iteration + 1) / 50 for iteration in range(50)])
    assert rates[50] == 1
    assert rates[525] == pytest.approx(0.5)
    assert rates[1000] == pytest.approx(0)
    assert rates[50:] == sorted(rates[50:], reverse=True)


@pytest.mark.parametrize("steps", [1, 2, 9, 10, 20, 100])
def test_a_warm_up_takes_at_most_a_tenth_of_a_short_run(steps: int) -> None:
    rates = [warm_up_cosine(iteration, steps) for iteration in range(steps)]
    assert rates[max(1, steps // 10) - 1] == 1
    assert all(0 <= rate <= 1 for rate in rates)


@pytest.mark.parametrize("part", [Adam, AdamW, SGD, LBFGS])
@pytest.mark.parametrize("rate", [0.0, -1.0, math.inf, math.nan])
def test_a_rate_that_is_no_positive_number_is_an_error(part: type[Adam], rate: float) -> None:
    with pytest.raises(ConfigError, match="learning_rate"):
        part(learning_rate=rate)


@pytest.mark.parametrize(
    ("ours", "torchs"),
    [
        (Adam(learning_rate=0.3), lambda values: torch.optim.Adam(values, lr=0.3)),
        (
            AdamW(learning_rate=0.3, weight_decay=0.1),
            lambda values: torch.optim.AdamW(values, lr=0.3, weight_decay=0.1),
        ),
    ],
    ids=["adam", "adamw"],
)
def test_our_adam_steps_as_torchs_bit_for_bit_and_resumes(
    ours: Optimizer, torchs: Callable[[list[Tensor]], torch.optim.Optimizer]
) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = [(3, 2, 5, 5), (4,)]
    mine, theirs = ([torch.ones(shape) for shape in shapes] for _ in range(2))
    stepper, reference = ours(mine), torchs(theirs)
    for number in range(30):
        if number == 11:  # as after a kill
            state, stepper = stepper.state_dict(), ours(mine)
            stepper.load_state_dict(state)
        for one, other in zip(mine, theirs, strict=True):
            one.grad = torch.randn(one.shape, generator=generator) * 10.0**-number
            other.grad = one.grad.clone()
        for group in (*stepper.param_groups, *reference.param_groups):
            group["lr"] = 0.3 * (1 - number / 30)
        stepper.step(lambda: 0.0)
        reference.step()
        assert all(torch.equal(one, other) for one, other in zip(mine, theirs, strict=True))


def test_an_attack_does_not_load_torchs_compiler() -> None:
    attack = """
import sys
from undelta import Scenario, disclose, strongest
scenario = Scenario(data="faces", image_size=16, num_samples=1, model_arguments={"width": 2, "hidden": 4}, batches=1)
strongest(steps=2, rollout_steps=1)(disclose(scenario.draw(seed=0), scenario, seed=0))
print("torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", attack], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.split()[-1] == "False"


@pytest.mark.parametrize("optimizer", EACH, ids=str)
def test_every_optimizer_finds_the_bottom_of_a_quadratic(optimizer: Optimizer) -> None:
    bottom, curvature = torch.tensor([0.5, -1.0, 2.0]), torch.tensor([1.0, 3.0, 10.0])
    place = torch.zeros(3, requires_grad=True)
    stepper = optimizer([place])

    def closure() -> float:
        stepper.zero_grad()
        loss = (curvature * (place - bottom).square()).sum()
        loss.backward()
        return float(loss.detach())

    first = closure()
    for _ in range(300):
        stepper.step(closure)
    assert closure() < 1e-2 * first


@pytest.mark.parametrize("optimizer", EACH, ids=str)
def test_every_optimizer_lowers_an_attacks_loss(optimizer: Optimizer, smooth: Observation) -> None:
    steps = 2 if isinstance(optimizer, LBFGS) else 21
    method = GradientMatching(
        replay=OneStep(in_gradients=True), distance=l2, optimizer=optimizer, box=False, steps=steps
    )
    result = method(smooth)
    start = GradientMatching(replay=OneStep(in_gradients=True), distance=l2, optimizer=Adam(), box=False, steps=1)(
        smooth
    )
    assert result.status == "completed"
    assert result.history[-1].loss < start.history[0].loss


def test_signed_steps_have_one_length_in_all_pixels(smooth: Observation) -> None:
    method = GradientMatching(
        replay=OneStep(position=0.5), optimizer=SGD(learning_rate=0.125), signed=True, box=False, schedule=three_step
    )
    descent = Descent(method, smooth, torch.Generator().manual_seed(0))
    before = descent.variables["images"].clone()
    descent.step(0, record=True)
    torch.testing.assert_close((descent.variables["images"] - before).abs(), torch.full_like(before, 0.125))
    before = descent.variables["images"].clone()
    descent.step(method.steps // 2, record=True)  # a tenth of the rate after 3/8 of the way
    torch.testing.assert_close(
        (descent.variables["images"] - before).abs(), torch.full_like(before, 0.0125), atol=1e-6, rtol=0
    )


def test_the_box_keeps_every_pixel_in_range(smooth: Observation) -> None:
    method = GradientMatching(replay=OneStep(position=0.5), optimizer=Adam(learning_rate=10.0))
    descent = Descent(method, smooth, torch.Generator().manual_seed(0))
    for iteration in range(3):
        descent.step(iteration, record=True)
        pixels = smooth.image.denormalize(descent.images)
        assert float(pixels.min()) >= -1e-6
        assert float(pixels.max()) <= 1 + 1e-6


class Failing:
    """The l2 distance, but not a number at the chosen evaluations."""

    def __init__(self, *failures: int) -> None:
        self.calls, self.failures = 0, failures
        self.always = False
        self.smallest = math.inf

    def __call__(self, dummy: Update, target: Update, weights: Weights) -> Tensor:
        self.calls += 1
        value = l2(dummy, target, weights)
        if self.always or self.calls in self.failures:
            return value * math.nan
        self.smallest = min(self.smallest, float(value.detach()))
        return value


def lbfgs(distance: Failing | None = None, rate: float = 1.0, steps: int = 12) -> GradientMatching:
    return GradientMatching(
        replay=OneStep(in_gradients=True),
        distance=distance or l2,
        optimizer=LBFGS(learning_rate=rate, inner=5),
        box=False,
        steps=steps,
    )


def test_lbfgs_restarts_from_its_best_point_after_a_step_into_nowhere(smooth: Observation) -> None:
    distance = Failing()
    descent = Descent(lbfgs(distance), smooth, torch.Generator().manual_seed(0))
    assert descent.step(0, record=True)
    distance.always = True
    assert descent.step(1, record=True)
    distance.always = False
    assert descent.recoveries == 1
    assert descent.best[0] == pytest.approx(distance.smallest)
    assert torch.equal(descent.variables["images"], descent.best[1]["images"])
    assert descent.step(2, record=True)
    assert descent.optimizer.param_groups[0]["lr"] == pytest.approx(0.5), "half the rate after one recovery"
    assert math.isfinite(descent.loss)


@pytest.mark.parametrize("failures", [(2,), (8, 14), (1,)], ids=["at once", "twice", "at its very start"])
def test_lbfgs_completes_after_a_distance_that_was_not_a_number(smooth: Observation, failures: tuple[int, ...]) -> None:
    distance = Failing(*failures)
    result = lbfgs(distance)(smooth)
    assert result.status == "completed"
    assert torch.isfinite(result.images).all()
    assert math.isfinite(result.mismatch)
    assert result.history[-1].loss < result.history[0].loss or math.isnan(result.history[0].loss)


def test_lbfgs_recovers_from_a_huge_rate(smooth: Observation) -> None:
    result = lbfgs(rate=1e30)(smooth)
    assert result.status == "completed"
    assert torch.isfinite(result.images).all()
    assert math.isfinite(result.mismatch)


def test_a_recovery_in_the_last_iteration_leaves_a_finite_history(smooth: Observation) -> None:
    result = lbfgs(Failing(8), steps=2)(smooth)
    assert result.status == "completed"
    assert all(math.isfinite(moment.loss) and math.isfinite(moment.mismatch) for moment in result.history)


def test_lbfgs_gives_up_after_too_many_recoveries(smooth: Observation) -> None:
    result = lbfgs(Failing(*range(2, 10_000)), steps=40)(smooth)
    assert result.status == "diverged"
    assert torch.isfinite(result.images).all()


def test_a_step_that_looks_ahead_mixes_the_slopes_of_two_places_and_moves_once() -> None:
    """On x² the slope here is 2x; Adam's first step from 1 goes the rate down, where the slope is less."""
    x = torch.tensor([1.0], dtype=torch.float64)
    seen = []

    def slope() -> float:
        seen.append(float(x))
        x.grad = 2 * x.detach()
        return float(x) ** 2

    stepper = LookAheadAdam(learning_rate=0.1, ahead=0.25)([x])
    loss = stepper.step(slope)
    assert loss == 1
    assert seen == pytest.approx([1, 0.9])
    assert x.grad is not None
    assert float(x.grad) == pytest.approx(0.75 * 2 + 0.25 * 1.8)
    assert 0.88 < float(x) < 0.92  # from 1, not from 0.9: one step was kept


def test_how_far_a_step_looks_ahead_is_a_share() -> None:
    with pytest.raises(ConfigError, match="0 <= ahead <= 1"):
        LookAheadAdam(ahead=1.5)
