"""A federation in one process: real strategies, messages and client apps, without Flower's servers between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from flwr.supercore.task_identity import TaskIdentity
from torch import nn

from undelta.models import build
from undelta.observation import ImageSpec

IMAGE = ImageSpec(shape=(1, 4, 4), mean=(0.5,), std=(0.25,), classes=3)
ARGUMENTS = {"hidden": [5]}
SETTINGS = {"local-epochs": 2, "batch-size": 2, "lr": 0.1}
NODES = (11, 22)
SAMPLES = 4
TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1  # as Flower's runtimes set them


def new_model() -> nn.Module:
    torch.manual_seed(0)
    return build("mlp", ARGUMENTS, shape=IMAGE.shape, classes=IMAGE.classes)


def private_images(node: int) -> torch.Tensor:
    return torch.rand(SAMPLES, *IMAGE.shape, generator=torch.Generator().manual_seed(node))


def answer(message: Message, arrays: ArrayRecord, **metrics: float) -> Message:
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": SAMPLES, **metrics})})
    return Message(content, reply_to=message)


def train(message: Message, context: Context) -> Message:
    """SGD on the node's own images, whose classes go round."""
    model = new_model()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images, labels = private_images(context.node_id), torch.arange(SAMPLES) % IMAGE.classes
    for _ in range(2):
        for batch in (slice(0, 2), slice(2, 4)):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(IMAGE.normalize(images[batch])), labels[batch]).backward()
            optimizer.step()
    return answer(message, ArrayRecord(model.state_dict()))


def client_app(function: Callable[[Message, Context], Message] = train, mods: Iterable[Any] = ()) -> ClientApp:
    app = ClientApp(mods=list(mods))
    app.train()(function)
    app.evaluate()(lambda message, context: answer(message, ArrayRecord(), weight=1.0))
    return app


class DirectGrid(Grid):
    """Hands each message to the client app at once."""

    def __init__(self, app: ClientApp) -> None:
        self.app = app

    def get_node_ids(self) -> Iterable[int]:
        return list(NODES)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return [self._deliver(message) for message in messages]

    def _deliver(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        # Serialized, as on the way to another process: what the client does to its message is its own affair.
        content = RecordDict(
            {
                **{key: ArrayRecord(dict(record)) for key, record in message.content.array_records.items()},
                **{key: ConfigRecord(dict(record)) for key, record in message.content.config_records.items()},
            }
        )
        delivered = Message(content, node, message.metadata.message_type)
        context = Context(run_id=1, node_id=node, node_config={}, state=RecordDict(), run_config={})
        return self.app(delivered, context)

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *words: Any, **options: Any) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError


def federate(
    strategy: Strategy, app: ClientApp | None = None, *, rounds: int = 2, config: Any = SETTINGS
) -> dict[str, Any]:
    """Run a strategy; returns the arrays it ends with."""
    result = strategy.start(
        grid=DirectGrid(app or client_app()),
        initial_arrays=ArrayRecord(new_model().state_dict()),
        num_rounds=rounds,
        train_config=ConfigRecord(dict(config)),
    )
    return result.arrays.to_torch_state_dict()
