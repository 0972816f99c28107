"""Our own composite: the worst case that an auditor should report. What each part gave is in docs/strongest.md.

First the mean gradient at the path's midpoint, which is cheap and soon good, with layers weighted alike and by rising
ramps; what explains the update better goes on. Then the client's whole path, rolled out from θ on the dummy images
themselves in a few macro-steps, which removes the midpoint's systematic error; where the path is so straight that there
is none, the midpoint phase goes on instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from undelta.attacker.distances import mismatch
from undelta.attacker.journal import Journal
from undelta.attacker.labels import label_source
from undelta.attacker.matching import GradientMatching, Phases, Watch
from undelta.attacker.optimizers import Adam, cosine_decay
from undelta.attacker.priors import BatchNormStatistics, Source, TotalVariation
from undelta.attacker.pruned import sent_entries
from undelta.attacker.reconstruction import Reconstruction
from undelta.attacker.replays import CoarseRollout, FullRollout, OneStep, ReplayPart
from undelta.attacker.weights import PAPER_Q, Ramps, Uniform, WeightsPart
from undelta.errors import ConfigError
from undelta.observation import Observation
from undelta.seeding import stream
from undelta.updates import Update, inner

FLAT, RISING = Uniform(), Ramps(conv=PAPER_Q.conv, norm=PAPER_Q.norm, linear=PAPER_Q.linear)
# Early layers see the pixels; on an exact replay their share of the update is worth more, if flat weights did well.
FALLING = Ramps(conv=0.1, norm=0.1, linear=0.1)

MACRO_STEPS = (5, 10, 20)
RESOLVED = 0.01  # twice as many macro-steps change the simulated update by no more than this cosine distance
STRAIGHT = 0.001  # the first macro-steps change the midpoint's gradient by no more than this

AGREE = 0.1  # lengths of one path in few and in twice as many macro-steps, if they resolve it
CLIPPED = 1.5  # times shorter than its path: an update that its client did not send whole


@dataclass(frozen=True, kw_only=True)
class Composite:
    """A midpoint phase, and a rollout phase with as many macro-steps as the path needs.

    Of a clipped update the midpoint lies further out than it says. Where the path that the first images would give is
    much longer than the update, the midpoint phase is done again, there.
    """

    midpoint: GradientMatching
    rollout: GradientMatching
    weights: tuple[WeightsPart, ...]
    """Of the layers; all are tried in the midpoint phase."""
    macro_steps: int | None
    """None: chosen by step doubling on the midpoint phase's images, without any truth."""

    def __call__(
        self,
        observation: Observation,
        *,
        seed: int = 0,
        watch: Watch | None = None,
        journal: Journal | None = None,
    ) -> Reconstruction:
        """Attack; where E or η is unknown there is no path to roll out, and the midpoint phase stands alone."""
        training = observation.training
        most = training.epochs * training.batches
        midpoint = self.midpoint
        single = most == 1 and "epochs" not in observation.unknown
        if single:
            midpoint = replace(midpoint, replay=OneStep())  # scenario 1: one gradient at θ is the whole truth
        as_long = MACRO_STEPS[0] * self.rollout.steps  # with as many gradients as a rollout

        def further_out(guess: Reconstruction, by: GradientMatching) -> GradientMatching | None:
            stretch = 1.0 if single else path_stretch(observation, guess)
            if stretch < CLIPPED:
                return None
            return replace(by, replay=OneStep(position=0.5, stretch=stretch), restarts=1, group=1)

        def rollout(guess: Reconstruction, by: GradientMatching) -> GradientMatching:
            weights = FALLING if by.weights == FLAT else by.weights
            if training.epochs == 1 < training.batches:  # scenario 3: exact, if labels share mini-batches as they did
                return replace(self.rollout, replay=FullRollout(), weights=weights, steps=as_long)
            count = self.macro_steps or resolving_steps(observation, guess, by.replay)
            if not count:
                return replace(by, optimizer=self.rollout.optimizer, steps=as_long, restarts=1, group=1)
            # Without mini-batches as many steps as epochs are exact (scenario 2), and more are wrong.
            return replace(self.rollout, replay=CoarseRollout(steps=min(count, most)), weights=weights)

        tries = tuple(replace(midpoint, weights=weights) for weights in self.weights)
        phases = Phases(phases=(tries,) if observation.unknown else (tries, further_out, rollout))
        return phases(observation, seed=seed, watch=watch, journal=journal)


