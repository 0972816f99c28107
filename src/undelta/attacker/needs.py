"""What an attack holds at least, reckoned before anything is made: a file of a few bytes may claim any epochs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from undelta.attacker.labels import joint
from undelta.attacker.replay import Held
from undelta.engine.devices import memory_left
from undelta.errors import ConfigError
from undelta.observation import Observation

if TYPE_CHECKING:  # it checks itself with what is here
    from undelta.attacker.objective import Objective

KEPT = 5  # of everything that moves: its value, its gradient, Adam's two moments, the value before
STEP_BYTES = 500  # of a step's own bookkeeping
GB = 10**9


def check_room(parts: Objective, observation: Observation, memory: int) -> None:
    """Refuse an attack that needs more memory than there is, and than the user allows; says how much and for what."""
    needs = reckon(parts, observation)
    limit = max(memory, memory_left(observation.device))
    if (total := sum(needs.values())) > limit:
        most = [f"{size / GB:,.1f} GB for {what}" for what, size in sorted(needs.items(), key=lambda need: -need[1])]
        raise ConfigError(
            f"this attack would hold {total / GB:,.1f} GB or more ({', '.join(most[:2])}), but {limit / GB:,.1f} GB "
            f"are left here. The update says num_samples={observation.num_samples}, "
            f"epochs={observation.training.epochs}, batches={observation.training.batches}. If that is true, use an "
            "attack that holds less (awa, sme), or a larger machine, or raise --memory"
        )


def reckon(parts: Objective, observation: Observation) -> dict[str, int]:
    """Bytes by what takes them, at least."""
    size = observation.dtype.itemsize
    image = math.prod(observation.image.shape) * size
    copies = observation.epochs if getattr(parts.canvas, "per_epoch", False) else 1
    count = observation.num_samples * copies
    held = getattr(parts.replay, "held", None)
    through, steps, points = held(observation) if held else Held(images=count)
    soft = getattr(parts, "labels", None) is joint
    copy = sum(tensor.numel() * tensor.element_size() for tensor in observation.initial.values())
    return {
        f"{count:,} dummy images": KEPT * count * image,
        f"{through:,} images on their way through {steps:,} steps": 2 * through * image + STEP_BYTES * steps,
        f"{count:,} labels": KEPT * count * observation.image.classes * size if soft else 8 * count,
        f"{points:,} copies of the model": points * copy * len(observation.rounds),
    }
