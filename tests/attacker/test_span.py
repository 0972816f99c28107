"""The spans of an update: they confirm the images behind it, and pull dummy images to them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from undelta.attacker import span
from undelta.attacker.priors import Penalty
from undelta.attacker.replay import prepare
from undelta.attacker.replays import OneStep
from undelta.attacker.span import (
    DRIFT,
    SMALLEST,
    InputSpans,
    _inputs,
    _model,
    _rows,
    contains,
    mean_by_parts,
    rows_of,
    spans,
)
from undelta.attacker.spiked import Leading, leading
from undelta.client.disclose import disclose
from undelta.client.private import Private
from undelta.client.scenario import Scenario
from undelta.engine import MEMORY
from undelta.errors import MissingKnowledge
from undelta.observation import Observation
from undelta.seeding import stream
from undelta.studies.bench.cases import load_benchmark

SCENARIO = Scenario(data="digits", num_samples=4, epochs=5, batches=2, learning_rate=0.01)


def test_rows_times_the_matrix_are_the_layers_outputs() -> None:
    draw = torch.Generator().manual_seed(0)
    layer = nn.Conv2d(3, 5, 3, stride=2, padding=1, bias=False)
    images = torch.randn(2, 3, 9, 9, generator=draw)
    rows = rows_of(layer, images)
    outputs = rows @ layer.weight.flatten(1).T  # (n, positions, outputs)
    torch.testing.assert_close(outputs.transpose(1, 2).unflatten(2, (5, 5)), layer(images))


def test_the_inputs_of_one_step_lie_in_the_span_exactly() -> None:
    scenario = replace(SCENARIO, epochs=1, batches=1, learning_rate=1e-6, model="mlp")
    private = scenario.draw(0)
    observation = disclose(private, scenario, dtype=torch.float64)
    others = scenario.draw_held_out(0, 20).images
    for one in contains(observation, private.images, others):
        assert one.outside < 1e-6


@pytest.mark.parametrize("changes", [{}, {"model": "resnet8", "norm_mode": "eval"}, {"grant_labels": False}])
def test_private_images_are_told_from_others(changes: dict[str, object]) -> None:
    scenario = replace(SCENARIO, **changes)  # type: ignore[arg-type]
    private, others = scenario.draw(0), scenario.draw_held_out(0, 45)
    observation = disclose(private, scenario, seed=0)
    unknown = replace(
        observation,
        training=replace(observation.training, epochs=1, learning_rate=1.0),
        labels=None,
        unknown=("epochs", "learning_rate"),
    )
    found = contains(unknown, torch.cat([private.images, others.images[:5]]), others.images[5:])
    inside, outside = found[:4], found[4:]
    assert all(one.p_value == pytest.approx(1 / 41) for one in inside)
    assert max(one.outside for one in inside) < 0.1 * min(one.outside for one in outside)


def test_p_values_of_strangers_are_spread() -> None:
    private, others = SCENARIO.draw(0), SCENARIO.draw_held_out(0, 100)
    observation = disclose(private, SCENARIO, seed=0)
    values = [one.p_value for one in contains(observation, others.images[:50], others.images[50:])]
    assert 0.3 < sum(values) / len(values) < 0.7


def test_layers_that_saw_too_many_inputs_are_left_out() -> None:
    private = SCENARIO.draw(0)
    observation = disclose(private, SCENARIO, seed=0)
    names = [span.name for span in spans(observation, observation.model(), private.images)]
    assert names == ["conv2", "fc1"]  # the first convolution saw 4 x 64 patches of 3 x 3; the last layer never counts


def only_its_head(scenario: Scenario) -> Scenario:
    """So many images that no layer but the last one leaves directions free."""
    narrow = {"width": 1, "hidden": 20}  # the first linear layer has 8 inputs
    return replace(scenario, num_samples=8, model_arguments=narrow, classes=16, epochs=1, batches=1)


def test_the_last_layer_stands_in_where_there_is_no_other_but_never_pulls() -> None:
    scenario = only_its_head(SCENARIO)
    observation = disclose(scenario.draw(0), scenario)
    assert [span.name for span in spans(observation, observation.model(), scenario.draw(0).images)] == ["fc2"]
    assert prior(scenario)[0] is None


def test_the_only_layer_has_a_span_that_pulls() -> None:
    scenario = replace(SCENARIO, model="mlp", model_arguments={"hidden": []}, classes=10)
    assert prior(scenario)[0] is not None


def test_a_span_has_room_for_inputs_that_change() -> None:
    private = SCENARIO.draw(0)
    observation = disclose(private, SCENARIO, seed=0)
    _, span = spans(observation, observation.model(), private.images)
    assert len(span.directions) == DRIFT * 4  # fc1, of four images
    matrix = observation.received["fc1.weight"] - observation.initial["fc1.weight"]
    narrow = replace(span, directions=leading(matrix, 4).directions)
    with torch.no_grad():
        rows = dict(_rows(_model(observation), _inputs(observation, private.images)))["fc1"]
    assert float(span.outside(rows).mean()) < 0.5 * float(narrow.outside(rows).mean())


def test_a_network_that_is_filled_says_that_the_test_does_not_apply() -> None:
    scenario = replace(SCENARIO, num_samples=12, model="mlp", model_arguments={"hidden": [8]})
    observation = disclose(scenario.draw(0), scenario)
    with pytest.raises(MissingKnowledge, match="does not apply"):
        contains(observation, scenario.draw(0).images, scenario.draw_held_out(0, 5).images)


def prior(scenario: Scenario, *, convolutions: bool = True) -> tuple[Penalty | None, Observation]:
    observation = disclose(scenario.draw(0), scenario, seed=0, dtype=torch.float64)
    replay = prepare(OneStep(position=0.5), observation, stream("attacker", 0), MEMORY)
    return InputSpans(weight=0.5, convolutions=convolutions)(observation, replay), observation


def test_spans_of_linear_layers_alone() -> None:
    images = SCENARIO.draw_held_out(0, 4).images.double()
    values = []
    for convolutions in (True, False):
        penalty, observation = prior(SCENARIO, convolutions=convolutions)
        assert penalty is not None
        with torch.no_grad():
            values.append(float(penalty(observation.image.normalize(images), torch.empty(0))))
    found = {span.name: span for span in spans(observation, _model(observation), images)}
    with torch.no_grad():
        rows = dict(_rows(_model(observation), _inputs(observation, images)))
        alone = {name: 0.5 * float(found[name].outside(rows[name]).log().mean()) for name in ("conv2", "fc1")}
    assert values == pytest.approx([(alone["conv2"] + alone["fc1"]) / 2, alone["fc1"]])


def test_a_resnet_has_no_linear_layer_whose_span_counts() -> None:
    scenario = replace(SCENARIO, model="resnet8", norm_mode="eval")
    assert prior(scenario)[0] is not None
    assert prior(scenario, convolutions=False)[0] is None


def test_the_spans_as_a_prior_are_least_at_the_private_images() -> None:
    penalty, observation = prior(SCENARIO)
    assert penalty is not None
    truth, others = SCENARIO.draw(0).images, SCENARIO.draw_held_out(0, 4).images
    at = [float(penalty(observation.image.normalize(images.double()), torch.empty(0))) for images in (truth, others)]
    assert at[0] < at[1] - 0.5 * math.log(10)  # a tenth of the share outside, at most


def test_the_gradient_of_the_spans_is_that_of_finite_differences() -> None:
    penalty, observation = prior(SCENARIO)
    assert penalty is not None
    images = observation.image.normalize(SCENARIO.draw_held_out(0, 4).images.double()).requires_grad_()
    direction = torch.randn(images.shape, generator=torch.Generator().manual_seed(1), dtype=images.dtype)
    (slope,) = torch.autograd.grad(penalty(images, torch.empty(0)), images)
    with torch.no_grad():
        ahead, behind = (penalty(images + step * direction, torch.empty(0)) for step in (1e-6, -1e-6))
    assert float((slope * direction).sum()) == pytest.approx(float(ahead - behind) / 2e-6, rel=1e-4)


@pytest.mark.parametrize(
    "changes",
    [{"num_samples": 20, "model_arguments": {"width": 4, "hidden": 16}}, {"optimizer": "adam"}],
    ids=["images that fill every layer", "Adam"],
)
def test_the_spans_are_silent_where_there_are_none(changes: dict[str, Any]) -> None:
    assert prior(SCENARIO)[0] is not None
    assert prior(replace(SCENARIO, **changes))[0] is None


def noisy_update() -> tuple[Observation, Tensor, Tensor]:
    """What a server sees of an update behind Gaussian noise, the private images, and others."""
    scenario = load_benchmark().cases["noise"].scenario
    private = scenario.draw(50)
    return disclose(private, scenario, seed=50), private.images, scenario.draw_held_out(50, 8).images


def first_rows(observation: Observation, images: Tensor) -> tuple[span.Span, Tensor]:
    """The span of the first linear layer, and what these images send there."""
    model = _model(observation)
    (found,) = spans(observation, model, images)
    (rows,) = [rows for name, rows in _rows(model, _inputs(observation, images)) if name == found.name]
    return found, rows.detach()


def test_behind_noise_private_images_are_explained_as_far_as_noise_lets_them() -> None:
    observation, private, others = noisy_update()
    found, rows = first_rows(observation, private)
    _, strange = first_rows(observation, others)
    assert found.trust is not None
    assert 0 < (found.trust > 0).sum() <= len(private) + 1  # of the sixteen that are looked at
    assert found.outside(rows).mean() > 100 * SMALLEST
    # What the turned span does not hold of the private inputs is what was predicted that it would not.
    torch.testing.assert_close(found.unexplained(rows), found.outside(rows), rtol=0, atol=0.01)
    assert found.unexplained(rows).mean() < found.unexplained(strange).mean() / 10


def test_private_images_are_pulled_less_into_a_span_that_noise_has_turned() -> None:
    observation, private, _ = noisy_update()
    found, rows = first_rows(observation, private)
    pulls = []
    for one in (found, replace(found, trust=None)):
        inputs = rows.clone().requires_grad_()
        loss = one.unexplained(inputs).clamp_min(SMALLEST).log().mean()
        pulls.append(float(torch.autograd.grad(loss, inputs)[0].norm()))
    assert pulls[0] < 0.8 * pulls[1]


def behind_noise(scale: float) -> tuple[Scenario, Private, Observation]:
    """A client of the benchmark's behind as much noise as is said."""
    scenario = replace(load_benchmark().cases["noise"].scenario, defenses=({"defense": "noise", "scale": scale},))
    private = scenario.draw(50)
    return scenario, private, disclose(private, scenario, seed=50)


