"""Servers that know less: attacks degrade or refuse, and nothing that was taken away is still there."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from undelta.attacker.attack import Attack
from undelta.attacker.attacks import agic, awa, dlfa, dlg, idlg_fedavg, ig, sme, strongest
from undelta.attacker.method import GradientMatching
from undelta.attacker.paths import QuadraticPath, UnevenSteps
from undelta.attacker.replays import CoarseRollout, FullRollout, InterpolatedEpoch, OneStep, observed_update
from undelta.client.disclose import disclose
from undelta.client.federation import average
from undelta.client.private import Private
from undelta.client.scenario import Scenario
from undelta.errors import ConfigError, MissingKnowledge, ObservationError
from undelta.observation import Hyperparameter, Observation
from undelta.observation.file import load_observation, save_observation
from undelta.observation.withhold import mistaken, only_layers, quantized, without, without_buffers, without_labels
from undelta.trials.record import describe_observation
from undelta.updates import layers_of


@pytest.fixture
def normed(scenario: Scenario, private: Private) -> Observation:
    """A client of a net with BatchNorm."""
    return disclose(private, replace(scenario, model="convnet", model_arguments={"width": 4}))


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("layers", [["fc2"], ["conv1"], ["conv1", "fc2"], ["conv2", "fc1"]])
@pytest.mark.parametrize(
    "attack",
    [
        awa(steps=3),
        strongest(steps=3, rollout_steps=2),
        sme(steps=3),
        dlg(steps=1),
        agic(steps=3),
        dlfa(steps=3, labels="disclosed"),
    ],
    ids=["awa", "strongest", "sme", "dlg", "agic", "dlfa"],
)
def test_an_attack_runs_with_some_layers_only(attack: Attack, layers: list[str], observation: Observation) -> None:
    result = attack(only_layers(observation, layers))
    assert result.status == "completed"
    assert math.isfinite(result.mismatch)
    assert torch.isfinite(result.images).all()


@pytest.mark.parametrize(
    "part",
    [FullRollout(), InterpolatedEpoch(), OneStep(position=0.5), CoarseRollout(steps=2), UnevenSteps(), QuadraticPath()],
    ids=lambda part: type(part).__name__,
)
def test_a_replay_matches_only_the_layers_that_were_received(
    part: FullRollout | QuadraticPath, observation: Observation
) -> None:
    names = {"conv1.weight", "conv1.bias", "fc2.weight", "fc2.bias"}
    replay = part(only_layers(observation, ["conv1", "fc2"]), generator())
    images = torch.randn(5, 1, 8, 8, generator=generator())
    update, _, pullback = replay(images, torch.arange(5))
    assert set(replay.target) == set(update) == names
    assert set(replay.start) > names
    assert float(pullback(replay.target).images.abs().max()) > 0


def test_only_the_named_layers_stay_in_the_observation(normed: Observation) -> None:
    layers = [layer.name for layer in layers_of(normed.model())]
    some = only_layers(normed, layers[:2])
    assert {name.rpartition(".")[0] for name in some.received} == set(layers[:2])
    assert not any("running" in name for name in some.received)
    assert some.initial.keys() == normed.initial.keys()


def test_an_unknown_layer_is_named_with_those_there_are(observation: Observation) -> None:
    with pytest.raises(ConfigError, match=r"no layer 'fc9'.*conv1.*fc2"):
        only_layers(observation, ["fc9"])


def test_an_observation_without_any_layer_is_refused(observation: Observation) -> None:
    with pytest.raises(ObservationError, match="empty"):
        only_layers(observation, [])


def test_without_buffers_the_servers_statistics_are_left(normed: Observation) -> None:
    bare = without_buffers(normed)
    assert not any("running" in name or "tracked" in name for name in bare.received)
    assert set(bare.received) == {name for name, _ in normed.model().named_parameters()}
    with_them, without_them = (awa(steps=3)(seen) for seen in (normed, bare))
    assert torch.equal(with_them.images, without_them.images)
    with pytest.raises(MissingKnowledge, match=r"withheld.*bn_source = server"):
        awa(steps=3, bn_source="client")(bare)


def test_buffers_alone_are_nothing_to_attack(normed: Observation) -> None:
    buffers = {name: value for name, value in normed.received.items() if "running" in name}
    with pytest.raises(MissingKnowledge, match="only buffers"):
        ig(steps=1)(replace(normed, received=buffers))


EACH: list[tuple[Hyperparameter, ...]] = [("epochs",), ("learning_rate",), ("epochs", "learning_rate")]


@pytest.mark.parametrize("keys", EACH)
@pytest.mark.parametrize(
    "attack",
    [
        sme(steps=3),
        ig(steps=3),
        GradientMatching(replay=OneStep(position=0.5), steps=3),
        strongest(steps=3, rollout_steps=2),
    ],
    ids=["sme", "ig", "one step", "strongest"],
)
def test_attacks_on_directions_need_no_hyperparameters(
    attack: Attack, keys: tuple[Hyperparameter, ...], observation: Observation
) -> None:
    known, blind = attack(observation), attack(without(observation, *keys))
    assert blind.status == "completed"
    assert math.isfinite(blind.mismatch)
    if not isinstance(attack, type(strongest())):  # which has no path to roll out then
        assert blind.mismatch == pytest.approx(known.mismatch, rel=0.05)


@pytest.mark.parametrize("keys", EACH)
@pytest.mark.parametrize(
    "attack",
    [awa(steps=1), GradientMatching(replay=CoarseRollout(steps=2), steps=1), idlg_fedavg(steps=1), dlg(steps=1)],
    ids=["awa", "coarse rollout", "full rollout", "dlg"],
)
def test_attacks_on_lengths_name_the_hyperparameter_they_lack(
    attack: Attack, keys: tuple[Hyperparameter, ...], observation: Observation
) -> None:
    with pytest.raises(MissingKnowledge, match="|".join(keys)):
        attack(without(observation, *keys))


def test_one_dummy_image_per_epoch_needs_the_epochs_only(observation: Observation) -> None:
    with pytest.raises(MissingKnowledge, match="epochs"):
        agic(steps=1)(without(observation, "epochs"))
    assert agic(steps=1)(without(observation, "learning_rate")).status == "completed"


@pytest.mark.parametrize("keys", EACH)
def test_an_unknown_hyperparameter_is_nowhere_in_the_observation(
    keys: tuple[Hyperparameter, ...], scenario: Scenario, private: Private
) -> None:
    blind = without(disclose(private, replace(scenario, epochs=3, learning_rate=0.0625)), *keys)
    assert blind.unknown == keys
    for key in keys:
        assert getattr(blind.training, key) == 1
        with pytest.raises(MissingKnowledge, match=key):
            getattr(blind, key)
        with pytest.raises(MissingKnowledge, match=key):
            _ = blind.path_length if len(keys) == 1 else getattr(blind, key)
    other = without(disclose(private, replace(scenario, epochs=3, learning_rate=0.0625)), *keys)
    assert repr(other) == repr(blind)
    assert ("0.0625" in repr(blind)) == ("learning_rate" not in keys)


def test_a_known_value_said_to_be_unknown_is_refused(observation: Observation) -> None:
    with pytest.raises(ObservationError, match="epochs is said to be unknown"):
        replace(observation, unknown=("epochs",))


def test_taking_away_twice_adds_up(observation: Observation) -> None:
    blind = without(without(observation, "learning_rate"), "epochs", "learning_rate")
    assert blind.unknown == ("epochs", "learning_rate")


def test_a_mistaken_server_believes_other_hyperparameters(observation: Observation) -> None:
    wrong = mistaken(observation, epochs=2.5, learning_rate=0.1)
    assert wrong.epochs == 5
    assert wrong.learning_rate == pytest.approx(0.005)
    assert mistaken(observation, epochs=0.01).epochs == 1
    assert wrong.path_length == pytest.approx(0.25 * observation.path_length)
    assert awa(steps=3)(wrong).status == "completed"
    assert not torch.equal(awa(steps=3)(wrong).images, awa(steps=3)(observation).images)
    assert torch.equal(ig(steps=3, tv=0.0)(observation).labels, ig(steps=3, tv=0.0)(wrong).labels)


def test_a_mistake_of_factor_one_is_none(observation: Observation) -> None:
    assert mistaken(observation).training == observation.training


def test_labels_can_be_withheld(observation: Observation) -> None:
    blind = without_labels(observation)
    assert blind.labels is None
    with pytest.raises(MissingKnowledge, match="labels"):
        awa(steps=1, labels="disclosed")(blind)


def relative_error(observation: Observation, bits: int) -> float:
    (_, _, update), (_, _, coarse) = observed_update(observation), observed_update(quantized(observation, bits))
    error = torch.cat([(coarse[name] - update[name]).reshape(-1) for name in update])
    return float(error.norm() / torch.cat([value.reshape(-1) for value in update.values()]).norm())


def test_quantization_errs_less_with_more_bits(observation: Observation) -> None:
    errors = [relative_error(observation, bits) for bits in (1, 2, 4, 8, 16)]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 0.1
    assert errors[3] < 0.02
    assert errors[4] < 1e-3


def test_one_bit_leaves_two_levels_and_the_extremes(normed: Observation) -> None:
    double = {"initial": {}, "received": {}}  # type: dict[str, dict[str, torch.Tensor]]
    for side, values in double.items():
        for name, value in getattr(normed, side).items():
            values[name] = value.double() if value.is_floating_point() else value
    exact = replace(normed, initial=double["initial"], received=double["received"])
    (_, _, update), (_, _, coarse) = observed_update(exact), observed_update(quantized(exact, 1))
    for name, value in coarse.items():
        ends = torch.stack([update[name].min(), update[name].max()])
        assert float((value.reshape(-1, 1) - ends).abs().amin(1).max()) < 1e-12
    counters = [name for name in exact.received if name.endswith("num_batches_tracked")]
    assert counters
    assert all(torch.equal(quantized(exact, 1).received[name], exact.received[name]) for name in counters)


def test_a_layer_that_did_not_move_is_quantized_to_itself(observation: Observation) -> None:
    still = replace(observation, received={**observation.received, "fc2.bias": observation.initial["fc2.bias"].clone()})
    assert torch.equal(quantized(still, 4).received["fc2.bias"], still.received["fc2.bias"])


@pytest.mark.parametrize("bits", [0, 17])
def test_quantization_needs_a_sensible_number_of_bits(observation: Observation, bits: int) -> None:
    with pytest.raises(ConfigError, match="bits"):
        quantized(observation, bits)


def test_partial_observations_come_back_from_a_file(normed: Observation, tmp_path: Path) -> None:
    partial = {
        "layers": only_layers(normed, [layers_of(normed.model())[-1].name]),
        "buffers": without_buffers(normed),
        "labels": without_labels(normed),
        "epochs": without(normed, "epochs"),
        "both": without(normed, "epochs", "learning_rate"),
        "mistaken": mistaken(normed, learning_rate=3.0),
        "quantized": quantized(normed, 4),
    }
    for name, observation in partial.items():
        save_observation(observation, tmp_path / name)
        loaded = load_observation(tmp_path / name)
        assert (loaded.training, loaded.unknown) == (observation.training, observation.unknown)
        assert loaded.received.keys() == observation.received.keys()
        assert all(torch.equal(loaded.received[key], value) for key, value in observation.received.items())
        assert (loaded.labels is None) == (observation.labels is None)
        if loaded.labels is not None:
            assert torch.equal(sme(steps=2)(loaded).images, sme(steps=2)(observation).images)


def test_the_aggregate_of_two_clients_can_be_attacked(scenario: Scenario) -> None:
    pair = replace(scenario, clients=2)
    clients = pair.draw_all(0)
    alone = [disclose(private, scenario) for private in clients]
    assert all(torch.equal(alone[0].initial[name], alone[1].initial[name]) for name in alone[0].initial)
    labels = torch.cat([private.labels for private in clients]).sort().values
    together = replace(
        alone[0],
        received=average([observation.received for observation in alone], [1.0, 1.0]),
        num_samples=10,
        labels=labels,
    )
    for attack in (sme(steps=12), strongest(steps=12, rollout_steps=3)):
        result = attack(together)
        assert result.status == "completed"
        assert result.images.shape == (10, 1, 8, 8)
        assert torch.equal(result.labels.sort().values, labels)
        assert result.mismatch < result.history[0].mismatch


def test_a_record_does_not_take_unknown_hyperparameters_for_facts() -> None:
    scenario = Scenario(data="digits", num_samples=2, model="lenet", epochs=2, batches=1)
    described = describe_observation(without(disclose(scenario.draw(0), scenario), "epochs", "learning_rate"))
    assert described["epochs"] is None
    assert described["learning_rate"] is None
    assert described["batches"] == 1
