"""What every named attack promises, whatever its method."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from undelta.attacker.attacks import ATTACKS
from undelta.attacker.reconstruction import Reconstruction
from undelta.client.disclose import disclose
from undelta.client.private import Private
from undelta.client.scenario import Scenario
from undelta.errors import ConfigError, MissingKnowledge
from undelta.observation import Observation

SHORT: dict[str, dict[str, Any]] = {
    "awa": {"steps": 12},
    "strongest": {"steps": 12, "rollout_steps": 3, "macro_steps": 3},
    "dlg": {"steps": 3},
    "cpl": {"steps": 3},
    "idlg": {"steps": 3},
    "idlg_fedavg": {"steps": 12},
    "ig": {"steps": 12},
    "gradinversion": {"steps": 12, "group": 2},
    "sapag": {"steps": 12},
    "agic": {"steps": 12},
    "geng_epoch": {"steps": 12},
    "geng_path": {"steps": 12},
    "geng_gradient": {"steps": 12},
    "sme": {"steps": 12},
    "nl_sme": {"steps": 12},
    "pi_sme": {"steps": 12},
    "fedleak": {"steps": 12},
    "tgias_ro": {"steps": 12},
    "dlfa": {"steps": 12},
    "analytic": {},
}
"""Every attack, with settings that keep it short."""

GRANTED = ("idlg_fedavg", "ig", "sapag", "agic", "sme", "nl_sme", "pi_sme", "fedleak", "tgias_ro")
"""Attacks whose papers take the labels as granted; the others infer or optimize them."""

COUNTING = ("geng_epoch", "geng_path", "geng_gradient", "dlfa")
"""Attacks that count labels by the last layer's rows."""

MODELS: dict[str, dict[str, object]] = {
    "lenet": {"width": 4},
    "cnn": {"width": 4, "hidden": 16},
    "convnet": {"width": 4},
    "vit": {"width": 8, "depth": 1, "heads": 2},
    "mlp": {"hidden": [32]},
}

FAIR = {"dlg": "vit", "idlg": "cnn", "gradinversion": "cnn"}
"""Nets on which a few steps already help; elsewhere that is the sigmoid net."""

each_attack = pytest.mark.parametrize("name", ATTACKS)


def run(name: str, observation: Observation, seed: int = 0, **settings: object) -> Reconstruction:
    return ATTACKS[name](**SHORT[name], **settings)(observation, seed=seed)


def suited(scenario: Scenario, name: str, model: str = "cnn") -> Scenario:
    """A scenario that this attack can handle: one sample for iDLG, a linear first layer for the closed form."""
    model = "mlp" if name == "analytic" else model
    scenario = replace(scenario, model=model, model_arguments=MODELS[model])
    return replace(scenario, num_samples=1, batches=1) if name == "idlg" else scenario


Case = Callable[[str], Observation]


@pytest.fixture
def case(scenario: Scenario) -> Case:
    def make(name: str) -> Observation:
        chosen = suited(scenario, name)
        return disclose(chosen.draw(0), chosen)

    return make


def equal(a: Reconstruction, b: Reconstruction) -> bool:
    """Bit for bit, but for the time it took."""
    timeless = [[moment._replace(seconds=0) for moment in result.history] for result in (a, b)]
    return (
        torch.equal(a.images, b.images)
        and torch.equal(a.labels, b.labels)
        and (a.mismatch, a.iterations, a.status) == (b.mismatch, b.iterations, b.status)
        and timeless[0] == timeless[1]
    )


def check_sound(name: str, result: Reconstruction, observation: Observation) -> None:
    assert result.images.shape == (observation.num_samples, *observation.image.shape)
    assert torch.isfinite(result.images).all()
    assert result.images.min() >= 0
    assert result.images.max() <= 1
    assert result.labels.shape == (observation.num_samples,)
    assert result.labels.dtype == torch.int64
    assert result.labels.min() >= 0
    assert result.labels.max() < observation.image.classes
    if name in GRANTED and observation.labels is not None:
        assert torch.equal(result.labels.sort().values, observation.labels)
    assert result.status == "completed"
    assert math.isfinite(result.mismatch)


def test_every_attack_is_held_to_the_contract() -> None:
    assert list(SHORT) == list(ATTACKS)
    assert set(GRANTED) < set(ATTACKS)


@each_attack
def test_an_attack_is_deterministic_by_its_seed(name: str, case: Case) -> None:
    observation = case(name)
    first, again, other = (run(name, observation, seed) for seed in (1, 1, 2))
    assert equal(first, again)
    if name == "analytic":  # nothing is drawn but the order of the labels
        assert torch.equal(first.images, other.images)
    else:
        assert not torch.equal(first.images, other.images)