@pytest.mark.parametrize(("scale", "pulls"), [(1e-5, True), (0.002, False), (0.1, False)])
def test_images_are_pulled_only_where_noise_leaves_a_direction_for_each(scale: float, pulls: bool) -> None:
    _, private, observation = behind_noise(scale)
    found, _ = first_rows(observation, private.images)
    assert found.trust is None or ((found.trust > 0).sum() >= len(private.images)) == pulls
    replay = OneStep()(observation, torch.Generator())
    assert (InputSpans(weight=1.0, convolutions=False)(observation, replay) is not None) == pulls


def test_behind_much_noise_images_can_still_be_asked_for() -> None:
    scenario, private, observation = behind_noise(0.1)
    found, rows = first_rows(observation, private.images)
    assert found.trust is not None
    assert not found.trust.any()
    torch.testing.assert_close(found.unexplained(rows), torch.ones(len(rows)))
    others = scenario.draw_held_out(50, 8).images
    assert len(contains(observation, private.images, others)) == len(private.images)


def test_without_noise_all_of_a_span_is_trusted() -> None:
    scenario = load_benchmark().cases["short"].scenario
    private = scenario.draw(50)
    found, _ = first_rows(disclose(private, scenario, seed=50), private.images)
    assert found.trust is None


def test_a_mean_by_parts_is_that_of_the_whole_with_its_gradient() -> None:
    images = torch.rand(5, 3, dtype=torch.float64, requires_grad=True)

    def mean(part: Tensor) -> Tensor:
        assert len(part) <= most
        return part.square().sum(1).log().mean()

    most, values, gradients = 5, list[Tensor](), list[Tensor]()
    for size in (5, 2):
        most = size
        value = mean_by_parts(mean, images, size)
        values.append(value.detach())
        gradients += torch.autograd.grad(value, images)
        torch.testing.assert_close(mean_by_parts(mean, images.detach(), size), values[-1])
    torch.testing.assert_close(values[0], values[1])
    torch.testing.assert_close(gradients[0], gradients[1])


