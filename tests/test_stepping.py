"""One optimizer's steps against torch's own, and what a whole round makes of its gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, LinearLR, LRScheduler

from undelta.stepping import Place, Stepping, response
from undelta.training import LocalTraining

STEPS = 6
RATE = 0.1
OPTIMIZERS: dict[str, tuple[dict[str, Any], Callable[..., torch.optim.Optimizer], dict[str, Any]]] = {
    "weight decay": ({"weight_decay": 0.1}, torch.optim.SGD, {"weight_decay": 0.1}),
    "momentum": ({"momentum": 0.9, "weight_decay": 0.1}, torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1}),
    "Nesterov": ({"momentum": 0.9, "nesterov": True}, torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    "clipping": ({"momentum": 0.9, "clip_norm": 0.7}, torch.optim.SGD, {"momentum": 0.9}),
    "adam": ({"optimizer": "adam", "weight_decay": 0.1}, torch.optim.Adam, {"weight_decay": 0.1}),
    "adamw": (
        {"optimizer": "adamw", "weight_decay": 0.1, "betas": (0.7, 0.9), "adam_epsilon": 1e-3},
        torch.optim.AdamW,
        {"weight_decay": 0.1, "betas": (0.7, 0.9), "eps": 1e-3},
    ),
}


def local(**settings: Any) -> LocalTraining:
    return LocalTraining(**{"epochs": 2, "batches": 3, "learning_rate": RATE, **settings})


def random_tensors(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("settings", "optimizer", "arguments"), OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_steps_are_those_of_torch(
    settings: dict[str, Any], optimizer: Callable[..., torch.optim.Optimizer], arguments: dict[str, Any]
) -> None:
    gradients = random_tensors(STEPS, 2, 4)
    parameters = [nn.Parameter(value.clone()) for value in random_tensors(2, 4, seed=1)]
    start = {str(index): value.detach().clone() for index, value in enumerate(parameters)}
    theirs = optimizer(parameters, lr=RATE, **arguments)
    ours = Stepping.of(local(**settings))
    assert ours is not None
    place = ours.start(start)
    for gradient in gradients:
        for parameter, slope in zip(parameters, gradient, strict=True):
            parameter.grad = slope.clone()
        if ours.clip_norm is not None:
            nn.utils.clip_grad_norm_(parameters, ours.clip_norm)
        theirs.step()
        memory, change = ours.step(place, {str(index): slope for index, slope in enumerate(gradient)}, (RATE,))
        moved = {name: value + change[name] for name, value in place.moved.items()}
        place = Place({name: start[name] + moved[name] for name in moved}, moved, memory, place.taken + 1)
    for parameter, value in zip(parameters, place.point.values(), strict=True):
        assert (parameter - value).abs().max() < 1e-12


SCHEDULES: dict[str, Callable[[torch.optim.Optimizer, int], LRScheduler]] = {
    "linear": lambda optimizer, count: LinearLR(optimizer, 1.0, end_factor=0.2, total_iters=count),
    "cosine": lambda optimizer, count: CosineAnnealingLR(optimizer, count, eta_min=0.2 * RATE),
    "exponential": lambda optimizer, count: ExponentialLR(optimizer, 0.2 ** (1 / count)),
}


@pytest.mark.parametrize("by", ["step", "epoch"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules_are_those_of_torch(schedule: str, by: str) -> None:
    training = local(schedule=schedule, schedule_end=0.2, schedule_by=by)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=RATE)
    scheduler = SCHEDULES[schedule](optimizer, STEPS if by == "step" else training.epochs)
    rates = []
    for index in range(STEPS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if by == "step" or (index + 1) % training.batches == 0:
            scheduler.step()
    assert training.rates == pytest.approx(rates, rel=1e-12)


def test_several_linear_steps_along_one_gradient_are_one() -> None:
    stepping = Stepping(momentum=0.9, nesterov=True, weight_decay=0.1, proximal=0.3)
    point, gradient, velocity, moved = ({"": value} for value in random_tensors(4, 5))
    start = place = Place(point, moved, (velocity,), 3)
    total = torch.zeros(5, dtype=torch.float64)
    rates = (0.1, 0.05, 0.2)
    for rate in rates:
        memory, change = stepping.step(place, gradient, (rate,))
        total = total + change[""]
        place = Place({"": point[""] + total}, {"": moved[""] + total}, memory, place.taken + 1)
    memory, change = stepping.step(start, gradient, rates)
    torch.testing.assert_close(change[""], total, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(memory[0][""], place.memory[0][""], rtol=1e-12, atol=1e-12)


def test_momentum_weights_early_gradients_by_a_geometric_sum() -> None:
    """Without changes of the gradient, the update is −τ g, and a step's gradient weighs η (1 − m^(T−t)) / (1 − m)."""
    found = response(local(momentum=0.5))
    weights = [RATE * (1 - 0.5 ** (STEPS - step)) / 0.5 for step in range(STEPS)]
    assert found.length == pytest.approx(sum(weights))
    assert found.decay == 0
    shares = [sum(weights[:step]) / sum(weights) for step in range(STEPS + 1)]
    assert found.gradients == pytest.approx(shares)
    assert found.reached(0) == 0
    assert found.reached(1) == pytest.approx(1)
    assert 0.2 < found.reached(0.5) < 0.5  # the velocity lags behind


