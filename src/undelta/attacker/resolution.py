"""How finely a path must be replayed, asked of dummy images alone: which replay resolves it, and how long it is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from undelta.attacker.distances import mismatch
from undelta.attacker.objective import Problem, decode
from undelta.attacker.pruned import sent_entries
from undelta.attacker.reconstruction import Reconstruction
from undelta.attacker.replay import ReplayPart, least_squares, prepare
from undelta.attacker.replays import CoarseRollout, OneStep, length_or_one
from undelta.engine import MEMORY
from undelta.errors import ConfigError, MissingKnowledge
from undelta.observation import Observation
from undelta.seeding import stream
from undelta.training import LocalTraining
from undelta.updates import Update, inner

MACRO_STEPS = (5, 10, 20)
RESOLVED = 0.3  # of the mismatch so far: what a finer replay may change the simulated update by
LEAST_LENGTH = 1e-9  # of a path that is looked for
AGREE = 0.1  # lengths of one path in few and in twice as many macro-steps, if they resolve it
OVERSHOT = 0.015  # of an update: what few and twice as many macro-steps disagree by, if they are too large
CONTRAST = 0.25  # a photograph's standard deviation around gray


def resolving(
    observation: Observation, guess: Reconstruction, replay: ReplayPart, memory: int = MEMORY, *, left: float = 1.0
) -> tuple[ReplayPart, ReplayPart]:
    """The cheapest replay, from the given one on, that resolves the path of these images: a finer one agrees.

    It agrees if it changes the simulated update by less than a share of what the images leave unexplained: while those
    are far from the truth, a rough replay is as good as a fine one, and cheaper; the closer they are, the finer it must
    be, or the attack fits the replay's own error. The second replay is the one needed once the mismatch has fallen to
    ``left`` times its present value.
    """
    most = observation.training.epochs * observation.training.batches
    parts = [replay, *_finer_than(replay, most)]
    # Lazily: the finest ones are seldom asked for.
    updates = (_simulated(observation, guess, part, memory)[0] for part in parts)
    now = None
    for part, (rough, fine) in zip(parts[:-1], pairwise(updates), strict=True):
        change = mismatch(rough, fine)
        if now is None and change <= RESOLVED * guess.mismatch:
            now = part
        if now is not None and change <= RESOLVED * guess.mismatch * left:
            return now, part
    return parts[-1] if now is None else now, parts[-1]


def _finer_than(replay: ReplayPart, most: int) -> Iterator[CoarseRollout]:
    """More and more macro-steps. Without mini-batches as many as epochs are exact (scenario 2), and more are wrong."""
    least = replay.steps if isinstance(replay, CoarseRollout) else 0
    for count in dict.fromkeys(min(count, most) for count in MACRO_STEPS):
        if count > least:
            yield CoarseRollout(steps=count)


def overshoots(observation: Observation, guess: Reconstruction, memory: int = MEMORY) -> bool:
    """Whether a few macro-steps are too large for a path so long: rollouts in so few lead away from the truth."""
    return not overshot(observation, guess, memory) <= OVERSHOT


def overshot(observation: Observation, guess: Reconstruction, memory: int = MEMORY) -> float:
    """By how much few and twice as many macro-steps disagree, of random images with a photograph's spectrum.

    Those that an attack has found so far are smooth, and their gradients so small that they do not tell; what they
    leave unexplained does not, either, since it may be noise. Only their labels matter here.
    """
    made = replace(guess, images=_like_photographs(observation, stream("attacker", "overshoots")))
    most = observation.training.epochs * observation.training.batches
    parts = [CoarseRollout(steps=min(count, most)) for count in MACRO_STEPS[:2]]
    few, more = (_simulated(observation, made, part, memory)[0] for part in parts)
    return mismatch(few, more)


def _like_photographs(observation: Observation, generator: torch.Generator) -> Tensor:
    """Noise whose amplitude falls with its frequency, of a photograph's contrast."""
    shape = (observation.num_samples, *observation.image.shape)
    rows, columns = (torch.fft.fftfreq(side) for side in shape[-2:])
    frequency = torch.hypot(rows[:, None], columns)
    frequency[0, 0] = 1.0
    waves = torch.fft.fft2(torch.randn(shape, generator=generator)) / frequency
    waves[..., 0, 0] = 0.0
    noise: Tensor = torch.fft.ifft2(waves).real
    noise = noise / noise.std((1, 2, 3), correction=0, keepdim=True).clamp(min=1e-6)
    return (0.5 + CONTRAST * noise).clamp(0, 1).to(observation.device, observation.dtype)


