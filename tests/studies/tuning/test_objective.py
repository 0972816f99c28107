"""The objectives: f(Q) of the paper, and image quality on clients of the attacker's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from undelta.attacker.attack import UNWATCHED, Run
from undelta.attacker.attacks import awa
from undelta.attacker.reconstruction import Moment
from undelta.attacker.weights import Q
from undelta.client.datasets import open_dataset
from undelta.client.local import train
from undelta.client.private import Private
from undelta.errors import ConfigError, DataError, MissingKnowledge
from undelta.evaluation.score import score
from undelta.observation import Observation
from undelta.observation.withhold import only_layers, without, without_labels
from undelta.studies.tuning.objective import Diverged, Mismatch, Objective, finite
from undelta.studies.tuning.shadow import ShadowQuality, cast_shadow
from undelta.studies.tuning.space import settings_of

POINT = {"conv": 5.0, "linear": 30.0, "enhanced": 50.0, "p_mean": 0.3, "p_var": 0.4}
SETTINGS = settings_of(POINT)


def value(objective: Objective, settings: dict[str, Any] = SETTINGS) -> tuple[float, dict[int, float]]:
    reports: dict[int, float] = {}
    found = objective(settings, report=reports.__setitem__, open_run=lambda part, key: UNWATCHED)
    return found, reports


def mismatch(observation: Observation, steps: int = 60) -> Mismatch:
    return Mismatch(observation=observation, attack="awa", arguments={"steps": steps}, seed=3)


def test_f_is_the_attacks_own_unweighted_mismatch_at_the_end(observation: Observation) -> None:
    expected = awa(q=Q(**POINT, norm=1.0), steps=60)(observation, seed=3)
    found, reports = value(mismatch(observation))
    assert found == expected.mismatch
    history = {moment.iteration: moment.mismatch for moment in expected.history}
    assert list(reports) == [10, 20, 30, 40, 50]
    assert all(history[step] == reported for step, reported in reports.items())


def test_long_attacks_are_looked_at_after_each_tenth_of_the_way(observation: Observation) -> None:
    assert list(value(mismatch(observation, steps=200))[1]) == list(range(20, 200, 20))


def test_f_depends_on_q_alone(observation: Observation) -> None:
    objective = mismatch(observation, steps=11)
    assert value(objective) == value(objective)
    assert value(objective) != value(objective, settings_of({**POINT, "linear": 900.0}))


def test_a_report_can_end_an_attack(observation: Observation) -> None:
    class Enough(Exception):
        pass

    def report(step: int, value: float) -> None:
        raise Enough

    watched: list[Moment] = []
    with pytest.raises(Enough):
        mismatch(observation)(
            SETTINGS,
            report=report,
            open_run=lambda part, key: Run(watch=lambda moment, total: watched.append(moment)),
        )
    assert [moment.iteration for moment in watched] == [0, 10]


@pytest.mark.parametrize("nothing", [None, float("nan"), float("inf")])
def test_an_attack_without_a_number_has_diverged(nothing: float | None) -> None:
    with pytest.raises(Diverged):
        finite(nothing)


# Shadows


def test_a_shadow_is_trained_as_the_client_was(observation: Observation) -> None:
    shadow = cast_shadow(observation, "digits", seed=1)
    seen = shadow.observation
    assert (seen.training, seen.num_samples, seen.image) == (
        observation.training,
        observation.num_samples,
        observation.image,
    )
    assert all(torch.equal(seen.initial[name], tensor) for name, tensor in observation.initial.items())
    assert not torch.equal(seen.received["conv1.weight"], observation.received["conv1.weight"])
    assert seen.labels is not None
    assert observation.labels is not None
    assert torch.equal(seen.labels, observation.labels)
    # The update is that of training on the shadow's truth, and nothing else.
    again = train(observation.model(), shadow.truth, seen.training, seen.image, seed=("attacker", 1, "shadow", 0))
    assert all(torch.equal(again.state[name], tensor) for name, tensor in seen.received.items())


def test_shadows_have_images_of_the_clients_classes(observation: Observation) -> None:
    shadow = cast_shadow(observation, "digits", seed=1)
    dataset = open_dataset("digits")
    for image, label in zip(shadow.truth.images, shadow.truth.labels, strict=True):
        same = (dataset.draw(range(len(dataset)), 8) == image).flatten(1).all(1).nonzero().flatten()
        assert int(label) in dataset.labels[same].tolist()


def test_other_draws_and_seeds_are_other_shadows(observation: Observation) -> None:
    first = cast_shadow(observation, "digits", seed=0, draw=0)
    for other in (cast_shadow(observation, "digits", seed=0, draw=1), cast_shadow(observation, "digits", seed=1)):
        assert not torch.equal(first.truth.images, other.truth.images)
    assert torch.equal(first.truth.images, cast_shadow(observation, "digits", seed=0).truth.images)


def test_public_images_of_other_classes_serve_as_well(observation: Observation, tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (20, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "public.npz", images=images, labels=np.arange(20))
    shadow = cast_shadow(observation, str(tmp_path / "public.npz"), seed=0)
    assert observation.labels is not None
    assert torch.equal(shadow.truth.labels, observation.labels)
    unlabeled = cast_shadow(without_labels(observation), str(tmp_path / "public.npz"), seed=0)
    assert unlabeled.observation.labels is None
    assert int(unlabeled.truth.labels.max()) < observation.image.classes


def test_a_shadow_withholds_what_the_client_withholds(observation: Observation) -> None:
    part = only_layers(observation, ["conv1"])
    assert set(cast_shadow(part, "digits", seed=0).observation.received) == {"conv1.weight", "conv1.bias"}


def test_without_the_hyperparameters_there_is_nothing_to_imitate(observation: Observation) -> None:
    with pytest.raises(MissingKnowledge, match="learning_rate"):
        cast_shadow(without(observation, "learning_rate"), "digits", seed=0)


def test_images_that_do_not_fit_the_model_are_refused(observation: Observation) -> None:
    with pytest.raises(ConfigError, match="takes images of 1 channels, photos has 3"):
        cast_shadow(observation, "photos", seed=0)
    many = replace(observation, num_samples=5000, labels=None)
    with pytest.raises(DataError, match="5000 were asked for"):
        cast_shadow(many, "digits", seed=0)


def test_quality_is_the_mean_psnr_over_the_shadows(observation: Observation) -> None:
    arguments = {"steps": 12}
    clients = [cast_shadow(observation, "digits", seed=4, draw=draw) for draw in range(2)]
    objective = ShadowQuality(shadows=clients, attack="awa", arguments=arguments, seed=4)
    found, reports = value(objective)
    attack = awa(q=Q(**POINT, norm=1.0), steps=12)
    scores = [
        score(attack(shadow.observation, seed=4), shadow.truth).psnr or 0.0
        for shadow in (cast_shadow(observation, "digits", seed=4, draw=draw) for draw in range(2))
    ]
    assert found == pytest.approx(sum(scores) / 2)
    assert reports == {0: scores[0]}  # after the first client, hopeless settings can be dropped
    assert scores[0] != scores[1]


# No private image is involved


def test_neither_objective_changes_when_the_private_images_do(private: Private, observation: Observation) -> None:
    def both() -> list[float]:
        clients = [cast_shadow(observation, "digits", seed=0)]
        shadows = ShadowQuality(shadows=clients, attack="awa", arguments={"steps": 11}, seed=0)
        return [value(mismatch(observation, steps=11))[0], value(shadows)[0]]

    before = both()
    private.images.fill_(0.123)
    private.labels.fill_(0)
    assert both() == before