@each_attack
def test_an_attack_improves_on_its_start(name: str, scenario: Scenario) -> None:
    if name == "analytic":
        pytest.skip("the closed form has no start")
    fair = suited(scenario, name, FAIR.get(name, "lenet"))
    observation = disclose(fair.draw(0), fair)
    result = run(name, observation)
    check_sound(name, result, observation)
    assert result.mismatch < result.history[0].mismatch
    assert result.mismatch == result.history[-1].mismatch
    iterations = [moment.iteration for moment in result.history]
    assert iterations == sorted(iterations)
    assert iterations[-1] == result.iterations
    if name == "strongest":  # which has phases that depend on what it finds
        assert result.iterations >= 2 * SHORT[name]["steps"] + SHORT[name]["rollout_steps"]
    else:
        assert result.iterations == SHORT[name]["steps"]


@each_attack
def test_an_attack_neither_reads_nor_changes_the_global_random_state(name: str, case: Case) -> None:
    observation = case(name)
    before = torch.get_rng_state()
    first = run(name, observation)
    assert torch.equal(before, torch.get_rng_state())
    with torch.random.fork_rng():
        torch.manual_seed(9)
        assert equal(first, run(name, observation))


@each_attack
def test_an_attack_leaves_the_observation_as_it_is(name: str, case: Case) -> None:
    observation = case(name)
    states = (observation.initial, observation.received)
    before = [{key: tensor.clone() for key, tensor in state.items()} for state in states]
    run(name, observation)
    for state, copies in zip(states, before, strict=True):
        assert all(torch.equal(state[key], copies[key]) for key in copies)
        assert not any(tensor.requires_grad for tensor in state.values())


@each_attack
def test_the_private_data_have_no_influence_after_disclosure(name: str, scenario: Scenario) -> None:
    chosen = suited(scenario, name)
    private = chosen.draw(0)
    observation = disclose(private, chosen)
    before = run(name, observation)
    private.images.zero_()
    private.labels.zero_()
    assert equal(before, run(name, observation))


@each_attack
@pytest.mark.parametrize("model", ["cnn", "convnet", "vit"])
def test_an_attack_works_on_every_kind_of_net(name: str, model: str, scenario: Scenario) -> None:
    chosen = replace(suited(scenario, name), model=model, model_arguments=MODELS[model])
    observation = disclose(chosen.draw(0), chosen)
    if name == "analytic":
        with pytest.raises(MissingKnowledge, match=r"linear first layer.*Use a matching attack"):
            run(name, observation)
        return
    if model == "vit" and name in COUNTING:  # its features are not positive, so rows do not count labels
        with pytest.raises(MissingKnowledge, match=r"not positive.*labels = bias"):
            run(name, observation)
        check_sound(name, run(name, observation, labels="bias"), observation)
        return
    check_sound(name, run(name, observation), observation)


@pytest.mark.parametrize("name", GRANTED)
def test_an_attack_that_takes_labels_as_granted_is_its_papers_own_where_they_are(
    name: str, scenario: Scenario, private: Private
) -> None:
    observation = disclose(private, scenario)
    ours, papers = run(name, observation), run(name, observation, labels="disclosed")
    assert torch.equal(ours.images, papers.images)
    assert torch.equal(ours.labels, papers.labels)
    with pytest.raises(MissingKnowledge, match="grant_labels"):
        run(name, disclose(private, replace(scenario, grant_labels=False)), labels="disclosed")


@each_attack
def test_every_attack_does_without_granted_labels(name: str, scenario: Scenario) -> None:
    chosen = replace(suited(scenario, name), grant_labels=False)
    observation = disclose(chosen.draw(0), chosen)
    check_sound(name, run(name, observation), observation)


@pytest.mark.parametrize(("name", "samples", "advice"), [("idlg", 2, "geng"), ("gradinversion", 11, "geng")])
def test_a_label_rule_that_cannot_serve_so_many_samples_says_what_can(
    name: str, samples: int, advice: str, scenario: Scenario
) -> None:
    chosen = replace(scenario, num_samples=samples)
    observation = disclose(chosen.draw(0), chosen)
    with pytest.raises(MissingKnowledge, match=advice):
        run(name, observation)
    assert run(name, observation, labels=advice).status == "completed"


@pytest.mark.parametrize("name", [name for name in ATTACKS if name not in ("dlg", "cpl")])
def test_an_unknown_source_of_labels_is_an_error(name: str) -> None:
    with pytest.raises(ConfigError, match="labels"):
        ATTACKS[name](labels="oracle")


@each_attack
def test_an_update_of_zero_is_an_answer_or_a_refusal_but_no_crash(name: str, case: Case) -> None:
    observation = case(name)
    still = replace(observation, received={key: value.clone() for key, value in observation.initial.items()})
    if name == "analytic":
        with pytest.raises(MissingKnowledge, match="update"):
            run(name, still)
    else:
        assert torch.isfinite(run(name, still).images).all()