def supposed(observation: Observation, guess: Reconstruction, memory: int = MEMORY) -> Observation:
    """The observation with the length η·E·B that its update and these dummy images make likely, in full-batch SGD.

    It is the length that a rollout has learned, or else that of their mean gradient at the midpoint.
    """
    if "log_length" in guess.learned:
        length = math.exp(guess.learned["log_length"])
    else:
        simulated, target = _simulated(observation, guess, OneStep(position=0.5), memory)
        length = max(least_squares(simulated, target) * length_or_one(observation), LEAST_LENGTH)
    training = observation.training
    plain = LocalTraining(
        epochs=MACRO_STEPS[-1],
        batches=1,
        learning_rate=length / MACRO_STEPS[-1],
        **{key: getattr(training, key) for key in ("loss", "norm_mode", "label_smoothing", "trained")},
    )
    return replace(observation, training=plain, unknown=(), further=())


def path_stretch(observation: Observation, guess: Reconstruction, memory: int = MEMORY) -> float:
    """How much longer the path of these dummy images is than the update that was sent, on the entries that were.

    One where a few macro-steps do not tell: they overshoot on a path that they do not resolve.
    """

    def length(count: int) -> float:
        simulated, target = _simulated(observation, guess, CoarseRollout(steps=count), memory)
        sent = sent_entries(target)
        if sent:
            simulated = {name: value * sent[name] for name, value in simulated.items()}
        size = float(inner(target, target).sqrt())
        return float(inner(simulated, simulated).sqrt()) / size if size else 1.0

    most = observation.training.epochs * observation.training.batches
    coarse, fine = (length(min(count, most)) for count in MACRO_STEPS[:2])
    return fine if math.isfinite(fine) and abs(coarse - fine) <= AGREE * fine else 1.0


def _simulated(observation: Observation, guess: Reconstruction, part: ReplayPart, memory: int) -> tuple[Update, Update]:
    """The dummy update of these images, and its target."""
    replay = prepare(part, observation, stream("attacker", "resolving"), memory)
    return replay(observation.image.normalize(guess.images), guess.labels).update, replay.target


class Fit(NamedTuple):
    """What dummy images say of the replay that found them, and of the training that was declared; None: nothing."""

    resolution: float | None
    """The mismatch between that replay and a finer one, on these images: no smaller mismatch means anything."""
    stretch: float | None
    """How much longer these images' path is than the update."""


UNKNOWN = Fit(None, None)


def fit_of(reconstruction: Reconstruction, observation: Observation, memory: int = MEMORY) -> Fit:
    """Roll out the path of the images that an attack found, and compare; nothing where that does not resolve it."""
    if reconstruction.objective is None or observation.unknown or reconstruction.status != "completed":
        return UNKNOWN
    most = observation.training.epochs * observation.training.batches
    images, labels = observation.image.normalize(reconstruction.images), reconstruction.labels
    try:
        problem = Problem(decode(reconstruction.objective), observation, stream("attacker", "fit"), memory=memory)
        _, own = problem.pictured(reconstruction.images, labels, reconstruction.learned)
        parts = [CoarseRollout(steps=min(count, most)) for count in MACRO_STEPS[1:]]
        replays = [prepare(part, observation, stream("attacker", "fit"), memory) for part in parts]
        first, *_ = problem.rounds
        coarse, fine = (first.matched(replay(images, labels).update) for replay in replays)
    except (ConfigError, MissingKnowledge):
        return UNKNOWN
    target = first.replay.target
    short, long, seen = (float(inner(one, one).sqrt()) for one in (coarse, fine, target))
    # Steps that are too large overshoot, and say nothing of lengths or directions.
    if not seen or not abs(short - long) <= AGREE * long or not mismatch(coarse, fine) <= AGREE:
        return UNKNOWN
    return Fit(resolution=mismatch(own, fine), stretch=long / seen)
