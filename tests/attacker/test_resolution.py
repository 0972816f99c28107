"""How finely a path must be replayed, and how long it is: asked of images alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from undelta.attacker.attacks import strongest
from undelta.attacker.distances import mismatch
from undelta.attacker.reconstruction import Reconstruction
from undelta.attacker.replay import ReplayPart
from undelta.attacker.replays import CoarseRollout, OneStep
from undelta.attacker.resolution import MACRO_STEPS, RESOLVED, overshoots, path_stretch, resolving
from undelta.client.disclose import disclose
from undelta.client.scenario import Scenario
from undelta.observation import Observation
from undelta.seeding import stream

SCENARIO = Scenario(
    data="digits", num_samples=4, model="lenet", model_arguments={"width": 4}, epochs=3, batches=2, learning_rate=0.05
)
LONG = replace(SCENARIO, learning_rate=8.0, epochs=20)


@pytest.mark.parametrize("reached", [1.0, 0.1, 0.01, 1e-4])
@pytest.mark.parametrize("rate", [0.1, 2.0])
def test_the_replay_is_as_fine_as_what_the_images_leave_unexplained(rate: float, reached: float) -> None:
    scenario = replace(SCENARIO, learning_rate=rate, epochs=20)
    observation = disclose(scenario.draw(0), scenario)
    guess = replace(strongest(steps=3).midpoint(observation), mismatch=reached)
    inputs = observation.image.normalize(guess.images)
    parts: list[ReplayPart] = [OneStep(position=0.5), *(CoarseRollout(steps=count) for count in MACRO_STEPS)]
    updates = [part(observation, stream("test"))(inputs, guess.labels).update for part in parts]
    gaps = [mismatch(one, two) for one, two in pairwise(updates)]
    now, later = resolving(observation, guess, parts[0], left=0.1)
    assert (later, later) == resolving(observation, replace(guess, mismatch=0.1 * reached), parts[0])
    chosen = parts.index(now)
    assert chosen == len(parts) - 1 or gaps[chosen] <= RESOLVED * reached
    assert all(gap > RESOLVED * reached for gap in gaps[:chosen])


def test_a_replay_is_never_chosen_rougher_than_before() -> None:
    observation = disclose(SCENARIO.draw(0), replace(SCENARIO, epochs=20))
    guess = replace(strongest(steps=3).midpoint(observation), mismatch=1.0)
    assert resolving(observation, guess, CoarseRollout(steps=10))[0] == CoarseRollout(steps=10)


def test_a_path_of_few_full_batch_steps_is_not_cut_finer_than_it_was() -> None:
    scenario = replace(SCENARIO, epochs=3, batches=1, learning_rate=2.0)
    observation = disclose(scenario.draw(0), scenario)
    guess = replace(strongest(steps=3).midpoint(observation), mismatch=1e-9)
    assert resolving(observation, guess, OneStep(position=0.5)) == (CoarseRollout(steps=3), CoarseRollout(steps=3))


@pytest.mark.parametrize(("scenario", "too_long"), [(SCENARIO, False), (LONG, True)], ids=["short", "long"])
def test_few_macro_steps_overshoot_on_a_long_path(scenario: Scenario, too_long: bool) -> None:
    observation = disclose(scenario.draw(0), scenario)
    assert overshoots(observation, replace(truth(), mismatch=1.0)) is too_long
    flat = replace(truth(), images=torch.full_like(truth().images, 0.5))
    assert overshoots(observation, flat) is too_long  # it does not depend on how far the attack has come


def defended(**table: object) -> Observation:
    scenario = replace(SCENARIO, model="cnn", model_arguments={"width": 8, "hidden": 64}, defenses=(table,))
    return disclose(scenario.draw(0), scenario)


def truth() -> Reconstruction:
    private = SCENARIO.draw(0)
    return Reconstruction(
        images=private.images, labels=private.labels, mismatch=0.0, iterations=0, seconds=0.0, status="completed"
    )


def test_the_images_themselves_tell_how_much_an_update_was_shortened() -> None:
    whole = defended(defense="clipping", norm=1e6)
    length = sum(float((whole.received[name] - whole.initial[name]).square().sum()) for name in whole.initial) ** 0.5
    clipped = defended(defense="clipping", norm=length / 8)
    assert path_stretch(whole, truth()) == pytest.approx(1, rel=0.1)
    assert path_stretch(clipped, truth()) == pytest.approx(8, rel=0.1)


def test_a_sparse_update_is_not_taken_for_a_clipped_one() -> None:
    sparse = defended(defense="pruning", ratio=0.98)
    assert path_stretch(sparse, truth()) == pytest.approx(1, rel=0.15)


def test_a_path_that_few_steps_do_not_resolve_is_not_taken_for_a_clipped_one() -> None:
    observation = disclose(LONG.draw(0), LONG)
    assert path_stretch(observation, truth()) == 1.0
