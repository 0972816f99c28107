"""How well the last layer's inputs can be read off an update without any optimization, beside the true ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812

from undelta.attacker.features import last_inputs
from undelta.attacker.labels import last_layer
from undelta.client.private import Private
from undelta.errors import MissingKnowledge
from undelta.observation import Observation


@dataclass(frozen=True, kw_only=True)
class ReadOff:
    """The inputs of the last linear layer that were solved for, or why they cannot be."""

    cosines: tuple[float, ...] = ()
    """Of each image's found inputs with its true ones."""
    others: tuple[float, ...] = ()
    """Of each image's true inputs with the most similar of another image: to beat, for the above to mean anything."""
    width: int = 0
    """How many numbers the layer sees of an image."""
    reason: str | None = None

    @property
    def text(self) -> str:
        """What it says."""
        if self.reason:
            return f"The last layer's inputs cannot be read off: {self.reason}."
        beside = f"; those of other images, {max(self.others):.4f} or less" if self.others else ""
        return (
            f"Read off without optimization: the last layer's inputs, {self.width} numbers an image, have cosines of "
            f"{min(self.cosines):.4f} to {max(self.cosines):.4f} with the true ones{beside}."
        )


def read_off(observation: Observation, private: Private) -> ReadOff:
    """Solve for the inputs from the update alone, and compare."""
    try:
        found = last_inputs(observation)
    except MissingKnowledge as problem:
        return ReadOff(reason=str(problem).removesuffix("."))
    if not found.settled:
        return ReadOff(reason="the solution does not settle")
    images = observation.image.normalize(private.images.to(observation.device, observation.dtype))
    true = F.normalize(last_layer(observation).seen(found.place, images)[0].double().cpu(), dim=1)
    guessed = F.normalize(found.inputs[private.labels.argsort().argsort()], dim=1)
    between = (true @ true.T).fill_diagonal_(-torch.inf)
    return ReadOff(
        cosines=tuple((true * guessed).sum(1).tolist()),
        others=tuple(between.amax(1).tolist()) if len(true) > 1 else (),
        width=true.shape[1],
    )
