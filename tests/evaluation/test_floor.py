"""The floor: an attack's own objective at the private images."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from undelta.attacker.attacks import awa, strongest
from undelta.attacker.objective import Objective, Value
from undelta.attacker.priors import TotalVariation, total_variation
from undelta.attacker.replays import CoarseRollout, FullRollout, InterpolatedEpoch, OneStep
from undelta.client.disclose import disclose, disclose_with_secrets
from undelta.client.scenario import Scenario
from undelta.evaluation import floor as module
from undelta.evaluation.floor import floor, floors, value_at_truth
from undelta.evaluation.score import score

SCENARIO = Scenario(
    data="digits",
    num_samples=4,
    model_arguments={"width": 4, "hidden": 16},
    epochs=3,
    batches=1,
    learning_rate=0.05,
)


def test_an_exact_replay_has_no_floor() -> None:
    private = SCENARIO.draw(0)
    observation = disclose(private, SCENARIO, dtype=torch.float64)
    exact = value_at_truth(Objective(replay=CoarseRollout(steps=3)), private, observation)
    rough = value_at_truth(Objective(replay=OneStep()), private, observation)
    assert abs(exact.mismatch) < 1e-12 < rough.mismatch


def test_one_epoch_of_mini_batches_is_exact_in_the_clients_order_only() -> None:
    scenario = replace(SCENARIO, epochs=1, batches=2)
    private = scenario.draw(0)
    observation, (run,) = disclose_with_secrets(private, scenario, dtype=torch.float64)
    objective = Objective(replay=FullRollout())
    assert abs(value_at_truth(objective, private, observation, order=run.orders[0]).mismatch) < 1e-12
    assert value_at_truth(objective, private, observation, order=run.orders[0].flip(0)).mismatch > 1e-9


def test_the_floor_has_every_term_of_the_loss() -> None:
    private = SCENARIO.draw(0)
    observation = disclose(private, SCENARIO)
    found = floor(awa(steps=5, tv=0.25)(observation), private, observation)
    assert found is not None
    variation = float(total_variation(observation.image.normalize(private.images)))
    assert found.terms["total_variation"] == pytest.approx(0.25 * variation)
    assert found.loss == pytest.approx(sum(found.terms.values()))


def test_an_objective_that_prefers_wrong_images_is_called_so() -> None:
    private = SCENARIO.draw(0)
    observation = disclose(private, SCENARIO)
    found = floor(awa(steps=60, tv=50.0)(observation), private, observation)  # a flat image minimizes it
    assert found is not None
    assert found.level == "below"
    assert "prefers wrong images" in found.text


@pytest.mark.parametrize(
    ("loss", "mismatch", "level"), [(0.79, 0.5, "below"), (0.9, 0.31, "far above"), (1.1, 0.29, "near")]
)
def test_levels(loss: float, mismatch: float, level: str) -> None:
    private = SCENARIO.draw(0)
    observation = disclose(private, SCENARIO)
    result = replace(awa(steps=1)(observation), mismatch=mismatch, terms={"distance": loss})
    truth = Value(mismatch=0.1, terms={"distance": 0.8, "total_variation": 0.2})
    assert module._level(result, truth) == level


def test_a_composite_attack_is_judged_by_its_last_phase() -> None:
    scenario = replace(SCENARIO, learning_rate=0.3)
    private = scenario.draw(0)
    observation = disclose(private, scenario)
    result = strongest(steps=5, rollout_steps=3, macro_steps=3)(observation)
    assert result.objective is not None
    assert result.objective["replay"] == {"part": "CoarseRollout", "steps": 3}
    found = floor(result, private, observation)
    assert found is not None
    assert abs(found.mismatch) < 1e-5


def test_a_score_has_a_floor_where_the_observation_is_given() -> None:
    private = SCENARIO.draw(0)
    observation = disclose(private, SCENARIO)
    result = awa(steps=2)(observation)
    assert score(result, private).floor is None
    assert score(result, private, observation=observation).floor == floor(result, private, observation)


def test_an_objective_that_nobody_wrote_down_has_no_floor() -> None:
    private = SCENARIO.draw(0)
    observation = disclose(private, SCENARIO)
    result = awa(steps=2)(observation)
    assert floor(replace(result, objective=None), private, observation) is None
    assert floor(replace(result, objective={"replay": 3}), private, observation) is None


def test_replays_are_compared_at_the_truth() -> None:
    scenario = replace(SCENARIO, learning_rate=0.3)
    private = scenario.draw(0)
    found = floors(private, disclose(private, scenario, dtype=torch.float64))
    known = {name: value for name, value in found.items() if value is not None}
    assert known.keys() == module.REPLAYS.keys()
    assert known["full rollout"] < 1e-12 < known["one gradient at the midpoint"] < known["one gradient at the start"]


def test_a_replay_that_needs_what_the_server_does_not_know_has_none() -> None:
    private = SCENARIO.draw(0)
    observation = disclose(private, SCENARIO)
    hidden = replace(observation, training=replace(observation.training, epochs=1), unknown=("epochs",))
    found = floors(private, hidden, replays={"epoch": InterpolatedEpoch(), "one": OneStep()})
    assert found["epoch"] is None
    assert found["one"] is not None


def test_priors_are_evaluated_at_the_truth_in_the_models_space() -> None:
    private = SCENARIO.draw(0)
    observation = disclose(private, SCENARIO)
    objective = Objective(replay=OneStep(), priors=(TotalVariation(weight=1.0),))
    value = value_at_truth(objective, private, observation)
    assert value.loss == pytest.approx(value.terms["distance"] + value.terms["total_variation"])
