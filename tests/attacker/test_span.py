"""The span test: an update confirms the images behind it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from undelta.attacker.span import contains, rows_of, spans
from undelta.client.disclose import disclose
from undelta.client.scenario import Scenario
from undelta.errors import MissingKnowledge

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
    assert names == ["conv2", "fc1", "fc2"]  # the first convolution saw 4 x 64 patches of 3 x 3


def test_a_network_that_is_filled_says_that_the_test_does_not_apply() -> None:
    scenario = replace(SCENARIO, num_samples=12, model="mlp", model_arguments={"hidden": [8]})
    observation = disclose(scenario.draw(0), scenario)
    with pytest.raises(MissingKnowledge, match="does not apply"):
        contains(observation, scenario.draw(0).images, scenario.draw_held_out(0, 5).images)
