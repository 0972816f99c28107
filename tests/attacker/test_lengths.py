"""A path whose length nobody tells: learned beside the images."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from undelta.attacker.attacks import awa, strongest
from undelta.attacker.descent import Descent
from undelta.attacker.distances import mismatch
from undelta.attacker.method import GradientMatching
from undelta.attacker.replay import least_squares
from undelta.attacker.replays import CoarseRollout, LearnedLength
from undelta.attacker.resolution import supposed
from undelta.client.disclose import disclose
from undelta.client.scenario import Scenario
from undelta.errors import ConfigError, MissingKnowledge
from undelta.observation import Observation
from undelta.observation.file import digest_of, load_observation, save_observation
from undelta.observation.observation import Hyperparameter
from undelta.observation.withhold import pure_noise, without
from undelta.seeding import stream

SCENARIO = Scenario(
    data="digits", num_samples=3, model_arguments={"width": 4, "hidden": 16}, epochs=4, batches=1, learning_rate=0.5
)
LENGTH = 2.0
private = SCENARIO.draw(0)


def seen(*hidden: Hyperparameter) -> Observation:
    return without(disclose(private, SCENARIO, dtype=torch.float64), *hidden)


def at(length: float, steps: int = 4) -> tuple[float, float]:
    """The mismatch of such a path at the truth, and the slope of its length."""
    observation = seen("epochs", "learning_rate", "batches")
    replay = LearnedLength(steps=steps, length=length)(observation, stream("test"))
    update, _, pullback = replay(observation.image.normalize(private.images.double()), private.labels)
    slope = pullback({name: torch.zeros_like(value) for name, value in replay.target.items()}).variables["log_length"]
    return mismatch(update, replay.target), float(slope)


def test_at_its_true_length_a_path_is_exact_and_stays() -> None:
    off, slope = at(LENGTH)
    assert off < 1e-12
    assert abs(slope) < 1e-9


@pytest.mark.parametrize("factor", [0.5, 0.9, 1.1, 2.0])
def test_a_wrong_length_is_led_back(factor: float) -> None:
    off, slope = at(LENGTH * factor)
    assert off > 1e-6
    assert math.copysign(1, slope) == math.copysign(1, factor - 1)  # what descends goes against it


def test_images_get_the_gradient_of_a_rollout_of_that_length() -> None:
    observation = seen()
    inputs = observation.image.normalize(private.images.double())
    parts = (LearnedLength(steps=4, length=LENGTH), CoarseRollout(steps=4))
    free, fixed = (part(observation, stream("test"))(inputs, private.labels) for part in parts)
    cotangent = {name: torch.ones_like(value) for name, value in fixed.update.items()}
    torch.testing.assert_close(free.pullback(cotangent).images, fixed.pullback(cotangent).images)


def test_the_length_is_that_of_the_explained_part_and_of_the_entries_that_were_sent() -> None:
    update = {"a": torch.tensor([3.0, 4.0, 7.0])}
    assert least_squares(update, {"a": torch.tensor([6.0, 8.0, 0.0])}) == pytest.approx(2)
    noisy = {"a": torch.tensor([6.0 - 4.0, 8.0 + 3.0, 0.0])}  # noise across the update leaves the length alone
    assert least_squares(update, noisy) == pytest.approx(2)
    assert least_squares({"a": torch.zeros(3)}, noisy) == 1
    assert least_squares(update, {"a": torch.tensor([-6.0, -8.0, 0.0])}) == pytest.approx(2), "only their lengths agree"
    assert least_squares({"a": torch.tensor([math.inf, 1.0, 1.0])}, noisy) == 0, "a path that exploded is too long"


@pytest.mark.parametrize("hidden", [("learning_rate",), ("epochs", "batches", "learning_rate")], ids=" ".join)
def test_strongest_rolls_out_a_path_of_unknown_length(hidden: tuple[Hyperparameter, ...]) -> None:
    observation = without(disclose(private, SCENARIO), *hidden)
    attack = strongest(steps=30, rollout_steps=20, macro_steps=4, weights="flat")
    result = attack(observation)
    assert result.objective is not None
    assert result.objective["replay"]["part"] == "LearnedLength"
    assert math.exp(result.learned["log_length"]) == pytest.approx(LENGTH, rel=0.2)


def test_a_length_that_was_told_wrong_is_learned_on_demand() -> None:
    observation = disclose(private, SCENARIO)
    wrong = replace(observation, training=replace(observation.training, learning_rate=0.1))
    result = strongest(steps=30, rollout_steps=20, macro_steps=4, weights="flat", length="learned")(wrong)
    assert math.exp(result.learned["log_length"]) == pytest.approx(LENGTH, rel=0.2)
    with pytest.raises(ConfigError, match="told or learned"):
        strongest(length="guessed")  # type: ignore[arg-type]


def test_a_phase_continues_with_what_the_one_before_learned() -> None:
    observation = seen("learning_rate")
    guess = replace(strongest(steps=2).midpoint(observation), learned={"log_length": math.log(3.0)})
    method = GradientMatching(replay=LearnedLength(steps=2, length=1.0))
    assert float(Descent(method, observation, stream("test"), guess).learned["log_length"].exp()) == pytest.approx(3)


def test_a_later_round_starts_from_the_length_that_was_learned() -> None:
    observation = seen("learning_rate")
    guess = strongest(steps=2).midpoint(observation)
    first = supposed(observation, guess).path_length
    later = supposed(observation, replace(guess, learned={"log_length": math.log(3.0)})).path_length
    assert later == pytest.approx(3.0) != first


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_length_can_be_learned_of_one_step_but_not_of_adam(optimizer: Literal["sgd", "adam"]) -> None:
    scenario = replace(SCENARIO, epochs=1, optimizer=optimizer, learning_rate=0.05)
    attack = strongest(steps=5, rollout_steps=3, macro_steps=2, weights="flat", length="learned")
    seen: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        original = Descent.__init__

        def spy(self: Descent, method: GradientMatching, *arguments: Any, **named: Any) -> None:
            seen.append(type(method.replay).__name__)
            original(self, method, *arguments, **named)

        patch.setattr(Descent, "__init__", spy)
        attack(disclose(private, scenario))
    assert ("LearnedLength" in seen) == (optimizer == "sgd")


def test_mini_batches_that_are_unknown_are_not_taken_for_one() -> None:
    with pytest.raises(MissingKnowledge, match="batches"):
        awa(steps=1)(seen("batches"))
    with pytest.raises(ConfigError, match="clip_norm"):
        seen("clip_norm")  # type: ignore[arg-type]


def test_what_is_unknown_is_known_by_the_same_digest_from_a_file(tmp_path: Path) -> None:
    observation = seen("learning_rate", "batches")
    save_observation(observation, tmp_path / "seen.safetensors")
    assert digest_of(load_observation(tmp_path / "seen.safetensors")) == digest_of(observation)


def test_noise_for_an_update_has_a_length_too() -> None:
    noise = pure_noise(seen("learning_rate"), torch.Generator().manual_seed(0))
    guess = strongest(steps=3).midpoint(noise)
    assert 1e-3 < supposed(noise, guess).path_length < 1e3


@pytest.mark.parametrize("length", [0.0, -1.0, math.inf, math.nan])
def test_a_length_is_positive(length: float) -> None:
    with pytest.raises(ConfigError, match="length > 0"):
        LearnedLength(steps=2, length=length)
