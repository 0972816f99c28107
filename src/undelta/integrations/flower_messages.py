"""What a Flower message says: its arrays, its configuration, how many images a client trained on."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from undelta.errors import ConfigError

if TYPE_CHECKING:
    from flwr.app import Array, RecordDict

LOG = logging.getLogger("flwr.undelta")  # below Flower's own, so that it is shown where Flower's is
SAMPLES = "num-examples"
"""The metric in which clients report how many images they trained on."""


class Sent:
    """What one client was sent: the arrays as they were then, and its configuration."""

    def __init__(self, content: RecordDict) -> None:
        self.arrays = arrays_of(content, "the message")
        # Copied: strategies write the next round into the same record.
        self.config: dict[str, Any] = {
            key: value for config in content.config_records.values() for key, value in config.items()
        }

    @property
    def round(self) -> int:
        """Strategies of the message API write it into the config."""
        number = self.config.get("server-round", 0)
        return number if isinstance(number, int) else 0


def count_of(content: RecordDict, samples: str) -> int:
    """How many images the client says it trained on."""
    metrics = {key: value for record in content.metric_records.values() for key, value in record.items()}
    count = metrics.get(samples)
    if not isinstance(count, int | float) or not math.isfinite(count) or count < 1 or count != int(count):
        raise ConfigError(
            f"expected the metric {samples!r} in the client's reply, a whole number, got {count!r} "
            f"(its metrics are {', '.join(sorted(metrics)) or 'none'})"
        )
    return int(count)


def arrays_of(content: RecordDict, where: str) -> dict[str, Array]:
    """The arrays of a message that carries one record of them."""
    records = content.array_records
    if len(records) != 1 and "arrays" not in records:
        names = ", ".join(sorted(records)) or "none"
        raise ConfigError(f"expected one record of arrays in {where}, or one called 'arrays', got {names}")
    return dict(records["arrays"] if "arrays" in records else next(iter(records.values())))


def tensors_of(arrays: Mapping[str, Array]) -> dict[str, Tensor]:
    """The arrays as tensors."""
    return {name: torch.from_numpy(array.numpy()) for name, array in arrays.items()}
