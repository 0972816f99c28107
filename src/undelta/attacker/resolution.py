"""How finely a path must be replayed, asked of dummy images alone: which replay resolves it, and how long it is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from undelta.attacker.distances import mismatch
from undelta.attacker.pruned import sent_entries
from undelta.attacker.reconstruction import Reconstruction
from undelta.attacker.replays import CoarseRollout, ReplayPart, prepare
from undelta.engine import MEMORY
from undelta.observation import Observation
from undelta.seeding import stream
from undelta.updates import Update, inner

MACRO_STEPS = (5, 10, 20)
RESOLVED = 0.3  # of the mismatch so far: what a finer replay may change the simulated update by
AGREE = 0.1  # lengths of one path in few and in twice as many macro-steps, if they resolve it


def resolving(observation: Observation, guess: Reconstruction, replay: ReplayPart, memory: int = MEMORY) -> ReplayPart:
    """The cheapest replay, from the given one on, that resolves the path of these images: a finer one agrees.

    It agrees if it changes the simulated update by less than a share of what the images leave unexplained: while those
    are far from the truth, a rough replay is as good as a fine one, and cheaper; the closer they are, the finer it must
    be, or the attack fits the replay's own error.
    """

    def simulated(part: ReplayPart) -> Update:
        made = prepare(part, observation, stream("attacker", "resolving"), memory)
        return made(observation.image.normalize(guess.images), guess.labels).update

    most = observation.training.epochs * observation.training.batches
    parts = [replay, *_finer_than(replay, most)]
    updates = map(simulated, parts)  # lazily: the finest ones are seldom asked for
    for part, (rough, fine) in zip(parts[:-1], pairwise(updates), strict=True):
        if mismatch(rough, fine) <= RESOLVED * guess.mismatch:
            return part
    return parts[-1]


def _finer_than(replay: ReplayPart, most: int) -> Iterator[CoarseRollout]:
    """More and more macro-steps. Without mini-batches as many as epochs are exact (scenario 2), and more are wrong."""
    least = replay.steps if isinstance(replay, CoarseRollout) else 0
    for count in dict.fromkeys(min(count, most) for count in MACRO_STEPS):
        if count > least:
            yield CoarseRollout(steps=count)


def path_stretch(observation: Observation, guess: Reconstruction, memory: int = MEMORY) -> float:
    """How much longer the path of these dummy images is than the update that was sent, on the entries that were.

    One where a few macro-steps do not tell: they overshoot on a path that they do not resolve.
    """

    def length(count: int) -> float:
        replay = prepare(CoarseRollout(steps=count), observation, stream("attacker", "stretch"), memory)
        simulated = replay(observation.image.normalize(guess.images), guess.labels).update
        sent = sent_entries(replay.target)
        if sent:
            simulated = {name: value * sent[name] for name, value in simulated.items()}
        size = float(inner(replay.target, replay.target).sqrt())
        return float(inner(simulated, simulated).sqrt()) / size if size else 1.0

    most = observation.training.epochs * observation.training.batches
    coarse, fine = (length(min(count, most)) for count in MACRO_STEPS[:2])
    return fine if math.isfinite(fine) and abs(coarse - fine) <= AGREE * fine else 1.0
