"""Replays along learned paths: pullbacks against plain autograd in float64, and the cases in which paths agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from undelta.attacker.attacks import nl_sme, sme
from undelta.attacker.descent import Descent
from undelta.attacker.path_replay import PathReplay
from undelta.attacker.paths import LearnedCurve, LearnedPosition, QuadraticPath, StraightPath, UnevenSteps
from undelta.attacker.replay import Replay, ReplayPart
from undelta.attacker.replays import OneStep, observed_update
from undelta.client.disclose import disclose
from undelta.client.scenario import Scenario
from undelta.errors import ConfigError
from undelta.observation import Observation
from undelta.observation.withhold import only_layers, without
from undelta.updates import Update

LENET = Scenario(
    data="digits",
    num_samples=4,
    model="lenet",
    model_arguments={"width": 3},
    epochs=3,
    batches=2,
    learning_rate=0.2,
)
CNN = replace(LENET, model="cnn", model_arguments={"width": 4, "hidden": 8})

Nodes = Callable[[Update, Update, Mapping[str, Tensor]], list[Update]]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def observe(scenario: Scenario) -> Observation:
    return disclose(scenario.draw(0), scenario, dtype=torch.float64)


def draw(shape: torch.Size | tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64)


def on_line(start: Update, update: Update, place: Tensor | float) -> Update:
    return {name: start[name] + place * update.get(name, torch.zeros_like(start[name])) for name in start}


def straight_nodes(start: Update, update: Update, learned: Mapping[str, Tensor]) -> list[Update]:
    return [on_line(start, update, place) for place in (0.0, 1 / 3, 2 / 3)]


def position_nodes(start: Update, update: Update, learned: Mapping[str, Tensor]) -> list[Update]:
    return [on_line(start, update, learned["position"])]


def uneven_nodes(start: Update, update: Update, learned: Mapping[str, Tensor]) -> list[Update]:
    parts = learned["lengths"].exp() / learned["lengths"].exp().sum()
    return [on_line(start, update, parts[:j].sum() + parts[j] / 2) for j in range(len(parts))]


def quadratic_nodes(start: Update, update: Update, learned: Mapping[str, Tensor]) -> list[Update]:
    nodes = []
    for place in (1 / 6, 1 / 2, 5 / 6):
        line = on_line(start, update, place)
        bend = 2 * place * (1 - place)
        nodes.append({name: value + bend * learned[f"control/{name}"] for name, value in line.items()})
    return nodes


def curve_nodes(start: Update, update: Update, learned: Mapping[str, Tensor]) -> list[Update]:
    """(1−t)²θ + 2t(1−t)P + t²θ⁺ with P = θ + u/2 + c, as NL-SME has it; and the factor on the way from θ."""
    t, node = learned["position"], Update()
    for name, first in start.items():
        last = first + update.get(name, torch.zeros_like(first))
        control = (first + last) / 2 + learned[f"control/{name}"]
        place = (1 - t) ** 2 * first + 2 * t * (1 - t) * control + t**2 * last
        node[name] = first + learned[f"factor/{name}"] * (place - first)
    return [node]


PATHS: dict[str, tuple[ReplayPart, Nodes]] = {
    "straight": (StraightPath(), straight_nodes),
    "learned position": (LearnedPosition(position=0.3), position_nodes),
    "uneven steps": (UnevenSteps(nodes=3), uneven_nodes),
    "quadratic": (QuadraticPath(nodes=3), quadratic_nodes),
    "learned curve": (LearnedCurve(position=0.4, ridge=0.0), curve_nodes),
}


def relative_gap(found: Tensor, expected: Tensor) -> float:
    assert expected.norm() > 0, "the test would prove nothing"
    return float((found - expected).norm() / expected.norm())


def check_against_autograd(part: ReplayPart, nodes: Nodes, observation: Observation, *, soft: bool) -> None:
    replay = part(observation, generator())
    assert isinstance(replay, PathReplay)
    images = draw((observation.num_samples, *observation.image.shape), 1).requires_grad_()
    logits = draw((observation.num_samples, 10), 2)
    labels = logits.softmax(1).requires_grad_() if soft else logits.argmax(1)
    learned = {
        name: (value + 0.1 * draw(value.shape, seed)).detach().requires_grad_()
        for seed, (name, value) in enumerate(replay.variables.items(), start=3)
    }
    cotangent = {name: draw(value.shape, seed) for seed, (name, value) in enumerate(replay.target.items(), start=50)}

    # The same by one big graph.
    model = observation.model()
    _, start, update = observed_update(observation)
    points = nodes(start, update, learned)
    total: dict[str, Tensor] = {}
    for point in points:
        leaves = {
            name: value if value.requires_grad else value.clone().requires_grad_() for name, value in point.items()
        }
        outputs = functional_call(model, leaves, (images,))
        targets = labels if soft else torch.nn.functional.one_hot(labels, 10).double()
        loss = -(targets * outputs.log_softmax(1)).sum(1).mean()
        gradients = torch.autograd.grad(loss, list(leaves.values()), create_graph=True)
        for name, gradient in zip(leaves, gradients, strict=True):
            total[name] = total.get(name, torch.zeros_like(gradient)) - observation.path_length * gradient / len(points)
    product = torch.stack([(total[name] * cotangent[name]).sum() for name in cotangent]).sum()
    wanted = [images, *([labels] if soft else []), *learned.values()]
    expected = list(torch.autograd.grad(product, wanted))

    dummy, _, pullback = replay(
        images.detach(), labels.detach(), {name: value.detach() for name, value in learned.items()}
    )
    assert set(dummy) == set(replay.target)
    for name, value in dummy.items():
        assert relative_gap(value, total[name].detach()) < 1e-10
    pulled = pullback(cotangent)
    assert relative_gap(pulled.images, expected.pop(0)) < 1e-8
    if soft:
        assert pulled.labels is not None
        assert relative_gap(pulled.labels, expected.pop(0)) < 1e-8
    else:
        assert pulled.labels is None
    assert list(pulled.variables) == list(learned)
    for value, other in zip(pulled.variables.values(), expected, strict=True):
        assert relative_gap(value, other) < 1e-8


@pytest.mark.parametrize("soft", [False, True], ids=["class labels", "soft labels"])
@pytest.mark.parametrize("scenario", [LENET, CNN], ids=["lenet", "cnn"])
@pytest.mark.parametrize("path", PATHS)
def test_a_paths_pullback_equals_plain_autograd(path: str, scenario: Scenario, soft: bool) -> None:
    part, nodes = PATHS[path]
    check_against_autograd(part, nodes, observe(scenario), soft=soft)


@pytest.mark.parametrize("path", PATHS)
def test_a_pullback_of_some_observed_layers_equals_plain_autograd(path: str) -> None:
    part, nodes = PATHS[path]
    check_against_autograd(part, nodes, only_layers(observe(CNN), ["conv2", "fc2"]), soft=True)


def updates(part: ReplayPart, observation: Observation) -> tuple[Update, Tensor]:
    """A replay's dummy update of some images, and the gradient that it pulls back to them."""
    replay: Replay = part(observation, generator())
    images = draw((observation.num_samples, *observation.image.shape), 1)
    dummy, _, pullback = replay(images, torch.tensor([3, 1, 4, 1]))
    return dummy, pullback(replay.target).images


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (StraightPath(nodes=1), OneStep(position=0.0)),
        (StraightPath(nodes=1, middle=True), OneStep(position=0.5)),
        (LearnedPosition(position=0.5), OneStep(position=0.5)),
        (QuadraticPath(nodes=3), StraightPath(nodes=3, middle=True)),
        (UnevenSteps(nodes=4), StraightPath(nodes=4, middle=True)),
        (StraightPath(), StraightPath(nodes=LENET.epochs)),
    ],
    ids=[
        "one node at the start is one step there",
        "one node in the middle is one step there",
        "a learned position starts as a fixed one",
        "a parabola starts as the straight line",
        "uneven steps start as even ones",
        "a straight path has a node for every epoch",
    ],
)
def test_paths_that_should_agree_do(one: ReplayPart, other: ReplayPart) -> None:
    observation = observe(LENET)
    (first, first_images), (second, second_images) = updates(one, observation), updates(other, observation)
    for name, value in second.items():
        torch.testing.assert_close(first[name], value, rtol=1e-11, atol=1e-14)
    torch.testing.assert_close(first_images, second_images, rtol=1e-9, atol=1e-13)
    targets = [part(observation, generator()).target for part in (one, other)]
    assert all(torch.equal(targets[0][name], targets[1][name]) for name in targets[1])


