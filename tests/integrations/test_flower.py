"""Recording Flower updates: what is written is what was sent and received, and training never notices."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.app.error import Error
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAdam, FedAvg, FedProx, Strategy
from safetensors.torch import load_file

from undelta.attacker.attacks import strongest
from undelta.client.local import train as simulate
from undelta.client.private import Private, load_private
from undelta.evaluation.score import score
from undelta.integrations.flower import RecordOwn, record
from undelta.models import build
from undelta.observation.file import digest_of, load_observation
from undelta.seeding import stream
from undelta.studies.single import attack_job

from .federations import (
    ARGUMENTS,
    IMAGE,
    NODES,
    SAMPLES,
    SETTINGS,
    DirectGrid,
    answer,
    client_app,
    federate,
    new_model,
    private_images,
    train,
)

HOW: dict[str, Any] = {"model": "mlp", "model_arguments": ARGUMENTS, "image": IMAGE}
STRATEGIES: dict[str, Callable[[], Strategy]] = {
    "FedAvg": FedAvg,
    "FedAdam": lambda: FedAdam(eta=0.01),
    "FedProx": lambda: FedProx(proximal_mu=0.1),
    "central DP": lambda: DifferentialPrivacyServerSideFixedClipping(FedAvg(), 0.0, 1e-3, len(NODES)),
}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line.getMessage() for line in caplog.records if line.name == "flwr.undelta"]


def same(left: dict[str, Any], right: dict[str, Any]) -> bool:
    """Bit by bit, where NaN equals NaN."""
    return left.keys() == right.keys() and all(
        np.array_equal(left[name].numpy(), right[name].numpy(), equal_nan=True) for name in left
    )


# What is written


@pytest.mark.parametrize("make", STRATEGIES.values(), ids=STRATEGIES.keys())
def test_any_strategy_is_recorded_and_ends_with_the_same_bits(
    tmp_path: Path, make: Callable[[], Strategy], caplog: pytest.LogCaptureFixture
) -> None:
    plain = federate(make())
    recorded = federate(record(make(), into=tmp_path, **HOW))
    assert same(plain, recorded)
    assert names(tmp_path) == sorted(f"round-{number}-node-{node}.safetensors" for number in (1, 2) for node in NODES)
    assert warnings_of(caplog) == []
    first = load_observation(tmp_path / "round-1-node-11.safetensors")
    assert (first.num_samples, first.training.epochs, first.training.batches) == (SAMPLES, 2, 2)
    assert first.training.learning_rate == 0.1
    assert first.labels is None
    assert same(dict(first.initial), dict(new_model().state_dict()))
    # Of the second round both nodes were sent the same, which is not what was sent in the first.
    second = [load_observation(tmp_path / f"round-2-node-{node}.safetensors") for node in NODES]
    assert same(dict(second[0].initial), dict(second[1].initial))
    assert not same(dict(second[0].initial), dict(first.initial))
    assert not same(dict(second[0].received), dict(second[1].received))


def test_what_the_client_sent_is_recorded_before_the_strategy_clips_it(tmp_path: Path) -> None:
    federate(record(FedAvg(), into=tmp_path / "plain", **HOW), rounds=1)
    federate(record(STRATEGIES["central DP"](), into=tmp_path / "clipped", **HOW), rounds=1)
    for name in names(tmp_path / "plain"):
        digests = [digest_of(load_observation(tmp_path / side / name)) for side in ("plain", "clipped")]
        assert digests[0] == digests[1]


def test_the_strategy_remains_what_it_was(tmp_path: Path) -> None:
    strategy = FedProx(proximal_mu=0.5, fraction_train=0.75)
    recorded = record(strategy, into=tmp_path, **HOW)
    assert recorded is strategy
    assert type(recorded) is FedProx
    assert (recorded.proximal_mu, recorded.fraction_train) == (0.5, 0.75)
    recorded.proximal_mu = 0.25
    config = ConfigRecord(dict(SETTINGS))
    messages = list(
        recorded.configure_train(server_round=3, arrays=ArrayRecord(), config=config, grid=DirectGrid(client_app()))
    )
    assert len(messages) == len(NODES)
    assert messages[0].content.config_records["config"]["proximal-mu"] == 0.25
    assert messages[0].content.config_records["config"]["server-round"] == 3


class Lazy(FedAvg):
    """A strategy that uses what the interface allows: iterables that can be read once."""

    def configure_train(self, *words: Any, **options: Any) -> Iterable[Message]:
        yield from super().configure_train(*words, **options)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        self.seen = list(replies)
        return super().aggregate_train(server_round, self.seen)


class LazyGrid(DirectGrid):
    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return (self._deliver(message) for message in messages)


def test_what_can_be_read_only_once_still_reaches_the_strategy(tmp_path: Path) -> None:
    strategy = record(Lazy(), into=tmp_path, **HOW)
    strategy.start(
        grid=LazyGrid(client_app()),
        initial_arrays=ArrayRecord(new_model().state_dict()),
        num_rounds=1,
        train_config=ConfigRecord(dict(SETTINGS)),
    )
    assert len(strategy.seen) == len(NODES)
    assert len(names(tmp_path)) == len(NODES)


def with_momentum(message: Message, context: Context) -> Message:
    """What a real client runs, its shuffles from a stream that others can repeat."""
    model, config = new_model(), message.content.config_records["config"]
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    images, labels = private_images(context.node_id), torch.arange(SAMPLES) % IMAGE.classes
    shuffles = stream("node", context.node_id, "shuffles")
    for _ in range(int(config["local-epochs"])):  # type: ignore[arg-type]
        for batch in torch.randperm(SAMPLES, generator=shuffles).split(3):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(IMAGE.normalize(images[batch])), labels[batch]).backward()
            optimizer.step()
    return answer(message, ArrayRecord(model.state_dict()))


def test_a_client_with_momentum_is_recorded_simulated_and_attacked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = {"local-epochs": 3, "batch-size": 3, "lr": 0.05, "momentum": 0.9, "weight-decay": 0.01}
    federate(record(FedAvg(), into=tmp_path, **HOW), client_app(with_momentum), rounds=1, config=config)
    assert warnings_of(caplog) == []
    observation = load_observation(tmp_path / "round-1-node-22.safetensors")
    assert observation.training.sizes(SAMPLES) == (3, 1)
    private = Private(images=private_images(22), labels=torch.arange(SAMPLES) % IMAGE.classes)
    simulated = simulate(new_model(), private, observation.training, IMAGE, seed=("node", 22))
    for name, value in observation.received.items():
        assert (value - simulated.state[name]).abs().max() < 1e-6
        assert (value - observation.initial[name]).abs().max() > 1e-3
    # Without the momentum that it had, it is another client.
    plain = replace(observation.training, momentum=0.0)
    other = simulate(new_model(), private, plain, IMAGE, seed=("node", 22)).state
    assert max(float((value - other[name]).abs().max()) for name, value in observation.received.items()) > 1e-2
    found = strongest(steps=60, rollout_steps=40)(replace(observation, labels=private.labels.sort().values))
    assert (score(found, private).psnr or 0) > 12  # noise is near 8 dB


def test_a_rival_attacks_a_recorded_file_with_the_labels_that_it_infers(tmp_path: Path) -> None:
    federate(record(FedAvg(), into=tmp_path, **HOW), rounds=1)
    path = tmp_path / "round-1-node-11.safetensors"
    done = attack_job(path, attack="sme", arguments={"steps": 2}, out=tmp_path / "run", seed=0)
    assert done.status == "completed"
    (found,) = (tmp_path / "run").glob("trials/*/reconstruction.safetensors")
    assert sorted(load_file(found)["labels"].tolist()) == [0, 0, 1, 2]  # of four images in three classes


def test_a_client_that_trains_otherwise_than_it_was_told_is_noticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = {"local-epochs": 3, "batch-size": 3, "lr": 0.05, "momentum": 0.9}
    federate(record(FedAvg(), into=tmp_path, **HOW), client_app(with_momentum), rounds=1, config=config)
    (warning,) = warnings_of(caplog)
    assert "does not look like sgd with these settings" in warning
    assert "weight_decay of about" in warning


def test_clients_and_rounds_are_chosen(tmp_path: Path) -> None:
    federate(record(FedAvg(), into=tmp_path, clients=[22], rounds=range(2, 4), **HOW), rounds=4)
    assert names(tmp_path) == ["round-2-node-22.safetensors", "round-3-node-22.safetensors"]


def test_the_run_config_counts_where_messages_say_nothing(tmp_path: Path) -> None:
    run_config = {"local-epochs": 7, "batch-size": 4, "learning-rate": 0.5, "num-server-rounds": 1}
    federate(record(FedAvg(), into=tmp_path, training=run_config, **HOW), rounds=1, config={"lr": 0.25, "batches": 2})
    training = load_observation(tmp_path / "round-1-node-11.safetensors").training
    assert (training.epochs, training.batches, training.learning_rate) == (7, 2, 0.25)


def test_arrays_without_names_are_recorded(tmp_path: Path) -> None:
    def listed(message: Message, context: Context) -> Message:
        arrays = message.content.array_records["arrays"].to_numpy_ndarrays()
        return answer(message, ArrayRecord([array + np.float32(0.01) for array in arrays]))

    strategy = record(FedAvg(), into=tmp_path, **HOW)
    strategy.start(
        grid=DirectGrid(client_app(listed)),
        initial_arrays=ArrayRecord([value.numpy() for value in new_model().state_dict().values()]),
        num_rounds=1,
        train_config=ConfigRecord(dict(SETTINGS)),
    )
    loaded = load_observation(tmp_path / "round-1-node-22.safetensors")
    assert same(dict(loaded.initial), dict(new_model().state_dict()))


def test_batchnorm_counters_survive_averaging(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    arguments = {"width": 2, "hidden": 3, "norm": "batch"}
    shape = {**vars(IMAGE), "shape": (1, 8, 8)}
    model = build("cnn", arguments, shape=(1, 8, 8), classes=3)

    def count(message: Message, context: Context) -> Message:
        state = message.content.array_records["arrays"].to_torch_state_dict()
        last = [name for name in state if name.startswith("fc2")]
        moved = {name: value + (0.01 if name.endswith(("weight", "bias")) else 4) for name, value in state.items()}
        rows = torch.tensor([0.01, -0.01, 0.0])  # sum to zero
        moved |= {name: state[name] + rows.view(-1, *[1] * (state[name].dim() - 1)) for name in last}
        return answer(message, ArrayRecord(moved))

    strategy = record(FedAvg(), into=tmp_path, model="cnn", model_arguments=arguments, image=shape)
    strategy.start(
        grid=DirectGrid(client_app(count)),
        initial_arrays=ArrayRecord(model.state_dict()),
        num_rounds=2,
        train_config=ConfigRecord(dict(SETTINGS)),
    )
    second = load_observation(tmp_path / "round-2-node-11.safetensors")
    assert int(second.initial["norm1.num_batches_tracked"]) == 4
    assert int(second.received["norm1.num_batches_tracked"]) == 8
    assert warnings_of(caplog) == []


# What goes wrong stays here


def without_samples(message: Message, context: Context) -> Message:
    reply = train(message, context)
    content = RecordDict({"arrays": reply.content.array_records["arrays"], "metrics": MetricRecord({"weight": 2.0})})
    return Message(content, reply_to=message)


def unchanged(message: Message, context: Context) -> Message:
    return answer(message, ArrayRecord(dict(message.content.array_records["arrays"])))


def not_finite(message: Message, context: Context) -> Message:
    state = train(message, context).content.array_records["arrays"].to_torch_state_dict()
    state["1.bias"][0] = torch.nan
    return answer(message, ArrayRecord(state))


def boasting(message: Message, context: Context) -> Message:
    return answer(message, train(message, context).content.array_records["arrays"], **{"num-examples": 10**10})


MISTAKES: dict[str, tuple[dict[str, Any], Callable[[Message, Context], Message], str]] = {
    "an unknown model": ({"model": "mlpp"}, train, "unknown model 'mlpp'"),
    "a model that is not there": ({"model": "absent_package:model"}, train, "cannot import the model"),
    "another model": ({"model_arguments": {"hidden": [6]}}, train, "what was sent, '1.weight': expected shape (6, 16)"),
    "another shape": ({"image": {**vars(IMAGE), "shape": (1, 5, 5)}}, train, "expected shape (5, 25), got (5, 16)"),
    "a misspelled field": ({"image": {**vars(IMAGE), "class": 3}}, train, "unknown key 'class'"),
    "a bound below one": ({"most": 0}, train, "most and most_bytes >= 1"),
    "a missing metric": ({}, without_samples, "expected the metric 'num-examples'"),
    "a boasting client": ({}, boasting, "expected num_samples <= 10,000,000"),
    "a lazy client": ({}, unchanged, "hold the same parameters"),
    "a diverged client": ({}, not_finite, "NaN or infinite"),
}


@pytest.mark.parametrize(("changes", "client", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_failure_is_one_warning_and_training_goes_on(
    tmp_path: Path,
    changes: dict[str, Any],
    client: Callable[[Message, Context], Message],
    message: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    weight = "weight" if client is without_samples else "num-examples"
    rounds = 1 if client is not_finite else 2  # after which the server's own arrays are another reason
    plain = federate(FedAvg(weighted_by_key=weight), client_app(client), rounds=rounds)
    caplog.clear()
    arguments = {"into": tmp_path / "seen", **HOW, **changes}
    strategy = record(FedAvg(weighted_by_key=weight), **arguments)
    recorded = federate(strategy, client_app(client), rounds=rounds)
    assert same(plain, recorded)
    said = warnings_of(caplog)
    assert len(said) == 1  # though it went wrong for two clients in two rounds
    assert message in said[0]
    assert "training continues" in said[0]
    assert not (tmp_path / "seen").exists() or names(tmp_path / "seen") == []


def test_a_folder_that_cannot_be_made_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("not a folder")
    federate(record(FedAvg(), into=tmp_path / "file" / "seen", **HOW))
    assert "cannot make the directory" in warnings_of(caplog)[0]
    assert len(warnings_of(caplog)) == 1


def test_a_folder_that_vanishes_during_the_run_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    strategy = record(FedAvg(), into=tmp_path / "seen", **HOW)
    (tmp_path / "seen").rmdir()
    assert same(federate(FedAvg()), federate(strategy))
    assert len(warnings_of(caplog)) == 1
    assert "cannot write" in warnings_of(caplog)[0]


def test_replies_that_are_errors_are_left_to_the_strategy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def failing(message: Message, context: Context) -> Message:
        return Message(Error(0, "out of order"), reply_to=message) if context.node_id == 11 else train(message, context)

    federate(record(FedAvg(), into=tmp_path, **HOW), client_app(failing), rounds=1)
    assert names(tmp_path) == ["round-1-node-22.safetensors"]
    assert warnings_of(caplog) == []


def test_notes_on_what_was_recorded_are_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    federate(record(FedAvg(), into=tmp_path, **HOW), config={"batch-size": 2})
    assert len(names(tmp_path)) == 4
    assert len(warnings_of(caplog)) == 1
    assert "no epochs and no learning_rate" in warnings_of(caplog)[0]


@pytest.mark.parametrize(
    ("bound", "expected"), [({"most": 3}, 3), ({"most_bytes": 8000}, 1), ({"most_bytes": 3000}, 0)]
)
def test_files_are_bounded_in_number_and_bytes(
    tmp_path: Path, bound: dict[str, Any], expected: int, caplog: pytest.LogCaptureFixture
) -> None:
    federate(record(FedAvg(), into=tmp_path, **HOW, **bound))
    assert len(names(tmp_path)) == expected
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= bound.get("most_bytes", 10**9)
    assert len(warnings_of(caplog)) == 1
    assert next(iter(bound)) in warnings_of(caplog)[0]
    before = names(tmp_path)
    federate(record(FedAvg(), into=tmp_path, **HOW, **bound), rounds=3)  # another run in the same folder
    assert names(tmp_path) == before


# A client's own audit


def truth(context: Context) -> Private:
    return Private(images=private_images(context.node_id), labels=torch.arange(SAMPLES) % IMAGE.classes)


def greedy(message: Message, context: Context) -> Message:
    """A client that takes the arrays out of its message to save memory."""
    state = message.content.array_records["arrays"].to_torch_state_dict(keep_input=False)
    return answer(message, ArrayRecord({name: value + 0.01 for name, value in state.items()}))


@pytest.mark.parametrize("function", [train, greedy])
def test_a_client_records_what_the_server_sees(tmp_path: Path, function: Callable[[Message, Context], Message]) -> None:
    own = RecordOwn(into=tmp_path / "own", **HOW, truth=truth)
    federate(record(FedAvg(), into=tmp_path / "server", **HOW), client_app(function, [own]))
    for path in (tmp_path / "server").iterdir():
        assert path.read_bytes() == (tmp_path / "own" / path.name).read_bytes()
        private, scenario, digest = load_private(tmp_path / "own" / f"truth-{path.name}")
        observation = load_observation(path)
        assert digest == digest_of(observation)
        assert torch.equal(private.images, private_images(int(path.stem.rpartition("-")[2])))
        assert scenario["num_samples"] == SAMPLES
    assert len(names(tmp_path / "own")) == 8


def half(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """A mod that changes what leaves the client."""
    state = call_next(message, context).content.array_records["arrays"].to_torch_state_dict()
    return answer(message, ArrayRecord({name: value / 2 for name, value in state.items()}))


def test_first_among_the_mods_a_client_records_what_the_others_let_out(tmp_path: Path) -> None:
    own = RecordOwn(into=tmp_path / "own", **HOW)
    federate(record(FedAvg(), into=tmp_path / "server", **HOW), client_app(mods=[own, half]), rounds=1)
    for path in (tmp_path / "server").iterdir():
        assert path.read_bytes() == (tmp_path / "own" / path.name).read_bytes()


def test_a_client_trains_as_before_whatever_becomes_of_its_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(context: Context) -> Private:
        raise RuntimeError("the disk is gone")

    (tmp_path / "file").write_text("")
    plain = federate(FedAvg())
    for into, data, message in (
        (tmp_path / "file" / "own", truth, "cannot make the directory"),
        (tmp_path / "own", broken, "the disk is gone"),
        (
            tmp_path / "own",
            lambda context: Private(images=torch.rand(3, 1, 4, 4), labels=torch.arange(3)),
            "of 4 images",
        ),
    ):
        caplog.clear()
        assert same(plain, federate(FedAvg(), client_app(mods=[RecordOwn(into=into, **HOW, truth=data)])))
        assert [message in line for line in warnings_of(caplog)] == [True]
    assert names(tmp_path / "own") == []


def test_a_client_chooses_rounds_and_keeps_to_its_bounds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    federate(FedAvg(), client_app(mods=[RecordOwn(into=tmp_path / "a", rounds=[2], **HOW)]), rounds=3)
    assert names(tmp_path / "a") == ["round-2-node-11.safetensors", "round-2-node-22.safetensors"]
    assert warnings_of(caplog) == []
    federate(FedAvg(), client_app(mods=[RecordOwn(into=tmp_path / "b", most=1, **HOW)]))
    assert len(names(tmp_path / "b")) == 1


def test_a_clients_errors_pass_through(tmp_path: Path) -> None:
    def failing(message: Message, context: Context) -> Message:
        raise RuntimeError("no memory left")

    app = client_app(failing, [RecordOwn(into=tmp_path, **HOW)])
    with pytest.raises(RuntimeError, match="no memory left"):
        federate(FedAvg(), app, rounds=1)
    assert names(tmp_path) == []
