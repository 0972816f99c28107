"""The client and the federation around it: real training, averaging, seeds, and what is disclosed."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from undelta.client.disclose import disclose, disclose_with_secrets
from undelta.client.federation import average, federate, initial_model
from undelta.client.local import train
from undelta.client.private import Private
from undelta.client.scenario import Scenario
from undelta.errors import ConfigError, DataError, UndeltaError
from undelta.training import LossName, NormMode
from undelta.updates import State


def same(a: State, b: State) -> bool:
    return list(a) == list(b) and all(torch.equal(a[name], b[name]) for name in a)


def federated(scenario: Scenario, clients: tuple[Private, ...] | None = None, seed: int = 0) -> State:
    image = scenario.image_spec()
    return federate(scenario, clients or scenario.draw_all(seed), image, seed=seed, dtype=torch.float64).state_dict()


@pytest.fixture
def federation(scenario: Scenario) -> Scenario:
    return replace(scenario, rounds=1, clients=3, participants=3)


@pytest.mark.parametrize("loss", ["cross_entropy", "l2"])
@pytest.mark.parametrize("norm_mode", ["train", "eval"])
def test_a_client_trains_like_a_plain_sgd_loop(norm_mode: NormMode, loss: LossName) -> None:
    scenario = Scenario(
        data="digits",
        num_samples=7,
        model="convnet",
        model_arguments={"width": 4},
        epochs=3,
        batches=3,
        learning_rate=0.1,
        norm_mode=norm_mode,
        loss=loss,
    )
    image, private = scenario.image_spec(), scenario.draw(0)
    model = initial_model(scenario, image, seed=0, dtype=torch.float64)
    before = copy.deepcopy(model.state_dict())
    run = train(model, private, scenario.training, image, seed=("test",))
    assert same(before, model.state_dict()), "the server's model is not the client's to change"

    inputs = (private.images.double() - 0.5) / 0.25
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.train(norm_mode == "train")
    losses = []
    for order in run.orders:
        for batch in (order[:3], order[3:6], order[6:]):  # the last mini-batch is uneven
            outputs, labels = model(inputs[batch]), private.labels[batch]
            if loss == "l2":
                value = (outputs - F.one_hot(labels, 10)).pow(2).sum(1).mean()
            else:
                value = F.cross_entropy(outputs, labels)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            losses.append(float(value.detach()))
    assert losses == pytest.approx(list(run.losses), rel=1e-12)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(run.state[name], tensor, rtol=1e-12, atol=1e-12)
    changed = not torch.equal(before["1.running_mean"], run.state["1.running_mean"])
    assert changed == (norm_mode == "train")


def test_every_epoch_shuffles_anew(private: Private, scenario: Scenario) -> None:
    _, (run,) = disclose_with_secrets(private, replace(scenario, epochs=6))
    orders = {tuple(order.tolist()) for order in run.orders}
    assert all(sorted(order) == list(range(len(private))) for order in orders)
    assert len(orders) > 1


def test_averaging_weights_the_clients() -> None:
    states = [{"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([5.0, -2.0])}]
    assert average(states, [3.0, 1.0])["w"].tolist() == [2.0, 1.0]
    assert average(states, [0.3, 0.1])["w"].tolist() == pytest.approx([2.0, 1.0])


def test_integer_counters_take_their_maximum_and_stay_integers() -> None:
    mean = average([{"count": torch.tensor(3)}, {"count": torch.tensor(8)}], [1.0, 1.0])
    assert torch.equal(mean["count"], torch.tensor(8))


def test_a_round_whose_participants_all_weigh_nothing_is_an_error() -> None:
    with pytest.raises(ConfigError, match="weight 0"):
        average([{"w": torch.ones(1)}], [0.0])


def test_a_round_of_all_clients_is_the_weighted_mean_of_their_models(federation: Scenario) -> None:
    scenario = replace(federation, client_samples=(5, 2, 3), batches=1, epochs=1)
    clients, image = scenario.draw_all(0), scenario.image_spec()
    model = initial_model(scenario, image, seed=0, dtype=torch.float64)
    # One full-batch step each, so the mean of the models by samples is one step on all samples together.
    everything = Private(
        images=torch.cat([client.images for client in clients]), labels=torch.cat([client.labels for client in clients])
    )
    together = train(model, everything, scenario.training, image, seed=("test",)).state
    for name, tensor in federated(scenario, clients).items():
        torch.testing.assert_close(tensor, together[name], rtol=1e-10, atol=1e-12)


def test_only_the_selected_clients_influence_a_round(federation: Scenario) -> None:
    scenario = replace(federation, participants=2)
    clients = scenario.draw_all(0)
    model = federated(scenario, clients)
    moved = 0
    for k in range(3):
        changed = [*clients]
        changed[k] = replace(clients[k], images=1 - clients[k].images)
        moved += not same(model, federated(scenario, tuple(changed)))
    assert moved == 2


def test_over_many_rounds_the_selection_changes(federation: Scenario) -> None:
    scenario = replace(federation, participants=1, rounds=12)
    clients = scenario.draw_all(0)
    model = federated(scenario, clients)
    for k in range(3):
        changed = [*clients]
        changed[k] = replace(clients[k], images=1 - clients[k].images)
        assert not same(model, federated(scenario, tuple(changed)))


def test_each_round_changes_what_the_attacked_client_is_sent(federation: Scenario) -> None:
    private = federation.draw(0)
    states = [disclose(private, replace(federation, rounds=rounds)).initial for rounds in range(3)]
    assert not same(states[0], states[1])
    assert not same(states[1], states[2])


def test_a_client_of_weight_zero_never_influences_the_model(federation: Scenario) -> None:
    scenario = replace(federation, rounds=2, client_weights=(1.0, 2.0, 0.0))
    clients = scenario.draw_all(0)
    other = replace(clients[2], images=1 - clients[2].images)
    assert same(federated(scenario, clients), federated(scenario, (*clients[:2], other)))
    assert not same(federated(scenario, clients), federated(replace(scenario, client_weights=()), clients))


def test_weights_are_proportional_to_samples_unless_given(federation: Scenario) -> None:
    assert replace(federation, client_samples=(5, 2, 3)).weights == pytest.approx((0.5, 0.2, 0.3))
    assert replace(federation, client_weights=(1.0, 1.0, 2.0)).weights == pytest.approx((0.25, 0.25, 0.5))


def test_clients_hold_different_pictures() -> None:
    scenario = Scenario(data="photos", image_size=8, num_samples=2, clients=4, batches=1)
    clients = scenario.draw_all(0)
    labels = torch.cat([client.labels for client in clients])  # each photo is a class of its own
    assert sorted(labels.tolist()) == list(range(8))
    assert torch.equal(scenario.draw(0).images, clients[0].images)


def test_clients_may_hold_different_numbers_of_samples(federation: Scenario) -> None:
    clients = replace(federation, client_samples=(5, 2, 3)).draw_all(0)
    assert [len(client) for client in clients] == [5, 2, 3]


def test_equal_seeds_give_equal_bits(federation: Scenario) -> None:
    first, second = (disclose(federation.draw(4), federation, seed=4) for _ in range(2))
    assert same(first.initial, second.initial)
    assert same(first.received, second.received)


def test_different_seeds_give_other_data_models_and_shuffles(scenario: Scenario) -> None:
    private = scenario.draw(0)
    assert not torch.equal(private.images, scenario.draw(1).images)
    first, (one,) = disclose_with_secrets(private, replace(scenario, epochs=5), seed=0)
    second, (two,) = disclose_with_secrets(private, replace(scenario, epochs=5), seed=1)
    assert not same(first.initial, second.initial)
    assert any(not torch.equal(a, b) for a, b in zip(one.orders, two.orders, strict=True))


def test_the_observation_is_detached_from_the_private_data(scenario: Scenario, private: Private) -> None:
    observation, (run,) = disclose_with_secrets(private, scenario)
    received = {name: tensor.clone() for name, tensor in observation.received.items()}
    private.images.zero_()
    private.labels.zero_()
    for tensor in run.state.values():
        tensor.zero_()
    assert same(received, observation.received)
    assert observation.labels is not None
    assert observation.labels.any()
    assert not any(tensor.requires_grad for tensor in (*observation.initial.values(), *observation.received.values()))


def test_labels_are_withheld_unless_granted(scenario: Scenario, private: Private) -> None:
    assert disclose(private, replace(scenario, grant_labels=False)).labels is None


def test_disclosed_labels_do_not_tell_the_order_of_the_data(scenario: Scenario, private: Private) -> None:
    backwards = Private(images=private.images.flip(0), labels=private.labels.flip(0))
    labels = disclose(private, scenario).labels
    other = disclose(backwards, scenario).labels
    assert labels is not None
    assert other is not None
    assert torch.equal(labels, other)
    assert torch.equal(labels, private.labels.sort().values)


def test_the_global_random_state_is_left_alone(federation: Scenario) -> None:
    before = torch.get_rng_state()
    disclose(federation.draw(0), federation)
    assert torch.equal(before, torch.get_rng_state())


def test_the_global_random_state_has_no_influence(federation: Scenario) -> None:
    private = federation.draw(0)
    first = disclose(private, federation)
    with torch.random.fork_rng():
        torch.manual_seed(123)
        second = disclose(private, federation)
    assert same(first.received, second.received)


def dropping_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10))


def test_a_client_with_dropout_is_reproducible_and_drops_in_train_mode_only(private: Private) -> None:
    scenario = Scenario(data="digits", num_samples=5, model=f"{__name__}:dropping_net", epochs=1, batches=1)
    first, second = disclose(private, scenario), disclose(private, scenario)
    assert same(first.received, second.received)
    still = disclose(private, replace(scenario, norm_mode="eval"))
    assert same(first.initial, still.initial)
    assert not same(first.received, still.received)


@pytest.mark.parametrize(
    ("key", "settings"),
    [
        ("epochs", {"epochs": 0}),
        ("batches", {"batches": 0}),
        ("batches", {"num_samples": 3, "batches": 4}),
        ("num_samples", {"num_samples": 0}),
        ("learning_rate", {"learning_rate": -1.0}),
        ("loss", {"loss": "hinge"}),
        ("norm_mode", {"norm_mode": "frozen"}),
        ("rounds", {"rounds": -1}),
        ("clients", {"clients": 0}),
        ("participants", {"participants": 0}),
        ("participants", {"clients": 2, "participants": 3}),
        ("image_size", {"image_size": 0}),
        ("client_samples", {"clients": 2, "client_samples": (8,)}),
        ("client_samples", {"clients": 2, "client_samples": (7, 8)}),
        ("batches", {"clients": 2, "client_samples": (8, 3)}),
        ("client_weights", {"clients": 2, "client_weights": (1.0,)}),
        ("client_weights", {"clients": 2, "client_weights": (1.0, -1.0)}),
        ("client_weights", {"clients": 2, "client_weights": (0.0, 0.0)}),
        ("client_weights", {"clients": 2, "client_weights": (float("nan"), 1.0)}),
        ("client_weights", {"clients": 2, "client_weights": (float("inf"), 1.0)}),
    ],
)
def test_a_bad_scenario_is_an_error_that_names_the_key(key: str, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=key):
        Scenario(**settings)


def test_an_unknown_model_is_an_error(private: Private, scenario: Scenario) -> None:
    with pytest.raises(ConfigError, match="no_such_net"):
        disclose(private, replace(scenario, model="no_such_net"))


def test_more_pictures_than_the_source_has_are_a_data_error() -> None:
    with pytest.raises(DataError, match="8 pictures"):
        Scenario(data="photos", num_samples=9).draw(0)
    with pytest.raises(DataError, match="8 pictures"):
        Scenario(data="photos", num_samples=4, clients=3).draw_all(0)


def test_data_that_do_not_fit_the_scenario_are_a_data_error(private: Private, scenario: Scenario) -> None:
    with pytest.raises(DataError, match="have 6 images, but 5"):
        disclose(private, replace(scenario, num_samples=6))


def test_a_mini_batch_too_small_for_batch_norm_is_explained() -> None:
    scenario = Scenario(
        data="digits", image_size=4, num_samples=2, model="convnet", model_arguments={"width": 4}, batches=2
    )
    with pytest.raises(ConfigError, match="norm_mode = 'eval'"):
        disclose(scenario.draw(0), scenario)


@pytest.mark.parametrize("images", [torch.zeros(2, 1, 8), torch.zeros(3, 1, 8, 8)])
def test_private_data_of_odd_shapes_are_an_error(images: Tensor) -> None:
    with pytest.raises(UndeltaError, match="expected images"):
        Private(images=images, labels=torch.zeros(2, dtype=torch.int64))


def test_an_aggregate_is_the_weighted_average_of_its_clients(scenario: Scenario) -> None:
    several = replace(
        scenario, clients=3, aggregate=2, client_samples=(scenario.num_samples, scenario.num_samples + 2, 4)
    )
    private = several.draw(0)
    assert len(private) == 2 * scenario.num_samples + 2
    observation, runs = disclose_with_secrets(private, several)
    rho = [len(run.orders[0]) / len(private) for run in runs]
    for name, value in observation.received.items():
        if value.is_floating_point():
            torch.testing.assert_close(value, rho[0] * runs[0].state[name] + rho[1] * runs[1].state[name])
    assert observation.num_samples == len(private)
    assert observation.labels is not None
    assert torch.equal(observation.labels, private.labels.sort().values)
    assert not torch.equal(runs[0].orders[0], runs[1].orders[0][: scenario.num_samples])


def test_more_clients_than_there_are_cannot_be_aggregated(scenario: Scenario) -> None:
    with pytest.raises(ConfigError, match="aggregate <= clients=2"):
        replace(scenario, clients=2, aggregate=3)
