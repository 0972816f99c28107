"""Our own composite: the worst case that an auditor should report. What each part gave is in docs/strongest.md.

First the mean gradient at the path's midpoint, which is cheap and soon good, tried with several layer weights; what
explains the update better is kept. Then, in rounds, the cheapest replay that resolves the client's path as finely as
the images so far explain the update: the midpoint while it does, then the whole path, rolled out from θ on the dummy
images themselves in more and more macro-steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from undelta.attacker.attack import UNWATCHED, Run
from undelta.attacker.combine import Matching, Phases, altered, best_of
from undelta.attacker.distances import mismatch
from undelta.attacker.labels import label_source
from undelta.attacker.method import GradientMatching
from undelta.attacker.optimizers import Adam, cosine_decay
from undelta.attacker.priors import BatchNormStatistics, ColorVariation, Prior, Source, TotalVariation
from undelta.attacker.pruned import sent_entries
from undelta.attacker.reconstruction import Reconstruction
from undelta.attacker.replays import CoarseRollout, FullRollout, OneStep, ReplayPart, prepare
from undelta.attacker.weights import PAPER_Q, Ramps, Uniform, WeightsPart
from undelta.engine import MEMORY
from undelta.errors import ConfigError
from undelta.observation import Observation
from undelta.seeding import stream
from undelta.updates import Update, inner, layers_of

FLAT = Uniform()
# The paper's ramps; but the last layer, which holds most of a deep network's update, says little of pixels.
RISING = Ramps(conv=PAPER_Q.conv, norm=PAPER_Q.norm, linear=PAPER_Q.linear / 100)
# Early layers see the pixels; on an exact replay their share of the update is worth more, if flat weights did well.
FALLING = Ramps(conv=0.1, norm=0.1, linear=0.1)

MACRO_STEPS = (5, 10, 20)
RESOLVED = 0.3  # of the mismatch so far: what a finer replay may change the simulated update by
ROUNDS = 2  # of the time after the first phase; before each the replay is chosen anew
POLISH, POLISH_RATE = 0.2, 0.2  # the share of that time for a last phase with weaker priors, and Adam's rate in it
LATER = 0.3  # of the mismatch so far: what the rounds to come may reach
SECOND = 0.4  # of the first round's rate: what it found is not to be lost again

AGREE = 0.1  # lengths of one path in few and in twice as many macro-steps, if they resolve it
CLIPPED = 1.5  # times shorter than its path: an update that its client did not send whole


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Layer weights, and the priors that go with them."""

    weights: WeightsPart
    priors: tuple[Prior, ...]
    late: tuple[Prior, ...] | None = None
    """Of a last phase, when the images are good enough to need less of a prior; None: no such phase."""


@dataclass(frozen=True, kw_only=True)
class Composite:
    """A midpoint phase, and rounds with as fine a replay as the path needs.

    Of a clipped update the midpoint lies further out than it says. Where the path that the first images would give is
    much longer than the update, the midpoint phase is done again, there.
    """

    midpoint: Matching
    rollout: GradientMatching
    candidates: tuple[Candidate, ...]
    """All are tried in the midpoint phase, and compared by `judge_for`."""
    macro_steps: int | None
    """None: chosen before each round on the images so far, without any truth."""

    def __call__(self, observation: Observation, *, seed: int = 0, run: Run = UNWATCHED) -> Reconstruction:
        """Attack; where E or η is unknown there is no path to roll out, and the midpoint phase stands alone."""
        training = observation.training
        most = training.epochs * training.batches
        midpoint = self.midpoint
        single = most == 1 and "epochs" not in observation.unknown
        if single:
            midpoint = altered(midpoint, replay=OneStep())  # scenario 1: one gradient at θ is the whole truth

        def further_out(guess: Reconstruction, by: GradientMatching) -> GradientMatching | None:
            stretch = 1.0 if single else path_stretch(observation, guess, run.memory)
            if stretch < CLIPPED:
                return None
            return replace(by, replay=OneStep(position=0.5, stretch=stretch))

        budget, spent = MACRO_STEPS[0] * self.rollout.steps, 0  # gradients

        def finer(guess: Reconstruction, by: GradientMatching) -> GradientMatching | None:
            nonlocal spent
            total = budget - (int(budget * POLISH) if self._late(by) else 0)
            if spent >= total:
                return None
            rate = self.rollout.optimizer.learning_rate * (SECOND if spent else 1)
            replay, settled = self._replay(observation, guess, by, run.memory)
            gradients = total - spent if settled or spent else total // ROUNDS
            spent += gradients
            weights = by.weights if isinstance(replay, OneStep) or by.weights != FLAT else FALLING
            steps = gradients // self._cost(replay)
            if not steps:
                return None
            method = replace(self.rollout, replay=replay, weights=weights, priors=by.priors, steps=steps)
            return replace(method, optimizer=Adam(learning_rate=rate))

        def polish(guess: Reconstruction, by: GradientMatching) -> GradientMatching | None:
            late, steps = self._late(by), (budget - spent) // self._cost(by.replay)
            if late is None or not steps:
                return None
            return replace(by, priors=late, optimizer=Adam(learning_rate=POLISH_RATE), steps=steps)

        tries = tuple(
            altered(midpoint, weights=candidate.weights, priors=candidate.priors) for candidate in self.candidates
        )
        rounds = () if observation.unknown else (further_out, *[finer] * ROUNDS, polish)
        return Phases(phases=(tries, *rounds), judge=judge_for(observation))(observation, seed=seed, run=run)

    def _late(self, by: GradientMatching) -> tuple[Prior, ...] | None:
        """The priors of the last phase, for the candidate that was chosen."""
        return next(candidate.late for candidate in self.candidates if candidate.priors == by.priors)

    def _cost(self, replay: ReplayPart) -> int:
        """Gradients of one iteration; macro-steps that the user asks for count as five, so that iterations are told."""
        if isinstance(replay, CoarseRollout):
            return MACRO_STEPS[0] if self.macro_steps else replay.steps
        return 1

    def _replay(
        self, observation: Observation, guess: Reconstruction, by: GradientMatching, memory: int
    ) -> tuple[ReplayPart, bool]:
        """The next round's replay, and whether it will do for all rounds to come."""
        training = observation.training
        most = training.epochs * training.batches
        if training.epochs == 1:  # scenarios 1 and 3: exact, if labels share mini-batches as they did
            return FullRollout() if most > 1 else by.replay, True
        if self.macro_steps:
            return CoarseRollout(steps=min(self.macro_steps, most)), True
        now, later = (
            resolving(observation, replace(guess, mismatch=guess.mismatch * share), by.replay, memory)
            for share in (1, LATER)
        )
        return now, now == later


