"""A site's training with NVFlare's client API: nothing here knows of undelta's filters."""

from __future__ import annotations

import nvflare.client as flare
import torch
from site_data import BATCH_SIZE, EPOCHS, IMAGE, LEARNING_RATE, SmallCNN, photographs
from torch import nn


def main() -> None:
    """Train in every round that the server asks for."""
    flare.init()
    private = photographs(int(flare.get_site_name().rpartition("-")[2]) - 1)
    inputs, model = IMAGE.normalize(private.images), SmallCNN()
    while flare.is_running():
        received = flare.receive()
        model.load_state_dict(received.params)
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        generator = torch.Generator().manual_seed(received.current_round or 0)
        for _ in range(EPOCHS):
            for batch in torch.randperm(len(inputs), generator=generator).split(BATCH_SIZE):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(inputs[batch]), private.labels[batch]).backward()
                optimizer.step()
        flare.send(flare.FLModel(params=model.state_dict(), meta={"num_samples": len(inputs)}))


if __name__ == "__main__":
    main()