def resolving_steps(observation: Observation, guess: Reconstruction, midpoint: ReplayPart) -> int:
    """The smallest number of macro-steps that resolves the path of these dummy images: twice as many agree.

    Zero where the path is straight: the midpoint's gradient says the same.
    """

    def simulated(part: ReplayPart) -> Update:
        replay = part(observation, stream("attacker", "resolving"))
        return replay(observation.image.normalize(guess.images), guess.labels).update

    most = observation.training.epochs * observation.training.batches
    finer = simulated(CoarseRollout(steps=min(MACRO_STEPS[0], most)))
    if mismatch(simulated(midpoint), finer) <= STRAIGHT:
        return 0
    for count, twice in pairwise(MACRO_STEPS):
        coarse, finer = finer, simulated(CoarseRollout(steps=min(twice, most)))
        if mismatch(coarse, finer) <= RESOLVED:
            return count
    return MACRO_STEPS[-1]


def path_stretch(observation: Observation, guess: Reconstruction) -> float:
    """How much longer the path of these dummy images is than the update that was sent, on the entries that were.

    One where a few macro-steps do not tell: they overshoot on a path that they do not resolve.
    """

    def length(count: int) -> float:
        replay = CoarseRollout(steps=count)(observation, stream("attacker", "stretch"))
        simulated = replay(observation.image.normalize(guess.images), guess.labels).update
        sent = sent_entries(replay.target)
        if sent:
            simulated = {name: value * sent[name] for name, value in simulated.items()}
        size = float(inner(replay.target, replay.target).sqrt())
        return float(inner(simulated, simulated).sqrt()) / size if size else 1.0

    most = observation.training.epochs * observation.training.batches
    coarse, fine = (length(min(count, most)) for count in MACRO_STEPS[:2])
    return fine if math.isfinite(fine) and abs(coarse - fine) <= AGREE * fine else 1.0


def strongest(
    *,
    steps: int = 100,
    rollout_steps: int = 160,
    rollout_rate: float = 0.7,
    macro_steps: int | None = None,
    weights: Literal["both", "flat", "rising"] = "both",
    tv: float = 0.01,
    bn: float = 0.001,
    bn_source: Source = "auto",
    restarts: int = 1,
    labels: str = "auto",
    masked: bool = True,
) -> Composite:
    """Match the mean gradient at the path's midpoint, then roll the whole path out coarsely unless it is straight.

    Args:
        steps: Iterations of the midpoint phase.
        rollout_steps: Iterations of the rollout phase, each as dear as ``macro_steps`` of the first; five times as many
            where the path is straight, so that the first phase goes on, or a single epoch.
        rollout_rate: Adam's rate in the rollout phase; a short phase wants less.
        macro_steps: Full-batch steps that stand for the client's whole path; chosen by step doubling if not given.
        weights: Of the layers in the midpoint phase: alike, the paper's rising ramps, or what matches better of both.
        tv: Weight of total variation.
        bn: Weight of the BatchNorm prior.
        bn_source: Whose statistics the prior trusts.
        restarts: Independent tries of the first phase, chosen by the attacker's own mismatch.
        labels: Where labels come from; inferred if none are granted.
        masked: Whether to leave entries that look pruned out of the match.

    >>> from undelta import Scenario, disclose
    >>> small = {"width": 4, "hidden": 16}
    >>> scenario = Scenario(data="digits", num_samples=2, model_arguments=small, batches=1, grant_labels=False)
    >>> observation = disclose(scenario.draw(seed=0), scenario, seed=0)
    >>> reconstruction = strongest(steps=6, rollout_steps=4)(observation, seed=0)  # a straight path: 2 x 6 + 5 x 4
    >>> reconstruction.iterations, len(reconstruction.labels)
    (32, 2)
    """
    choices: dict[str, tuple[WeightsPart, ...]] = {"both": (FLAT, RISING), "flat": (FLAT,), "rising": (RISING,)}
    if weights not in choices:
        raise ConfigError(f"expected weights {', '.join(choices)}, got {weights!r}")
    priors = (TotalVariation(weight=tv), BatchNormStatistics(weight=bn, source=bn_source))
    midpoint = GradientMatching(
        replay=OneStep(position=0.5),
        priors=priors,
        labels=label_source(labels),
        optimizer=Adam(learning_rate=1.0),
        schedule=cosine_decay,
        steps=steps,
        restarts=restarts,
        masked=masked,
    )
    rollout = GradientMatching(
        replay=CoarseRollout(steps=MACRO_STEPS[0]),
        priors=priors,
        optimizer=Adam(learning_rate=rollout_rate),
        schedule=cosine_decay,
        steps=rollout_steps,
        masked=masked,
    )
    return Composite(midpoint=midpoint, rollout=rollout, weights=choices[weights], macro_steps=macro_steps)
