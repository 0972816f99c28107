"""The clients: each trains on its own photographs, and keeps a record of what it gave away."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from photo_federation.task import IMAGE, MODEL, OUT, load_photos, shuffles, small_cnn
from photo_federation.task import train as train_locally
from undelta.client.private import Private
from undelta.integrations.flower import RecordOwn


def own_photos(context: Context) -> Private:
    """What the client trains on, for its own audit; it is written on the client and never sent."""
    return load_photos(int(context.node_config["partition-id"]))


app = ClientApp(mods=[RecordOwn(into=OUT / "clients", model=MODEL, image=IMAGE, truth=own_photos)])


@app.train()
def train(message: Message, context: Context) -> Message:
    """One round of local training."""
    partition, config = int(context.node_config["partition-id"]), message.content.config_records["config"]
    private, model = load_photos(partition), small_cnn()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    loss = train_locally(
        model,
        IMAGE.normalize(private.images),
        private.labels,
        epochs=int(config["local-epochs"]),  # type: ignore[arg-type]
        size=int(config["batch-size"]),  # type: ignore[arg-type]
        rate=float(config["learning-rate"]),  # type: ignore[arg-type]
        momentum=float(config["momentum"]),  # type: ignore[arg-type]
        names=shuffles(partition, int(config["server-round"])),  # type: ignore[arg-type]
    )
    metrics = MetricRecord({"num-examples": len(private), "loss": loss, "partition": partition})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """The accuracy on the client's own photographs."""
    private, model = own_photos(context), small_cnn()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    with torch.no_grad():
        right = model.eval()(IMAGE.normalize(private.images)).argmax(1) == private.labels
    metrics = MetricRecord({"num-examples": len(private), "accuracy": float(right.float().mean())})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