def judge_for(observation: Observation) -> WeightsPart:
    """Layer weights under which candidates are compared (docs/strongest.md).

    In a network with norms, which is deep, most of the update lies in late layers that any images soon match; without,
    rising weights would favor the candidate that minimizes nothing else.
    """
    deep = any(layer.kind == "norm" for layer in layers_of(observation.model()))
    return RISING if deep else FLAT


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


def strongest(
    *,
    steps: int = 100,
    rollout_steps: int = 160,
    rollout_rate: float = 0.7,
    macro_steps: int | None = None,
    weights: Literal["both", "flat", "rising"] = "both",
    tv: float = 0.01,
    deep_tv: float = 0.03,
    bn: float = 0.001,
    bn_source: Source = "auto",
    signed: bool = False,
    restarts: int = 1,
    labels: str = "auto",
    masked: bool = True,
) -> Composite:
    """Match the mean gradient at the path's midpoint, then roll the path out as finely as the images need it.

    Args:
        steps: Iterations of the midpoint phase, with each of the layer weights.
        rollout_steps: The time of the rounds after it: five gradients for each of these, however they are spent; with
            ``macro_steps``, as many iterations.
        rollout_rate: Adam's rate in these rounds; a short one wants less.
        macro_steps: Full-batch steps that stand for the client's whole path; by default chosen before each round.
        weights: Of the layers: alike, rising with depth, or both, of which the better one is kept.
        tv: Weight of total variation with flat weights.
        deep_tv: With rising weights, the weight of the variation of lightness, and a third of that of color; a last
            phase has a third of both.
        bn: Weight of the BatchNorm prior.
        bn_source: Whose statistics the prior trusts.
        signed: Step along the gradient's sign only: worth a second run on trained networks, whose gradients differ in
            size from step to step by so much that Adam's own scaling fails.
        restarts: Independent tries of the first phase, chosen by the attacker's own mismatch.
        labels: Where labels come from; inferred if none are granted.
        masked: Whether to leave entries that look pruned out of the match.

    Examples:
        >>> from undelta import Scenario, disclose
        >>> small = {"width": 4, "hidden": 16}
        >>> scenario = Scenario(data="digits", num_samples=2, model_arguments=small, batches=1, grant_labels=False)
        >>> observation = disclose(scenario.draw(seed=0), scenario, seed=0)
        >>> reconstruction = strongest(steps=6, rollout_steps=4)(observation, seed=0)  # a straight path: 2 x 6 + 5 x 4
        >>> reconstruction.iterations, len(reconstruction.labels)
        (32, 2)
    """
    statistics = BatchNormStatistics(weight=bn, source=bn_source)
    flat = Candidate(weights=FLAT, priors=(TotalVariation(weight=tv), statistics))
    rising = Candidate(
        weights=RISING,
        priors=(ColorVariation(weight=deep_tv), statistics),
        late=(ColorVariation(weight=deep_tv / 3), statistics),
    )
    choices = {"both": (flat, rising), "flat": (flat,), "rising": (rising,)}
    if weights not in choices:
        raise ConfigError(f"expected weights {', '.join(choices)}, got {weights!r}")
    midpoint = GradientMatching(
        replay=OneStep(position=0.5),
        labels=label_source(labels),
        optimizer=Adam(learning_rate=1.0),
        schedule=cosine_decay,
        signed=signed,
        steps=steps,
        masked=masked,
    )
    rollout = GradientMatching(
        replay=CoarseRollout(steps=MACRO_STEPS[0]),
        optimizer=Adam(learning_rate=rollout_rate),
        schedule=cosine_decay,
        signed=signed,
        steps=rollout_steps,
        masked=masked,
    )
    return Composite(
        midpoint=best_of(restarts, midpoint),
        rollout=rollout,
        candidates=choices[weights],
        macro_steps=macro_steps,
    )