@pytest.mark.parametrize("rate", [0.4, 50.0])
def test_a_learned_position_stays_between_both_models(rate: float) -> None:
    observation = observe(CNN)
    method = sme(steps=20, position_rate=rate)
    descent = Descent(method, observation, generator())
    seen = set()
    for iteration in range(20):
        descent.step(iteration, record=False)
        seen.add(float(descent.learned["position"]))
    assert all(0 <= position <= 1 for position in seen)
    assert len(seen) > 1
    assert method.replay(observation, generator()).variables["position"] == 0.5, "a run changed the replay's own start"


def test_a_path_without_its_length_keeps_its_direction() -> None:
    observation = observe(CNN)
    blind = without(observation, "learning_rate")
    for part in (LearnedPosition(), UnevenSteps(), QuadraticPath(), StraightPath()):
        known, unknown = updates(part, observation)[0], updates(part, blind)[0]
        for name, value in known.items():
            torch.testing.assert_close(unknown[name] * observation.path_length, value, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("part", [StraightPath, UnevenSteps, QuadraticPath])
def test_a_path_needs_a_node(part: type[UnevenSteps]) -> None:
    with pytest.raises(ConfigError, match="nodes"):
        part(nodes=0)


@pytest.mark.parametrize("position", [-0.1, 1.5, float("nan")])
def test_a_learned_position_starts_between_both_models(position: float) -> None:
    with pytest.raises(ConfigError, match="position"):
        LearnedPosition(position=position)


def test_nodes_lie_on_the_observed_line_whatever_weight_decay_did() -> None:
    observation = observe(replace(LENET, weight_decay=0.1))
    _, start, update = observed_update(observation)
    replay = StraightPath(nodes=2)(observation, generator())
    nodes, _ = replay.shape(replay.start, replay.way, {})
    for name, value in nodes[1].items():
        torch.testing.assert_close(value, start[name] + update[name] / 2)
    assert not torch.equal(replay.target["fc.0.weight"], update["fc.0.weight"])


# Curves


def test_gauss_and_legendres_nodes_integrate_the_paths_gradients_better_than_as_many_even_ones() -> None:
    observation = observe(replace(LENET, learning_rate=1.0))  # smooth, and a curved path
    exact, _ = updates(StraightPath(nodes=64, middle=True), observation)

    def gap(part: ReplayPart) -> float:
        found, _ = updates(part, observation)
        flat, whole = (torch.cat([one[name].flatten() for name in exact]) for one in (found, exact))
        return relative_gap(flat, whole)

    assert gap(QuadraticPath(nodes=3, gauss=True)) < 0.3 * gap(QuadraticPath(nodes=3))


def test_a_ridge_keeps_what_is_learned_where_it_started() -> None:
    observation = observe(CNN)
    images = draw((observation.num_samples, *observation.image.shape), 1)
    labels = torch.tensor([3, 1, 4, 1])
    for part in (LearnedCurve(ridge=0.5), QuadraticPath(ridge=0.5)):
        held, free = (replace(part, ridge=ridge)(observation, generator()) for ridge in (0.5, 0.0))
        learned = {
            name: value + (0.1 * draw(value.shape, seed) if name != "position" else 0.0)
            for seed, (name, value) in enumerate(held.variables.items())
        }
        moved = {name: value - held.variables[name] for name, value in learned.items()}
        ridge = held.ridge(learned)
        assert ridge is not None
        assert float(ridge) == pytest.approx(0.5 * sum(float(value.square().sum()) for value in moved.values()))
        assert free.ridge(learned) is None
        assert float(held.ridge({})) == 0  # type: ignore[arg-type]
        with_it, without_it = (
            replay(images, labels, learned).pullback(replay.target).variables for replay in (held, free)
        )
        for name, slope in with_it.items():  # the slope of |v - v0|² is twice what has moved
            torch.testing.assert_close(slope, without_it[name] + moved[name])


def test_every_variable_moves_at_its_own_rate() -> None:
    method = nl_sme(position_rate=0.02, control_rate=1e-3, factor_rate=1e-4, steps=5)
    descent = Descent(method, observe(CNN), generator())
    before = {name: value.clone() for name, value in descent.learned.items()}
    descent.step(0, record=True)
    moved = {name: float((value - before[name]).abs().max()) for name, value in descent.learned.items()}
    assert moved["position"] == pytest.approx(0.02, rel=1e-3)  # Adam's first step is as long as its rate
    assert max(size for name, size in moved.items() if name.startswith("control/")) == pytest.approx(1e-3, rel=1e-2)
    assert max(size for name, size in moved.items() if name.startswith("factor/")) == pytest.approx(1e-4, rel=1e-2)


@pytest.mark.parametrize("part", [LearnedCurve, QuadraticPath])
def test_a_ridge_is_not_negative(part: type[QuadraticPath]) -> None:
    with pytest.raises(ConfigError, match="ridge"):
        part(ridge=-1.0)
