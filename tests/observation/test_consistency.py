"""An update that was not made as it is said to be shows it, without any image."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from undelta.client.disclose import disclose
from undelta.client.scenario import Scenario
from undelta.observation import Observation
from undelta.observation.consistency import consistency
from undelta.observation.withhold import only_layers, quantized, without

PLAIN = Scenario(
    data="digits", num_samples=4, model_arguments={"width": 4, "hidden": 8}, epochs=5, batches=2, learning_rate=0.01
)
CLIENTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "momentum": {"momentum": 0.9, "nesterov": True},
    "weight decay": {"weight_decay": 1e-4},
    "clipped FedProx": {"clip_norm": 0.5, "proximal": 1.0},
    "smoothed labels, cosine schedule": {"label_smoothing": 0.1, "schedule": "cosine"},
    "AdamW": {"optimizer": "adamw", "weight_decay": 0.01, "learning_rate": 1e-3},
}


def seen(**settings: Any) -> Observation:
    scenario = replace(PLAIN, **settings)
    return disclose(scenario.draw(0), scenario)


def taken_for(observation: Observation, **settings: Any) -> list[str]:
    """What is said of it if it is said to be plain, but for these settings."""
    plain = replace(PLAIN.training, learning_rate=observation.training.learning_rate)
    return consistency(replace(observation, training=replace(plain, **settings)))


@pytest.mark.parametrize("settings", CLIENTS.values(), ids=CLIENTS.keys())
def test_a_client_that_is_what_it_says_gives_no_note(settings: dict[str, Any]) -> None:
    assert consistency(seen(**settings)) == []


def test_adam_shows() -> None:
    (note,) = taken_for(seen(**CLIENTS["AdamW"]))
    assert "does not look like sgd with these settings: every layer moved about as far" in note


def test_weight_decay_shows_with_its_value() -> None:
    (note,) = taken_for(seen(weight_decay=0.01))
    assert "a weight_decay of about 0.01 makes it" in note
    observation = without(seen(weight_decay=0.01), "epochs", "learning_rate")
    (note,) = consistency(replace(observation, training=replace(observation.training, weight_decay=0.0)))
    assert "as a weight_decay makes it" in note


def test_a_weight_decay_that_is_told_is_no_contradiction_where_its_share_is_not_known() -> None:
    observation = seen(weight_decay=0.01)
    for unknown in (("epochs",), ("learning_rate",), ("epochs", "learning_rate")):
        assert consistency(without(observation, *unknown)) == []


def test_sgd_that_is_called_adam_shows() -> None:
    (note,) = taken_for(seen(momentum=0.9), optimizer="adam")
    assert "does not look like adam with these settings: the last layer's rows sum to zero" in note


def test_adam_that_moved_too_far_for_its_rates_shows() -> None:
    observation = seen(**CLIENTS["AdamW"])
    (note,) = taken_for(observation, optimizer="adamw", learning_rate=1e-4)
    assert "but all learning rates together are 0.001" in note


def test_steps_that_are_too_long_show() -> None:
    (note,) = taken_for(seen(momentum=0.9, num_samples=1, batches=1, epochs=10), batches=1, epochs=10)
    assert "momentum, a larger learning rate or more steps do that" in note


def test_noise_and_quantization_show() -> None:
    scenario = replace(PLAIN, defenses=({"defense": "noise", "scale": 0.01, "bound": 1.0},))
    (note,) = consistency(disclose(scenario.draw(0), scenario))
    assert "as Adam or noise makes it" in note
    (note,) = consistency(quantized(seen(), 4))
    assert "noise, pruning, quantization or another optimizer" in note


def test_what_was_sent_in_half_precision_is_no_contradiction() -> None:
    observation = seen()
    sides = (
        {name: value.half().float() for name, value in side.items()}
        for side in (observation.initial, observation.received)
    )
    initial, received = sides
    assert consistency(replace(observation, initial=initial, received=received)) == []


def test_nothing_is_said_where_nobody_can_tell() -> None:
    observation = seen(**CLIENTS["AdamW"])
    assert consistency(only_layers(replace(observation, training=PLAIN.training), ["conv1"])) == []
    squares = seen(loss="l2", optimizer="adam")
    assert consistency(replace(squares, training=replace(PLAIN.training, loss="l2"))) == []