def test_the_spans_keep_to_the_memory_limit_and_are_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = Scenario(data="patches", num_samples=4, epochs=1, batches=1)
    observation = disclose(scenario.draw(seed=0), scenario, seed=0)
    sizes, solved = list[int](), list[int]()
    rows, solve = span._rows, leading

    def counted(model: nn.Module, inputs: Tensor, *names: Any) -> Any:
        sizes.append(len(inputs))
        return rows(model, inputs, *names)

    def solving(matrix: Tensor, rank: int) -> Leading:
        solved.append(rank)
        return solve(matrix, rank)

    monkeypatch.setattr(span, "_rows", counted)
    monkeypatch.setattr(span, "leading", solving)
    replay = OneStep()(observation, torch.Generator())
    images = torch.rand(4, *observation.image.shape)
    whole = InputSpans(weight=0.5)(observation, replay)
    layers = len(solved)
    assert layers
    values = [whole(images, torch.zeros(4))]  # type: ignore[misc]
    replay.network.memory = 1
    values.append(InputSpans(weight=0.5)(observation, replay)(images, torch.zeros(4)))  # type: ignore[misc]
    assert sizes == [1, 4, 1, 1, 1, 1]  # the first one to see what the layers see
    assert len(solved) == layers
    torch.testing.assert_close(values[0], values[1])
