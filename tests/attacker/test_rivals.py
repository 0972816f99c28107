"""What distinguishes the rival methods: closed forms, small reconstructions, and distances by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from undelta.assignment import match
from undelta.attacker.attack import Attack
from undelta.attacker.attacks import agic, analytic, awa, dlfa, dlg, geng_epoch, geng_gradient, geng_path, idlg, sme
from undelta.attacker.canvas import Pixels
from undelta.attacker.descent import Descent
from undelta.attacker.distances import Distance, Weights, gaussian_kernel, l1, l2, l2_norms, larger_entries, relative_l2
from undelta.attacker.weights import Decaying
from undelta.client.disclose import disclose
from undelta.client.scenario import Scenario
from undelta.errors import ConfigError
from undelta.evaluation.metrics import psnr
from undelta.observation import Observation
from undelta.updates import Layer, Update

MLP = Scenario(
    data="digits",
    num_samples=1,
    model="mlp",
    model_arguments={"hidden": [64]},
    epochs=1,
    batches=1,
    learning_rate=0.05,
    grant_labels=False,
)
LENET = replace(MLP, model="lenet", model_arguments={})


def qualities(attack: Attack, scenario: Scenario, seed: int = 0) -> list[float]:
    private = scenario.draw(seed)
    result = attack(disclose(private, scenario, seed=seed), seed=seed)
    order = match(result.images, private.images, result.labels, private.labels)
    return [float(value) for value in psnr(result.images[order], private.images)]


@pytest.mark.parametrize("seed", range(4))
def test_the_closed_form_reveals_a_single_image_exactly(seed: int) -> None:
    assert qualities(analytic(), MLP, seed)[0] > 50


def test_the_closed_form_finds_the_label_and_explains_the_update() -> None:
    private = MLP.draw(1)
    result = analytic()(disclose(private, MLP))
    assert torch.equal(result.labels, private.labels)
    assert result.mismatch == pytest.approx(0, abs=1e-6)
    assert (result.iterations, result.status) == (1, "completed")


WIDE = replace(MLP, num_samples=5, model_arguments={"hidden": [512]})


@pytest.mark.parametrize("seed", range(4))
def test_the_closed_form_shows_several_images_in_a_wide_layer(seed: int) -> None:
    private = WIDE.draw(seed)
    result = analytic()(disclose(private, WIDE, seed=seed), seed=seed)
    found = psnr(result.images[match(result.images, private.images)], private.images)
    assert found.max() > 25
    assert found.mean() > 16


def test_the_closed_form_gives_every_image_its_own_label() -> None:
    recognized = 0
    for seed in range(4):
        private = WIDE.draw(seed)
        result = analytic()(disclose(private, WIDE, seed=seed), seed=seed)
        for image, label in zip(result.images, result.labels, strict=True):
            likeness = psnr(image.expand_as(private.images), private.images)
            if likeness.max() > 30:
                recognized += 1
                assert label == private.labels[likeness.argmax()]
    assert recognized >= 4


def test_the_closed_form_gives_as_many_images_as_asked_for_even_from_few_neurons() -> None:
    scenario = replace(MLP, num_samples=6, model_arguments={"hidden": [3]})
    private = scenario.draw(0)
    assert analytic()(disclose(private, scenario)).images.shape == private.images.shape


@pytest.mark.parametrize("attack", [dlg(steps=15), idlg(steps=15)], ids=["dlg", "idlg"])
def test_lbfgs_recovers_one_image_from_one_gradient_of_the_sigmoid_net(attack: Attack) -> None:
    assert qualities(attack, LENET, seed=3)[0] > 25


def test_dlg_finds_the_label_together_with_the_image() -> None:
    private = LENET.draw(3)
    result = dlg(steps=15)(disclose(private, LENET, seed=3), seed=3)
    assert torch.equal(result.labels, private.labels)
    assert result.variables["labels"].shape == (1, 10)


def test_the_surrogates_position_is_learned(observation: Observation) -> None:
    result = sme(steps=15, position_rate=0.01)(observation)
    assert result.learned["position"] != 0.5
    assert 0.3 < result.learned["position"] < 0.7
    assert sme(steps=15, position=0.2, position_rate=1e-9)(observation).learned["position"] == pytest.approx(0.2)


@pytest.mark.parametrize("attack", [agic(steps=1), dlfa(steps=1)], ids=["agic", "dlfa"])
def test_methods_with_images_of_every_epoch_move_n_times_e_of_them(attack: Attack, observation: Observation) -> None:
    descent = Descent(attack, observation, torch.Generator().manual_seed(0))  # type: ignore[arg-type]
    assert descent.images.shape == (10, 1, 8, 8)
    assert descent.classes is not None
    assert descent.classes.shape == (10,)
    assert attack(observation).images.shape == (5, 1, 8, 8)


def test_the_readings_of_geng_are_attacks_of_their_own(observation: Observation) -> None:
    first, second = geng_path(steps=3)(observation), geng_gradient(steps=3)(observation)
    assert torch.equal(first.labels, second.labels)
    assert not torch.equal(first.images, second.images)
    assert first.history[0].mismatch != second.history[0].mismatch


def test_geng_is_awas_approximation_alone_where_there_is_one_mini_batch(scenario: Scenario) -> None:
    single = replace(scenario, epochs=3, batches=1)
    observation = disclose(single.draw(0), single, dtype=torch.float64)
    settings: dict[str, Any] = {"steps": 12, "learning_rate": 0.1, "tv": 0.01, "labels": "disclosed"}
    ours = awa(setting="paper", form="approximation", **settings)(observation)
    torch.testing.assert_close(geng_epoch(**settings)(observation).images, ours.images, rtol=0, atol=1e-9)
    several = replace(scenario, epochs=3, batches=2)
    observation = disclose(several.draw(0), several, dtype=torch.float64)
    ours = awa(setting="paper", form="approximation", **settings)(observation)
    assert (geng_epoch(**settings)(observation).images - ours.images).abs().max() > 1e-3  # a full batch is not two


def test_the_path_and_the_gradient_agree_in_the_first_epoch(scenario: Scenario) -> None:
    single = replace(scenario, epochs=1, batches=1)
    observation = disclose(single.draw(0), single, dtype=torch.float64)
    first, second = geng_path(steps=2)(observation), geng_gradient(steps=2)(observation)
    torch.testing.assert_close(first.images, second.images, rtol=1e-9, atol=1e-9)


def test_geng_takes_as_many_gradients_along_the_path_as_it_is_told(observation: Observation) -> None:
    default, same, fewer = (geng_path(steps=2, nodes=nodes)(observation) for nodes in (None, observation.epochs, 1))
    assert torch.equal(default.images, same.images)
    assert not torch.equal(default.images, fewer.images)
    with pytest.raises(ConfigError, match="nodes"):
        geng_path(nodes=0)


def test_agic_returns_the_mean_over_epochs_or_the_first_epochs_images(observation: Observation) -> None:
    descent = Descent(agic(steps=3), observation, torch.Generator().manual_seed(0))
    for iteration in range(3):
        descent.step(iteration, record=True)
    images, labels = descent.images, torch.arange(10) % 5
    mean, _ = Pixels(per_epoch=True).collapse(images, labels, observation)
    first, classes = Pixels(per_epoch=True, average=False).collapse(images, labels, observation)
    assert torch.equal(first, images[:5])
    assert torch.equal(classes, labels[:5])
    torch.testing.assert_close(mean, (images[:5] + images[5:]) / 2)
    described, averaged = (agic(steps=3, average=average)(observation).images for average in (False, True))
    assert described.shape == averaged.shape
    assert not torch.equal(described, averaged)


def test_decaying_weights_fall_by_e_from_layer_to_layer() -> None:
    layers = [Layer(name=str(index), kind="conv", parameters=(str(index),)) for index in range(3)]
    update = {layer.name: torch.ones(2) for layer in layers}
    assert Decaying()(layers, update, update).tolist() == pytest.approx([1, math.exp(-1), math.exp(-2)])


def tensors(**values: list[float]) -> Update:
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}


def weights(**values: float) -> Weights:
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}


DUMMY, TARGET = tensors(a=[1, 2], b=[3, 0]), tensors(a=[2, 4], b=[-1, 3])
SOME = weights(a=2, b=5)
BY_HAND: dict[str, tuple[Distance, float]] = {
    "l2": (l2, 2 * 5 + 5 * 25),
    "relative_l2": (relative_l2, (2 * 5 + 5 * 25) / (2 * 20 + 5 * 10)),
    # norms sqrt(5) of sqrt(20), and 5 of sqrt(10)
    "l2_norms": (l2_norms, (2 * 0.5 + 5 * 5 / math.sqrt(10)) / 2),
    "l1": (l1, (2 * 3 + 5 * 7) / (2 * 6 + 5 * 4)),
    # variances 1 and 4, mean squares 5/2 and 25/2
    # the larger half is 2 of [1, 2], which matches 4, and 3 of [3, 0], which matches -1
    "larger_entries": (larger_entries, 2 * (2 / 4 + 0) + 5 * (4 / 1 + 2)),
    "gaussian_kernel": (gaussian_kernel, (2 * (1 - math.exp(-2.5)) + 5 * (1 - math.exp(-12.5 / 4))) / 7),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_a_distance_by_hand(name: str) -> None:
    distance, expected = BY_HAND[name]
    assert float(distance(DUMMY, TARGET, SOME)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", BY_HAND)
def test_equal_updates_are_at_distance_zero(name: str) -> None:
    assert float(BY_HAND[name][0](TARGET, TARGET, SOME)) == 0


@pytest.mark.parametrize("name", [name for name in BY_HAND if name != "l2"])
def test_a_relative_distance_has_no_unit(name: str) -> None:
    small = [{key: 1e-3 * value for key, value in update.items()} for update in (DUMMY, TARGET)]
    distance = BY_HAND[name][0]
    assert float(distance(small[0], small[1], SOME)) == pytest.approx(float(distance(DUMMY, TARGET, SOME)), rel=1e-9)


@pytest.mark.parametrize("name", BY_HAND)
@pytest.mark.parametrize("still", [False, True], ids=["some target", "a target of zero"])
def test_a_distance_has_a_finite_gradient_even_at_its_minimum(name: str, still: bool) -> None:
    target = {key: torch.zeros_like(value) if still else value for key, value in TARGET.items()}
    leaves = {key: value.clone().requires_grad_() for key, value in target.items()}
    value = BY_HAND[name][0](leaves, target, SOME)
    gradients = torch.autograd.grad(value, list(leaves.values()))
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


def test_the_kernel_of_a_parameter_with_one_entry_stays_finite() -> None:
    one = weights(a=1)
    assert float(gaussian_kernel(tensors(a=[1]), tensors(a=[2]), one)) == pytest.approx(1)
