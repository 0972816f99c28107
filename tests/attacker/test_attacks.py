"""How attacks run: divergence, interruption, watching; and small reconstructions that must succeed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from undelta.assignment import match
from undelta.attacker.attack import Attack, Run
from undelta.attacker.attacks import awa, strongest
from undelta.attacker.combine import method_of
from undelta.attacker.descent import Descent
from undelta.attacker.distances import Weights, cosine, mismatch
from undelta.attacker.labels import disclosed
from undelta.attacker.method import GradientMatching
from undelta.attacker.optimizers import Adam
from undelta.attacker.priors import TotalVariation
from undelta.attacker.reconstruction import Moment, Reconstruction
from undelta.attacker.replays import InterpolatedEpoch, OneStep, observed_update
from undelta.attacker.weights import PAPER_Q, ByFamily, ErrorEnhanced, Q, Ramps
from undelta.client.disclose import disclose
from undelta.client.private import Private
from undelta.client.scenario import Scenario
from undelta.errors import ConfigError
from undelta.evaluation.metrics import psnr
from undelta.observation import Observation
from undelta.trials.config import make_attack
from undelta.updates import Update


def check_sound(result: Reconstruction, observation: Observation) -> None:
    assert result.images.shape == (observation.num_samples, *observation.image.shape)
    assert torch.isfinite(result.images).all()
    assert result.images.min() >= 0
    assert result.images.max() <= 1
    assert observation.labels is not None
    assert torch.equal(result.labels.sort().values, observation.labels)


@pytest.fixture
def smooth(scenario: Scenario, private: Private) -> Observation:
    """The sigmoid net, on which a few steps already help from any start."""
    return disclose(private, replace(scenario, model="lenet", model_arguments={"width": 4}))


@pytest.mark.parametrize("form", ["approximation", "linear", "enhanced"])
def test_every_form_of_the_papers_attack_improves_on_its_start(smooth: Observation, form: str) -> None:
    result = awa(form=form, steps=12)(smooth)  # type: ignore[arg-type]
    assert result.mismatch < result.history[0].mismatch


def test_the_papers_attack_can_trust_the_clients_statistics(scenario: Scenario, private: Private) -> None:
    observation = disclose(private, replace(scenario, model="convnet", model_arguments={"width": 4}))
    server, client = (awa(steps=5, bn_source=source)(observation) for source in ("server", "client"))
    assert not torch.equal(server.images, client.images)


def test_the_papers_own_setting_is_one_argument_away() -> None:
    paper = method_of(awa(setting="paper"))
    assert (paper.steps, paper.optimizer, paper.signed) == (10_000, Adam(learning_rate=0.1), False)
    assert paper.weights == ErrorEnhanced(q=PAPER_Q)
    assert paper.replay == InterpolatedEpoch(position=0.0)
    ours = method_of(awa())
    assert ours.replay == InterpolatedEpoch(position="middle")
    assert (ours.steps, ours.optimizer) == (1000, Adam(learning_rate=1.0))
    assert ours.weights == ByFamily()
    assert awa(setting="paper", steps=7, learning_rate=0.5, tv=0.2).steps == 7
    assert method_of(awa(q="paper")).weights == ErrorEnhanced(q=PAPER_Q)
    assert method_of(awa(form="linear", q=PAPER_Q)).weights == Ramps(conv=694.99, norm=898.67, linear=441.64)
    for wrong in ({"setting": "fast"}, {"q": "cnn"}):
        with pytest.raises(ConfigError, match="expected"):
            awa(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [("paper", PAPER_Q), ({"conv": 2, "norm": 1, "linear": 1, "enhanced": 1, "p_mean": 0, "p_var": 0}, None)],
)
def test_layer_weights_are_named_or_given_in_a_file(given: object, wanted: Q | None) -> None:
    method = make_attack("awa", {"q": given})
    assert isinstance(method, GradientMatching)
    assert isinstance(method.weights, ErrorEnhanced)
    assert method.weights.q == (wanted or Q(conv=2.0, norm=1.0, linear=1.0, enhanced=1.0, p_mean=0.0, p_var=0.0))
    with pytest.raises(ConfigError, match="unknown value 'steep'"):
        make_attack("awa", {"q": "steep"})


def test_the_papers_attack_rejects_an_unknown_form() -> None:
    with pytest.raises(ConfigError, match="form"):
        awa(form="quadratic")  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["steps", "restarts"])
def test_an_attack_needs_at_least_one_step_and_one_try(key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        awa(**{key: 0})  # type: ignore[arg-type]


def test_a_distance_that_is_not_a_number_is_a_status(observation: Observation) -> None:
    def broken(dummy: Update, target: Update, weights: Weights) -> Tensor:
        return cosine(dummy, target, weights) * math.nan

    result = GradientMatching(replay=InterpolatedEpoch(), distance=broken, steps=10)(observation)
    assert result.status == "diverged"
    assert result.iterations == 0
    check_sound(result, observation)


def test_an_absurd_learning_rate_is_a_status(observation: Observation) -> None:
    result = awa(steps=10, learning_rate=1e30, box=False)(observation)
    assert result.status == "diverged"
    check_sound(result, observation)


def test_a_last_step_to_nowhere_is_a_status_too(observation: Observation) -> None:
    method = GradientMatching(replay=InterpolatedEpoch(), optimizer=Adam(learning_rate=1e30), box=False, steps=1)
    result = method(observation)
    check_sound(result, observation)
    assert result.status == "diverged" or math.isfinite(result.mismatch)


def interrupt_at(iteration: int) -> Callable[[Moment, int], None]:
    def watch(moment: Moment, total: int) -> None:
        if moment.iteration >= iteration:
            raise KeyboardInterrupt

    return watch


@pytest.mark.parametrize(
    "attack", [awa(steps=40), strongest(steps=12, rollout_steps=3)], ids=["one phase", "two phases"]
)
@pytest.mark.parametrize("iteration", [0, 10])
def test_an_interrupted_attack_returns_what_it_has(attack: Attack, observation: Observation, iteration: int) -> None:
    result = attack(observation, run=Run(watch=interrupt_at(iteration)))
    assert result.status == "interrupted"
    assert result.iterations - iteration in (0, 1)
    assert math.isfinite(result.mismatch)
    check_sound(result, observation)


def test_an_interruption_counts_also_where_the_images_are_no_numbers(observation: Observation) -> None:
    def spoil(moment: Moment, total: int) -> None:
        raise KeyboardInterrupt

    class Spoiled(Descent):
        def step(self, iteration: int, *, record: bool) -> bool:
            sound = super().step(iteration, record=record)
            for values in (self.variables, self.previous):
                values["images"].fill_(math.nan)
            return sound

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("undelta.attacker.method.Descent", Spoiled)
        result = awa(steps=12, restarts=3)(observation, run=Run(watch=spoil))
    assert (result.status, result.iterations) == ("interrupted", 1)


def test_an_interruption_ends_all_restarts(observation: Observation) -> None:
    result = awa(steps=12, restarts=5)(observation, run=Run(watch=interrupt_at(12 + 10)))
    assert result.status == "interrupted"
    assert result.iterations - (12 + 10) in (0, 1)
    check_sound(result, observation)


def test_a_watch_does_not_change_the_result(observation: Observation) -> None:
    attack = awa(steps=11)
    plain, watched = attack(observation), attack(observation, run=Run(watch=lambda moment, total: None))
    assert torch.equal(plain.images, watched.images)
    assert plain.mismatch == watched.mismatch


def test_the_mismatch_is_that_of_the_images_returned(observation: Observation) -> None:
    result = GradientMatching(replay=OneStep(position=0.5), steps=15)(observation)
    replay = OneStep(position=0.5)(observation, torch.Generator())
    update, _, _ = replay(observation.image.normalize(result.images), result.labels)
    assert mismatch(update, replay.target) == pytest.approx(result.mismatch, rel=1e-3)


def test_priors_enter_the_loss_and_the_result(observation: Observation) -> None:
    plain, smooth = (
        GradientMatching(replay=OneStep(position=0.5), priors=priors, steps=15)(observation)
        for priors in ((), (TotalVariation(weight=10.0),))
    )
    assert smooth.history[0].loss > plain.history[0].loss
    assert not torch.equal(plain.images, smooth.images)


def test_signed_steps_improve_on_their_start(smooth: Observation) -> None:
    method = GradientMatching(
        replay=OneStep(position=0.5), optimizer=Adam(learning_rate=0.01), signed=True, box=False, steps=2
    )
    result = method(smooth)
    assert result.mismatch < result.history[0].mismatch


def test_the_attackers_labels_are_the_multiset_in_an_order_of_its_own(observation: Observation) -> None:
    assert observation.labels is not None
    orders = {tuple(disclosed(observation, torch.Generator().manual_seed(seed)).tolist()) for seed in range(10)}
    assert all(sorted(order) == observation.labels.tolist() for order in orders)
    assert len(orders) > 1


def test_disclosed_labels_do_not_reveal_the_clients_order(scenario: Scenario, private: Private) -> None:
    shuffled = Private(images=private.images.flip(0), labels=private.labels.flip(0))
    guesses = [awa(steps=1)(disclose(data, scenario), seed=3).labels for data in (private, shuffled)]
    assert torch.equal(guesses[0], guesses[1])


def test_equal_seeds_do_not_give_the_attacker_the_clients_shuffle(scenario: Scenario, private: Private) -> None:
    labels = torch.arange(5)
    distinct = Private(images=private.images, labels=labels)
    agreements = 0
    for seed in range(4):
        observation = disclose(distinct, scenario, seed=seed)
        agreements += torch.equal(awa(steps=1)(observation, seed=seed).labels, labels)
    assert agreements < 4


def test_a_linear_layer_reveals_its_input() -> None:
    scenario = Scenario(data="digits", num_samples=1, model="mlp", model_arguments={"hidden": []}, epochs=1, batches=1)
    private = scenario.draw(0)
    observation = disclose(private, scenario, dtype=torch.float64)
    _, _, update = observed_update(observation)
    weight, bias = update["1.weight"], update["1.bias"]
    row = int(bias.abs().argmax())
    revealed = (weight[row] / bias[row]).view(1, 1, 8, 8)  # dW = g x^T, db = g
    pixels = observation.image.denormalize(revealed)
    torch.testing.assert_close(pixels, private.images.double(), rtol=1e-9, atol=1e-9)


def quality(attack: Attack, scenario: Scenario) -> float:
    private = scenario.draw(0)
    result = attack(disclose(private, scenario))
    order = match(result.images, private.images, result.labels, private.labels)
    return float(psnr(result.images[order], private.images).mean())


EASY = Scenario(
    data="photos",
    image_size=16,
    num_samples=2,
    model="cnn",
    model_arguments={"width": 16, "hidden": 64},
    epochs=1,
    batches=1,
)


def test_the_papers_attack_reconstructs_photos_from_one_step() -> None:
    assert quality(awa(form="approximation", steps=150, learning_rate=0.3), EASY) > 18


def test_the_strongest_attack_reconstructs_photos_from_several_epochs() -> None:
    assert quality(strongest(steps=100, rollout_steps=20), replace(EASY, epochs=3, batches=2)) > 18


def test_iterates_of_large_batches_are_few(observation: Observation, monkeypatch: pytest.MonkeyPatch) -> None:
    size = math.prod(observation.image.shape) * observation.num_samples
    monkeypatch.setattr("undelta.attacker.run.ITERATE_BYTES", 3 * size + 1)
    assert len(awa(steps=40)(observation).iterates) == 3
    monkeypatch.setattr("undelta.attacker.run.ITERATE_BYTES", size - 1)
    assert awa(steps=3)(observation).iterates == ()
