"""Replays of clients that do not train by plain SGD: exact where they can be, and right on average where not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from undelta.attacker.attacks import ATTACKS, analytic, awa, dlg, sme, strongest
from undelta.attacker.distances import mismatch
from undelta.attacker.labels import label_source
from undelta.attacker.replay import ReplayPart
from undelta.attacker.replays import CoarseRollout, FullRollout, InterpolatedEpoch, OneStep
from undelta.attacker.span import contains
from undelta.client.disclose import disclose, disclose_with_secrets
from undelta.client.private import Private
from undelta.client.scenario import Scenario
from undelta.errors import MissingKnowledge
from undelta.observation import Observation
from undelta.observation.withhold import without
from undelta.updates import inner

SMALL: dict[str, Any] = {
    "data": "digits",
    "num_samples": 5,
    "model_arguments": {"width": 2, "hidden": 6},
    "epochs": 1,
    "batches": 2,
    "learning_rate": 0.05,
}
CLIENTS: dict[str, dict[str, Any]] = {
    "momentum and weight decay": {"momentum": 0.9, "weight_decay": 0.1},
    "clipped FedProx": {"clip_norm": 0.5, "proximal": 1.0, "nesterov": True, "momentum": 0.5},
    "cosine schedule, smoothed labels": {"schedule": "cosine", "label_smoothing": 0.2},
    "adam": {"optimizer": "adam", "weight_decay": 0.1},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.1},
    "a loader that keeps a small last mini-batch": {"batch_size": 4},
    "a loader that drops its last mini-batch": {"batch_size": 2, "drop_last": True},
    "only the last layers": {"trained": ("fc1", "fc2"), "momentum": 0.9},
}


def attacked(scenario: Scenario) -> tuple[Observation, Private, Tensor]:
    """The observation, the truth, and the client's first order."""
    private = scenario.draw(0)
    observation, runs = disclose_with_secrets(private, scenario, dtype=torch.float64)
    return observation, private, runs[0].orders[0]


def error(part: ReplayPart, observation: Observation, private: Private, order: Tensor) -> float:
    """The distance of the replay's update at the truth from its target, relative to the target."""
    replay = part(observation, torch.Generator().manual_seed(0))
    left = [index for index in range(len(private)) if index not in order.tolist()]  # what a loader dropped
    places = torch.cat([order, torch.tensor(left, dtype=torch.int64)])
    images = observation.image.normalize(private.images[places].double())
    update = replay(images, private.labels[places]).update
    off = {name: update[name] - value for name, value in replay.target.items()}
    return float((inner(off, off) / inner(replay.target, replay.target)).sqrt())


