"""Our own composite: the worst case that an auditor should report. What each part gave is in docs/strongest.md.

First the mean gradient at the path's midpoint, which is cheap and soon good; then the client's whole path, rolled out
from θ on the dummy images themselves in a few macro-steps, which removes the midpoint's systematic error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from undelta.attacker.distances import mismatch
from undelta.attacker.journal import Journal
from undelta.attacker.labels import label_source
from undelta.attacker.matching import GradientMatching, Phases, Watch
from undelta.attacker.optimizers import Adam, cosine_decay
from undelta.attacker.priors import BatchNormStatistics, Source, TotalVariation
from undelta.attacker.pruned import sent_entries
from undelta.attacker.reconstruction import Reconstruction
from undelta.attacker.replays import CoarseRollout, FullRollout, OneStep
from undelta.attacker.weights import Ramps
from undelta.observation import Observation
from undelta.seeding import stream
from undelta.updates import Update, inner

MACRO_STEPS = (5, 10, 20)
RESOLVED = 0.01  # twice as many macro-steps change the simulated update by no more than this cosine distance

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

        def further_out(guess: Reconstruction) -> GradientMatching | None:
            stretch = path_stretch(observation, guess)
            if stretch < CLIPPED:
                return None
            return replace(self.midpoint, replay=OneStep(position=0.5, stretch=stretch), restarts=1)

        def rollout(guess: Reconstruction) -> GradientMatching:
            if training.epochs == 1:
                return replace(self.rollout, replay=FullRollout())  # scenario 3: exact
            count = self.macro_steps or resolving_steps(observation, guess)
            # Without mini-batches as many steps as epochs are exact (scenario 2), and more are wrong.
            return replace(self.rollout, replay=CoarseRollout(steps=min(count, training.epochs * training.batches)))

        phases: Phases
        if observation.unknown:
            phases = Phases(phases=(self.midpoint,))
        elif training.epochs * training.batches == 1:  # scenario 1: one gradient at θ is the whole truth
            exact = replace(self.midpoint, replay=OneStep(), steps=self.midpoint.steps + self.rollout.steps)
            phases = Phases(phases=(exact,))
        else:
            phases = Phases(phases=(self.midpoint, further_out, rollout))
        return phases(observation, seed=seed, watch=watch, journal=journal)


def resolving_steps(observation: Observation, guess: Reconstruction) -> int:
    """The smallest number of macro-steps that resolves the path of these dummy images: twice as many agree."""

    def simulated(count: int) -> Update:
        replay = CoarseRollout(steps=count)(observation, stream("attacker", "resolving"))
        return replay(observation.image.normalize(guess.images), guess.labels).update

    for count in MACRO_STEPS[:-1]:
        if mismatch(simulated(count), simulated(2 * count)) <= RESOLVED:
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
    tv: float = 0.01,
    bn: float = 0.001,
    bn_source: Source = "auto",
    restarts: int = 1,
    labels: str = "auto",
    masked: bool = True,
) -> Composite:
    """Match the mean gradient at the path's midpoint, then roll the whole path out coarsely.

    Args:
        steps: Iterations of the midpoint phase.
        rollout_steps: Iterations of the rollout phase, each as dear as ``macro_steps`` of the first.
        rollout_rate: Adam's rate in the rollout phase; a short phase wants less.
        macro_steps: Full-batch steps that stand for the client's whole path; chosen by step doubling if not given.
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
    >>> reconstruction = strongest(steps=6, rollout_steps=4)(observation, seed=0)
    >>> reconstruction.iterations, len(reconstruction.labels)
    (10, 2)
    """
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
        # Early layers see the pixels; on an exact replay their share of the update is worth more.
        weights=Ramps(conv=0.1, norm=0.1, linear=0.1),
        priors=priors,
        optimizer=Adam(learning_rate=rollout_rate),
        schedule=cosine_decay,
        steps=rollout_steps,
        masked=masked,
    )
    return Composite(midpoint=midpoint, rollout=rollout, macro_steps=macro_steps)
