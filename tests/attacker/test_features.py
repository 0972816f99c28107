"""The last layer's inputs against the true ones: exact after one gradient, close after several epochs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from undelta.attacker.features import Features, last_inputs
from undelta.attacker.labels import last_layer
from undelta.client.disclose import disclose
from undelta.client.private import Private
from undelta.client.scenario import Scenario
from undelta.errors import MissingKnowledge
from undelta.evaluation.read_off import read_off
from undelta.observation import Observation

RESNET = Scenario(
    data="digits",
    num_samples=4,
    model="resnet8",
    model_arguments={"width": 4},
    norm_mode="eval",
    epochs=1,
    batches=1,
    learning_rate=0.01,
)


def solved(seed: int = 4, **fields: Any) -> tuple[Features, Tensor, Observation, Private]:
    """What is solved for, and the true inputs in the same order."""
    scenario = replace(RESNET, **fields)
    private = scenario.draw(seed)
    observation = disclose(private, scenario, seed=seed, dtype=torch.float64)
    found = last_inputs(observation)
    true, _ = last_layer(observation).seen(found.place, observation.image.normalize(private.images.double()))
    return found, true[private.labels.argsort()], observation, private


@pytest.mark.parametrize("fields", [{}, {"label_smoothing": 0.1}, {"weight_decay": 0.1}])
def test_one_gradient_gives_the_inputs_exactly(fields: dict[str, Any]) -> None:
    found, true, _, _ = solved(**fields)
    assert found.settled
    assert found.place == 0
    assert float((found.inputs - true).norm() / true.norm()) < 1e-6


@pytest.mark.parametrize("seed", [4, 5, 9])
def test_epochs_of_mini_batches_give_them_nearly(seed: int) -> None:
    found, true, observation, private = solved(seed, epochs=5, batches=2)
    cosines = torch.cosine_similarity(found.inputs, true, 1)
    others = torch.cosine_similarity(true[:, None], true[None], 2).fill_diagonal_(-1).amax(1)
    assert float(cosines.min()) > 0.999
    assert bool((1 - cosines < 0.1 * (1 - others)).all()), "far closer than any other image's"
    told = read_off(observation, private)
    assert sorted(told.cosines) == pytest.approx(sorted(cosines.tolist()), abs=1e-9)
    assert sorted(told.others) == pytest.approx(sorted(others.tolist()), abs=1e-9)
    assert "Read off without optimization" in told.text


def test_inputs_are_told_of_the_right_images() -> None:
    _, _, observation, private = solved(epochs=2)
    wrong = Private(images=private.images.flip(0), labels=private.labels)
    assert min(read_off(observation, private).cosines) > 0.999
    assert min(read_off(observation, wrong).cosines) < max(read_off(observation, private).others) + 1e-3


def test_noise_that_drowns_the_update_leaves_nothing_to_read() -> None:
    scenario = replace(RESNET, defenses=({"defense": "noise", "scale": 0.1},))
    private = scenario.draw(4)
    told = read_off(disclose(private, scenario, seed=4, dtype=torch.float64), private)
    assert told.reason is not None or min(told.cosines) < 0.9


def test_what_cannot_be_solved_for_is_refused_with_the_reason() -> None:
    scenario = replace(RESNET, num_samples=20)
    observation = disclose(scenario.draw(0), scenario, seed=0)
    with pytest.raises(MissingKnowledge, match="two images have the same label"):
        last_inputs(observation)
    with pytest.raises(MissingKnowledge, match="labels are not granted"):
        last_inputs(replace(observation, labels=None))
    adam = replace(RESNET, optimizer="adam")
    private = adam.draw(4)
    told = read_off(disclose(private, adam, seed=4), private)
    assert "adam divides gradients" in told.text