@pytest.fixture
def exact_adam(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SOFTNESS", "LOCAL_SOFTNESS"):
        monkeypatch.setattr(f"undelta.attacker.replays.{name}", 0.0)


@pytest.mark.usefixtures("exact_adam")
@pytest.mark.parametrize("settings", CLIENTS.values(), ids=CLIENTS.keys())
def test_a_full_rollout_of_one_epoch_is_exact(settings: dict[str, Any]) -> None:
    assert error(FullRollout(), *attacked(Scenario(**{**SMALL, **settings}))) < 1e-9


@pytest.mark.usefixtures("exact_adam")
@pytest.mark.parametrize("settings", list(CLIENTS.values())[:5], ids=list(CLIENTS)[:5])
def test_as_many_macro_steps_as_epochs_are_exact_without_mini_batches(settings: dict[str, Any]) -> None:
    scenario = Scenario(**{**SMALL, "epochs": 4, "batches": 1, **settings})
    assert error(CoarseRollout(steps=4), *attacked(scenario)) < 1e-9


@pytest.mark.parametrize("part", [OneStep(), InterpolatedEpoch(), OneStep(in_gradients=True)])
def test_one_gradient_is_exact_for_momentum_and_decay_on_a_short_path(part: ReplayPart) -> None:
    """To first order in the learning rate: weights of the steps' gradients, and what decay does alone."""
    short = {**SMALL, "epochs": 6, "batches": 1, "learning_rate": 1e-7}
    scenario = Scenario(**short, momentum=0.9, weight_decay=5.0, schedule="linear")
    assert error(part, *attacked(scenario)) < 1e-5


@pytest.mark.usefixtures("exact_adam")
def test_one_gradient_explains_adam_to_the_last_step_where_gradients_do_not_change() -> None:
    short = {**SMALL, "epochs": 6, "batches": 1, "learning_rate": 1e-9}
    scenario = Scenario(**short, optimizer="adamw", weight_decay=0.5)
    for part in (OneStep(), InterpolatedEpoch()):
        assert error(part, *attacked(scenario)) < 1e-2  # entries near zero change their sign


def test_a_coarse_rollout_of_momentum_is_nearer_than_one_that_knows_none() -> None:
    scenario = Scenario(**{**SMALL, "epochs": 8}, momentum=0.9)
    observation, private, order = attacked(scenario)
    blind = replace(observation, training=replace(observation.training, momentum=0.0))
    found, missed = (error(CoarseRollout(steps=5), seen, private, order) for seen in (observation, blind))
    assert found < 0.2 * missed


def test_a_loader_that_drops_its_last_mini_batch_leaves_no_dummy_image_out_of_an_epoch() -> None:
    observation, _, _ = attacked(Scenario(**{**SMALL, "epochs": 3}, batch_size=2, drop_last=True))
    plan = InterpolatedEpoch()(observation, torch.Generator()).plan
    assert torch.cat([batch for batch, _ in plan]).tolist() == list(range(5))
    assert len(plan) == observation.training.batches == 2


def test_a_direction_is_matched_where_the_learning_rate_is_unknown() -> None:
    observation, private, _ = attacked(Scenario(**SMALL, momentum=0.9, weight_decay=0.1))
    replay = OneStep(position=0.5)(without(observation, "learning_rate"), torch.Generator())
    images = observation.image.normalize(private.images.double())
    assert mismatch(replay(images, private.labels).update, replay.target) < 0.2


COUNTING = {
    "dlg",
    "cpl",
    "geng_epoch",
    "geng_path",
    "geng_gradient",
    "dlfa",
}  # they read the gradients' length off the update
REFUSED = {*COUNTING, "idlg", "sme", "nl_sme", "pi_sme", "analytic"}  # one image only; a mean gradient; its span


def test_attacks_work_on_adam_or_say_what_to_use_instead() -> None:
    scenario = Scenario(**{**SMALL, "num_samples": 2, "epochs": 2}, optimizer="adam")
    observation = disclose(scenario.draw(0), scenario)
    refused = set()
    for name, attack in ATTACKS.items():
        arguments: dict[str, Any] = {} if name == "analytic" else {"steps": 1}
        arguments |= {"rollout_steps": 1} if name == "strongest" else {}
        try:
            assert torch.isfinite(attack(**arguments)(observation).images).all()
        except MissingKnowledge:
            refused.add(name)
    assert refused == REFUSED


@pytest.mark.parametrize("attack", [sme(steps=1), dlg(steps=1), analytic()])
def test_what_needs_a_gradient_refuses_adam(attack: Any) -> None:
    scenario = Scenario(**{**SMALL, "model": "mlp", "model_arguments": {"hidden": [6]}}, optimizer="adam")
    with pytest.raises(MissingKnowledge, match="Use "):
        attack(disclose(scenario.draw(0), scenario))


def test_the_span_test_refuses_adam_and_takes_weight_decay_out() -> None:
    wide = {**SMALL, "model": "mlp", "model_arguments": {"hidden": [40]}}
    for settings in ({"weight_decay": 0.5, "momentum": 0.9}, {"optimizer": "adam"}):
        scenario = Scenario(**wide, **settings)
        private, others = scenario.draw(0), scenario.draw_held_out(seed=0, most=10)
        observation = disclose(private, scenario, dtype=torch.float64)  # float32's rounding differs between processors
        if scenario.optimizer == "adam":
            with pytest.raises(MissingKnowledge, match="does not span the layers' inputs"):
                contains(observation, private.images, others.images)
        else:
            assert all(one.outside < 1e-4 for one in contains(observation, private.images, others.images))


@pytest.mark.parametrize(
    "settings", [{"momentum": 0.9, "weight_decay": 0.5}, {"label_smoothing": 0.3}, {"trained": ("fc2",)}]
)
def test_labels_are_counted_for_any_optimizer_that_keeps_gradients_lengths(settings: dict[str, Any]) -> None:
    scenario = Scenario(**{**SMALL, "epochs": 3, "learning_rate": 1e-3, "grant_labels": False}, **settings)
    observation = disclose(scenario.draw(0), scenario)
    found = label_source("auto")(observation, torch.Generator().manual_seed(0))
    assert found.sort().values.tolist() == scenario.draw(0).labels.sort().values.tolist()


def test_where_gradients_are_clipped_only_signs_are_read() -> None:
    scenario = Scenario(**{**SMALL, "num_samples": 3, "grant_labels": False}, clip_norm=0.1)
    observation = disclose(scenario.draw(0), scenario)
    with pytest.raises(MissingKnowledge, match="they are clipped"):
        label_source("bias")(observation, torch.Generator())
    assert len(label_source("auto")(observation, torch.Generator().manual_seed(0))) == 3


def test_frozen_parameters_have_no_layer_weight() -> None:
    scenario = Scenario(**SMALL, trained=("fc1", "fc2"), momentum=0.9)
    observation = disclose(scenario.draw(0), scenario)
    for attack in (awa(steps=2), strongest(steps=2, rollout_steps=2)):
        assert set(attack(observation).layer_weights) == {"fc1", "fc2"}


def test_defenses_act_on_what_an_optimizer_made() -> None:
    pruning = {"defense": "pruning", "ratio": 0.5}
    scenario = Scenario(**SMALL, momentum=0.9, weight_decay=0.1, defenses=(pruning,))
    observation = disclose(scenario.draw(0), scenario)
    replay = OneStep()(observation, torch.Generator())
    zeros = sum(int((value == 0).sum()) for value in replay.target.values())
    assert zeros >= 0.4 * sum(value.numel() for value in replay.target.values())  # decay is not put back


def test_a_coarse_rollout_of_adam_holds_every_mini_batch_of_its_epochs() -> None:
    observation, _, _ = attacked(Scenario(**{**SMALL, "epochs": 3, "optimizer": "adam"}))
    held = CoarseRollout(steps=2).held(observation)
    assert (held.images, held.steps) == (10, 4)
