"""A client's guard in Flower: what reveals too much or cannot be measured stays, and the rest goes as it is."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.server.strategy import FedAvg as OldFedAvg
from flwr.serverapp.strategy import FedAvg

from undelta.attacker.reconstruction import Reconstruction
from undelta.client.private import Private
from undelta.errors import ConfigError
from undelta.integrations.flower import GuardOwn, record
from undelta.integrations.flower_guard import REFUSED
from undelta.integrations.guard import WITHHELD
from undelta.observation import Observation
from undelta.trials.config import make_attack

from .federations import ARGUMENTS, IMAGE, DirectGrid, answer, client_app, federate, new_model, private_images
from .federations import train as train_on_four

HOW: dict[str, Any] = {"model": "mlp", "model_arguments": ARGUMENTS, "image": IMAGE}
ANALYTIC: dict[str, Any] = {"attack": "analytic", "arguments": {}}
CONFIG = {"local-epochs": 1, "batch-size": 1, "lr": 0.1}


def train(message: Message, context: Context) -> Message:
    """One step on one image, of which the closed form reveals every pixel."""
    model = new_model()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    image = IMAGE.normalize(private_images(context.node_id)[:1])
    torch.nn.functional.cross_entropy(model(image), torch.tensor([1])).backward()
    state = {name: value.detach() - 0.1 * value.grad for name, value in model.named_parameters()}  # type: ignore[operator]
    return answer(message, ArrayRecord(state), **{"num-examples": 1})


def truth(context: Context) -> Private:
    return Private(images=private_images(context.node_id)[:1], labels=torch.tensor([1]))


def zeroed(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """A defense: noise that drowns the update."""
    reply = call_next(message, context)
    state = reply.content.array_records["arrays"].to_torch_state_dict()
    generator = torch.Generator().manual_seed(0)
    noisy = {name: value + torch.randn(value.shape, generator=generator) for name, value in state.items()}
    return answer(message, ArrayRecord(noisy), **{"num-examples": 1})


def replies_of(app: Any, *, rounds: int = 1) -> list[Message]:
    """What leaves the clients in a federation that accepts failures."""
    replies: list[Message] = []

    class Watching(FedAvg):
        def aggregate_train(self, server_round: int, messages: Any) -> Any:
            replies.extend(messages)
            return super().aggregate_train(server_round, [reply for reply in replies if not reply.has_error()])

    federate(Watching(), app, rounds=rounds, config=CONFIG)
    return sorted(replies, key=lambda reply: reply.metadata.src_node_id)  # Flower draws their order


def refused(replies: list[Message]) -> bool:
    assert replies
    blocked = [reply.has_error() for reply in replies]
    assert len(set(blocked)) == 1
    for reply in replies if blocked[0] else ():
        assert (reply.error.code, reply.error.reason) == (REFUSED, WITHHELD)
        assert not reply.has_content()
    return blocked[0]


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    caplog.set_level(logging.INFO, logger="flwr.undelta")
    return lambda: "\n".join(line.getMessage() for line in caplog.records if line.name == "flwr.undelta")


BOUNDS: dict[str, dict[str, Any]] = {
    "bounds": {"truth": truth, "fail_above": {"psnr": 30.0}},
    "recognizable images": {"truth": truth},
    "an explained update, without the truth": {},
}


@pytest.mark.parametrize("bounds", BOUNDS.values(), ids=BOUNDS.keys())
def test_an_update_that_reveals_its_image_stays_and_a_drowned_one_goes(
    bounds: dict[str, Any], said: Callable[[], str]
) -> None:
    guard = GuardOwn(**HOW, **ANALYTIC, **bounds)
    assert refused(replies_of(client_app(train, [guard])))
    assert "stays here" in said()
    replies = replies_of(client_app(train, [guard, zeroed]))
    assert not refused(replies)
    assert "train of node 11 is sent" in said()
    # As the rest of the app made it, to the last bit.
    plain = replies_of(client_app(train, [zeroed]))
    for one, other in zip(plain, replies, strict=True):
        states = [reply.content.array_records["arrays"].to_torch_state_dict() for reply in (one, other)]
        assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_an_update_stays_on_which_the_attack_did_not_end(
    monkeypatch: pytest.MonkeyPatch, said: Callable[[], str]
) -> None:
    guard = GuardOwn(**HOW, **ANALYTIC, truth=truth)
    assert not refused(replies_of(client_app(train, [guard, zeroed])))
    attack = make_attack("analytic", {})

    def astray(observation: Observation, *, seed: int) -> Reconstruction:
        return replace(attack(observation, seed=seed), status="diverged")

    monkeypatch.setattr("undelta.integrations.guard.make_attack", lambda name, arguments: astray)
    assert refused(replies_of(client_app(train, [guard, zeroed])))
    assert "the attack ended as diverged" in said()


def broken(context: Context) -> Private:
    raise OSError("the disk is gone")


def in_two_records(message: Message, context: Context) -> Message:
    reply = train(message, context)
    reply.content["more"] = ArrayRecord({"image": torch.zeros(3)})
    return reply


def in_metrics(message: Message, context: Context) -> Message:
    reply = train(message, context)
    reply.content["more"] = MetricRecord({"losses": [0.5] * 200})
    return reply


def in_words(message: Message, context: Context) -> Message:
    reply = train(message, context)
    reply.content["more"] = ConfigRecord({"picture": bytes(5000)})
    return reply


def nameless(message: Message, context: Context) -> Message:
    content = train(message, context).content
    return Message(
        RecordDict({"arrays": content.array_records["arrays"], "metrics": MetricRecord({"n": 1})}), reply_to=message
    )


def diverged(message: Message, context: Context) -> Message:
    state = train(message, context).content.array_records["arrays"].to_torch_state_dict()
    return answer(message, ArrayRecord({name: value * torch.nan for name, value in state.items()}))


DOUBTS: dict[str, tuple[dict[str, Any], Callable[[Message, Context], Message], str]] = {
    "a truth that cannot be read": ({"truth": broken}, train, "the disk is gone"),
    "another model": ({"model_arguments": {"hidden": [6]}}, train, "expected shape (6, 16)"),
    "a model that is not there": ({"model": "absent_package:model"}, train, "cannot import the model"),
    "arrays beside those that are measured": ({}, in_two_records, "expected one record of arrays"),
    "an image in metrics": ({}, in_metrics, "a few numbers and words"),
    "an image in bytes": ({}, in_words, "a few numbers and words"),
    "no number of samples": ({}, nameless, "expected the metric 'num-examples'"),
    "a diverged client": ({}, diverged, "NaN or infinite"),
    "an attack that does not apply": ({"attack": "gradinversion"}, train_on_four, "Yin's rule"),
}


@pytest.mark.parametrize(("changes", "client", "reason"), DOUBTS.values(), ids=DOUBTS.keys())
def test_what_cannot_be_measured_stays(
    changes: dict[str, Any],
    client: Callable[[Message, Context], Message],
    reason: str,
    said: Callable[[], str],
) -> None:
    guard = GuardOwn(**{**HOW, **ANALYTIC, **changes})
    assert refused(replies_of(client_app(client, [guard, zeroed] if client is train else [guard])))
    assert "stays here, since it could not be measured" in said()
    assert reason in said()


def test_arrays_in_other_replies_stay_and_metrics_pass(said: Callable[[], str]) -> None:
    app = client_app(train, [GuardOwn(**HOW, **ANALYTIC)])
    context = Context(run_id=1, node_id=11, node_config={}, state=RecordDict(), run_config={})
    question = Message(RecordDict({"arrays": ArrayRecord(new_model().state_dict())}), 11, "evaluate")
    assert not app(question, context).has_error()  # its record of arrays is empty
    app = client_app(mods=[GuardOwn(**HOW, **ANALYTIC)])
    app.query()(lambda message, context: answer(message, ArrayRecord(new_model().state_dict())))
    assert app(Message(RecordDict(), 11, "query"), context).error.code == REFUSED
    assert "arrays in replies to train messages only" in said()


def test_an_apps_own_errors_pass_through() -> None:
    def failing(message: Message, context: Context) -> Message:
        raise RuntimeError("no memory left")

    with pytest.raises(RuntimeError, match="no memory left"):
        DirectGrid(client_app(failing, [GuardOwn(**HOW)])).send_and_receive(
            [Message(RecordDict({"arrays": ArrayRecord(new_model().state_dict())}), 11, "train")]
        )


def test_a_guard_that_could_not_guard_is_refused_at_once() -> None:
    for settings, message in (
        ({"fail_above": {"psnr": 30}}, "expected truth beside fail_above"),
        ({"truth": truth, "fail_above": {"ssim": 50}}, "which nothing could fail"),
        ({"attack": "strogest"}, "did you mean 'strongest'"),
        ({"image": {"shape": (1, 4, 4)}}, "image"),
    ):
        with pytest.raises(ConfigError, match=message):
            GuardOwn(**{**HOW, **settings})


def test_a_strategy_of_the_old_interface_is_told_where_the_new_one_is(tmp_path: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"got flwr\.server\.strategy\.fedavg\.FedAvg.*import the strategy from there"
    ):
        record(OldFedAvg(), into=tmp_path, **HOW)  # type: ignore[type-var]
