"""DP-SGD by Opacus: clipping against gradients by hand, epsilon against the accountant, seeds, and refusals."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from opacus.accountants import RDPAccountant
from torch.nn import functional as F  # noqa: N812

from undelta.client.defenses import DpSgd
from undelta.client.disclose import disclose, disclose_with_secrets
from undelta.client.federation import initial_model
from undelta.client.scenario import Scenario
from undelta.errors import ConfigError
from undelta.trials.trial import Trial, run


def private(scenario: Scenario, **settings: Any) -> Scenario:
    return replace(scenario, defenses=({"defense": "dp_sgd", **settings},))


def test_without_noise_it_steps_along_clipped_gradients_of_single_examples(scenario: Scenario) -> None:
    """Two epochs of uneven mini-batches, in float64, against one backward pass per example."""
    bound = 1.2
    scenario = private(scenario, noise_multiplier=0.0, norm=bound, sampling="shuffled")
    truth = scenario.draw(0)
    observation, (done,) = disclose_with_secrets(truth, scenario, dtype=torch.float64)
    model = initial_model(scenario, scenario.image_spec(), seed=0, dtype=torch.float64)
    inputs = (truth.images.double() - 0.5) / 0.25
    clipped = 0
    for order in done.orders:
        for batch in (order[:3], order[3:]):  # N = 5, B = 2
            total = [torch.zeros_like(value) for value in model.parameters()]
            for index in batch:
                loss = F.cross_entropy(model(inputs[index][None]), truth.labels[index][None])
                slopes = torch.autograd.grad(loss, list(model.parameters()))
                size = float(torch.stack([slope.square().sum() for slope in slopes]).sum().sqrt())
                clipped += size > bound
                for sum_, slope in zip(total, slopes, strict=True):
                    sum_ += slope * min(1.0, bound / (size + 1e-6))  # Opacus' own guard against zero
            with torch.no_grad():
                for value, sum_ in zip(model.parameters(), total, strict=True):
                    value.sub_(sum_, alpha=0.05 / (5 / 2))  # by the expected size of a mini-batch
    assert 0 < clipped < 10, f"{clipped}: some, not all, must be clipped, or the test is blind"
    for name, value in model.state_dict().items():
        torch.testing.assert_close(observation.received[name], value, rtol=1e-10, atol=1e-12)


def test_without_noise_and_bound_it_is_plain_sgd_up_to_rounding(scenario: Scenario) -> None:
    scenario = replace(scenario, num_samples=6)  # even mini-batches, since it divides by their expected size
    off = private(scenario, noise_multiplier=0.0, norm=1e6, sampling="shuffled")
    plain, turned_down = (disclose(scenario.draw(0), one, dtype=torch.float64) for one in (scenario, off))
    for name, value in plain.received.items():
        torch.testing.assert_close(turned_down.received[name], value, rtol=1e-9, atol=1e-12)


def test_noise_has_the_size_that_the_multiplier_says() -> None:
    """One step on all images: noise of multiplier x norm on the sum, divided by N, times the learning rate."""
    scenario = Scenario(data="digits", num_samples=4, model="mlp", epochs=1, batches=1, learning_rate=0.5)
    quiet = private(scenario, noise_multiplier=0.0, norm=0.1)
    loud = private(scenario, noise_multiplier=3.0, norm=0.1)
    a, b = (disclose(scenario.draw(0), one, dtype=torch.float64).received for one in (quiet, loud))
    gap = torch.cat([(a[name] - b[name]).reshape(-1) for name in a])
    expected = 3.0 * 0.1 / 4 * 0.5
    assert float(gap.std()) == pytest.approx(expected, rel=4 / (2 * len(gap)) ** 0.5)


def test_poisson_steps_take_every_image_with_probability_one_in_b(scenario: Scenario) -> None:
    scenario = private(replace(scenario, num_samples=10, epochs=20, batches=5), noise_multiplier=1.0)
    _, (done,) = disclose_with_secrets(scenario.draw(0), scenario)
    assert len(done.losses) == 100, "E x B steps"
    taken = torch.cat(done.orders).bincount(minlength=10)
    expected, error = 100 / 5, (100 * 0.2 * 0.8) ** 0.5
    assert (taken - expected).abs().max() < 4 * error
    assert len({len(order) for order in done.orders}) > 1, "their number varies, unlike that of shuffled ones"


@pytest.mark.parametrize("sampling", ["poisson", "shuffled"])
def test_epsilon_is_that_of_the_accountant_stepped_by_hand(scenario: Scenario, sampling: str) -> None:
    scenario = replace(scenario, rounds=2, clients=2, participants=2)  # E = 2, B = 2, three rounds in all
    scenario = private(scenario, noise_multiplier=1.3, delta=1e-4, sampling=sampling)
    accountant = RDPAccountant()
    for _ in range(3 * 2 * (2 if sampling == "poisson" else 1)):
        accountant.step(noise_multiplier=1.3, sample_rate=0.5 if sampling == "poisson" else 1.0)
    epsilon, delta = scenario.privacy() or (None, None)
    more, _ = scenario.privacy(rounds=10) or (None, None)
    assert epsilon is not None
    assert more is not None
    assert epsilon == pytest.approx(accountant.get_epsilon(delta=1e-4))
    assert delta == 1e-4
    assert more > epsilon


def test_the_engine_counts_the_steps_that_epsilon_is_computed_for(scenario: Scenario) -> None:
    defense = DpSgd(noise_multiplier=1.3)
    truth, image = scenario.draw(0), scenario.image_spec()
    model = initial_model(scenario, image, seed=0, dtype=torch.float32)
    _, engine = defense.accounted_walk(
        model, image.normalize(truth.images), truth.labels, scenario.training, seed=("test",)
    )
    assert engine.accountant.history == [defense.history(scenario.training, rounds=1)]
    assert engine.get_epsilon(1e-5) == pytest.approx(defense.epsilon(scenario.training, rounds=1))


def test_records_carry_epsilon_and_delta(scenario: Scenario) -> None:
    protected = private(scenario, noise_multiplier=2.0)
    outcome = run(Trial(scenario=protected, attack="sme", arguments={"steps": 2}))
    assert (outcome.record.epsilon, outcome.record.delta) == protected.privacy()
    plain = run(Trial(scenario=scenario, attack="sme", arguments={"steps": 2})).record
    assert (plain.epsilon, plain.delta) == (None, None)


def test_without_noise_there_is_no_epsilon(scenario: Scenario) -> None:
    assert private(scenario, noise_multiplier=0.0).privacy() == (None, 1e-5)


def test_batchnorm_is_refused_with_a_hint_and_groupnorm_is_taken(scenario: Scenario) -> None:
    normed = replace(scenario, model_arguments={"width": 4, "hidden": 16, "norm": "batch"})
    with pytest.raises(ConfigError, match=r'use GroupNorm: model_arguments = \{ norm = "group" \}'):
        disclose(scenario.draw(0), private(normed, noise_multiplier=1.0))
    grouped = replace(scenario, model_arguments={"width": 4, "hidden": 16, "norm": "group"})
    assert disclose(scenario.draw(0), private(grouped, noise_multiplier=1.0)).received


def test_eval_mode_is_no_obstacle(scenario: Scenario) -> None:
    assert disclose(scenario.draw(0), private(replace(scenario, norm_mode="eval"), noise_multiplier=1.0)).received


@pytest.mark.parametrize("multiplier", [-1.0, 9e-4, 1.1e6, float("inf"), float("nan")])
def test_noise_that_cannot_be_accounted_for_is_refused(multiplier: float) -> None:
    with pytest.raises(ConfigError, match=r"expected 0.001 <= noise_multiplier <= 1e\+06, got"):
        DpSgd(noise_multiplier=multiplier)


@pytest.mark.parametrize("multiplier", [1e-3, 1e6])
def test_the_least_and_the_most_noise_have_a_finite_epsilon(scenario: Scenario, multiplier: float) -> None:
    epsilon = DpSgd(noise_multiplier=multiplier).epsilon(scenario.training, rounds=1)
    assert epsilon is not None
    assert 0 <= epsilon < float("inf")


def test_no_noise_is_allowed_and_promises_nothing(scenario: Scenario) -> None:
    assert DpSgd(noise_multiplier=0.0).epsilon(scenario.training, rounds=1) is None


def test_a_missing_opacus_is_one_line_that_names_the_extra(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opacus", None)
    with pytest.raises(ConfigError, match=r'^dp_sgd needs Opacus: pip install "undelta\[dp\]"$'):
        disclose(scenario.draw(0), private(scenario, noise_multiplier=1.0))
