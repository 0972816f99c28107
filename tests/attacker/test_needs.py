"""Memory: what an attack will hold is reckoned before it begins, and refused if there is not enough."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch

from undelta.attacker.attack import Run
from undelta.attacker.attacks import ATTACKS
from undelta.attacker.attacks.analytic import analytic
from undelta.attacker.attacks.dlg import dlg
from undelta.attacker.attacks.geng import geng_path
from undelta.attacker.attacks.idlg import idlg
from undelta.attacker.combine import method_of
from undelta.attacker.needs import reckon
from undelta.client.disclose import disclose
from undelta.client.private import Private
from undelta.client.scenario import Scenario
from undelta.engine.devices import memory_left
from undelta.errors import ConfigError, MissingKnowledge
from undelta.evaluation.floor import floors
from undelta.observation import Observation
from undelta.training import MOST_SAMPLES, MOST_STEPS

pytestmark = pytest.mark.usefixtures("bounded_memory")


@pytest.fixture
def many_epochs(observation: Observation) -> Observation:
    """A small file that claims more epochs than anybody can replay."""
    return replace(observation, training=replace(observation.training, epochs=MOST_STEPS // 2, batches=2))


@pytest.mark.parametrize("attack", ["agic", "dlfa", "geng_path", "idlg_fedavg"])
def test_an_update_that_claims_millions_of_epochs_is_refused_with_the_number(
    attack: str, many_epochs: Observation
) -> None:
    began = time.perf_counter()
    with pytest.raises(ConfigError, match=r"would hold [\d,.]+ GB or more .*epochs=5000000"):
        ATTACKS[attack]()(many_epochs, seed=0)
    assert time.perf_counter() - began < 5


def test_the_floor_of_an_update_that_claims_millions_of_epochs_is_left_out(
    many_epochs: Observation, private: Private
) -> None:
    found = floors(private, many_epochs)
    assert None in found.values()
    assert not all(value is None for value in found.values())


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_update_that_claims_ten_million_images_is_refused_by_every_attack(
    attack: str, observation: Observation
) -> None:
    labels = torch.zeros(MOST_SAMPLES, dtype=torch.int64)
    trap = replace(observation, num_samples=MOST_SAMPLES, labels=labels)
    with pytest.raises((ConfigError, MissingKnowledge)):
        ATTACKS[attack]()(trap, seed=0)


def test_labels_that_move_are_reckoned_with_all_their_classes(observation: Observation) -> None:
    needs = [reckon(method_of(attack()), observation)["5 labels"] for attack in (dlg, idlg)]
    assert needs == [5 * 5 * observation.image.classes * 4, 5 * 8]


def test_more_memory_than_there_is_can_be_allowed(many_epochs: Observation) -> None:
    class Begun(Exception):
        """The attack got as far as its labels."""

    def labels(observation: Observation, generator: torch.Generator) -> torch.Tensor:
        raise Begun

    method = replace(geng_path(), labels=labels)
    with pytest.raises(ConfigError, match="--memory"):
        method(many_epochs)
    with pytest.raises(Begun):
        method(many_epochs, run=Run(memory=2**62))


def test_the_memory_that_is_left_heeds_the_processs_own_limit() -> None:
    assert 0 < memory_left(torch.device("cpu")) <= 2**30


def test_the_closed_form_fills_up_with_repeats_at_once() -> None:
    small = {"hidden": [2]}
    scenario = Scenario(data="faces", image_size=4, num_samples=2, model="mlp", model_arguments=small, batches=1)
    observation = disclose(scenario.draw(0), scenario)
    began = time.perf_counter()
    found = analytic()(replace(observation, num_samples=3000, labels=torch.zeros(3000, dtype=torch.int64)))
    assert len(found.images) == 3000
    assert time.perf_counter() - began < 5