@pytest.mark.parametrize(
    "recipe",
    [
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
        {"momentum": 0.5, "proximal": 0.4, "schedule": "cosine"},
        {"weight_decay": 0.2, "proximal": 0.3},
    ],
    ids=lambda recipe: ", ".join(recipe),
)
def test_the_response_is_that_of_the_steps_themselves(recipe: dict[str, Any]) -> None:
    training = local(**recipe)
    found, stepping = response(training), Stepping.of(training) or Stepping()

    def end(start: float, gradients: list[float]) -> list[float]:
        """The way from the start after every step."""
        point = {"": torch.tensor([start], dtype=torch.float64)}
        place, way = stepping.start(point), [0.0]
        for rate, gradient in zip(training.rates, gradients, strict=True):
            slope = {"": torch.tensor([gradient], dtype=torch.float64)}
            memory, change = stepping.step(place, slope, (rate,))
            moved = {"": place.moved[""] + change[""]}
            place = Place({"": point[""] + moved[""]}, moved, memory, place.taken + 1)
            way.append(float(moved[""]))
        return way

    ones = end(0.0, [1.0] * STEPS)
    single = [-end(0.0, [float(step == index) for index in range(STEPS)])[-1] for step in range(STEPS)]
    assert found.length == pytest.approx(-ones[-1], rel=1e-12)
    assert found.decay == pytest.approx(end(1.0, [0.0] * STEPS)[-1], rel=1e-12)
    assert found.moved == pytest.approx([part / ones[-1] for part in ones], rel=1e-12)
    shares = [sum(single[:step]) / found.length for step in range(STEPS + 1)]
    assert found.gradients == pytest.approx(shares, rel=1e-12, abs=1e-12)


@pytest.mark.usefixtures("bounded_memory")
def test_a_long_round_responds_at_once() -> None:
    assert len(response(local(momentum=0.5, epochs=10_000)).moved) == 30_001


def test_weight_decay_alone_shrinks_the_start_by_a_known_factor() -> None:
    for optimizer in ("sgd", "adamw"):
        found = response(local(optimizer=optimizer, weight_decay=0.3))
        assert found.decay == pytest.approx((1 - RATE * 0.3) ** STEPS - 1)


def test_plain_sgd_responds_with_its_learning_rates() -> None:
    found = response(local(schedule="linear"))
    assert found.length == pytest.approx(sum(local(schedule="linear").rates))
    assert found.reached(0.3) == pytest.approx(0.3)
    assert Stepping.of(local(schedule="linear")) is None


def test_entries_without_any_gradient_do_not_poison_adams_way_back() -> None:
    stepping = Stepping(optimizer="adam")
    place = stepping.start({"": torch.zeros(2, dtype=torch.float64)})
    gradient = {"": torch.tensor([0.0, 1.0], dtype=torch.float64)}
    ones = {"": torch.ones(2, dtype=torch.float64)}
    back = stepping.pull(place, gradient, (0.1,), (ones, ones), ones)
    assert torch.isfinite(back.gradient[""]).all()


def test_the_way_back_through_softened_adam_is_its_slope() -> None:
    stepping = Stepping(optimizer="adam", betas=None, softness=0.5)
    gradient, memory, direction, cotangent = random_tensors(4, 2, 3)
    place = Place({"": gradient[0]}, {"": gradient[0]}, ({"": memory[0]}, {"": memory[1] ** 2}), 2)

    def change(amount: float) -> Tensor:
        return stepping.step(place, {"": gradient[0] + amount * direction[0]}, (0.1,))[1][""]

    zeros = {"": torch.zeros(3, dtype=torch.float64)}
    back = stepping.pull(place, {"": gradient[0]}, (0.1,), (zeros, zeros), {"": cotangent[0]})
    slope = (change(1e-6) - change(-1e-6)) @ cotangent[0] / 2e-6
    assert float(back.gradient[""] @ direction[0]) == pytest.approx(float(slope), rel=1e-7)
