"""The server: FedAvg, with one line that records what it sees of its clients."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from photo_federation.task import IMAGE, MODEL, OUT, small_cnn
from undelta.integrations.flower import record

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train the federation."""
    config = context.run_config
    told = ("local-epochs", "batch-size", "learning-rate", "momentum")
    torch.manual_seed(0)
    model = small_cnn()
    strategy = record(FedAvg(), into=OUT / "server", model=MODEL, image=IMAGE, training=config)
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(model.state_dict()),
        num_rounds=int(config["num-server-rounds"]),
        train_config=ConfigRecord({key: config[key] for key in told}),
    )
