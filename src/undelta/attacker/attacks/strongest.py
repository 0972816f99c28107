"""Our own composite: the worst case that an auditor should report. What each part gave is in docs/strongest.md.

First the mean gradient at the path's midpoint, which is cheap and soon good, tried with several layer weights; what
explains the update better is kept. All along, images are pulled to where the layers' inputs lie in the spans that the
update holds, which tells apart those that share a label. Where the path is so long that a coarse rollout would lead
away from the truth, one gradient at a learned point beside it, as in NL-SME. Then, in rounds, the cheapest replay that
resolves the client's path as finely as the images so far explain the update: the midpoint while it does, then the whole
path, rolled out from θ on the dummy images themselves in more and more macro-steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from undelta.attacker.attack import UNWATCHED, Run
from undelta.attacker.candidates import FALLING, FLAT, RISING, Candidate, judge_for, was_trained
from undelta.attacker.combine import Matching, Phases, altered, best_of
from undelta.attacker.labels import label_source
from undelta.attacker.method import GradientMatching
from undelta.attacker.optimizers import Adam, cosine_decay, three_step
from undelta.attacker.paths import LearnedCurve
from undelta.attacker.priors import BatchNormStatistics, ColorVariation, Source
from undelta.attacker.reconstruction import Reconstruction
from undelta.attacker.replay import ReplayPart
from undelta.attacker.replays import CoarseRollout, FullRollout, LearnedLength, OneStep
from undelta.attacker.resolution import MACRO_STEPS, overshoots, path_stretch, resolving, supposed
from undelta.attacker.span import InputSpans
from undelta.errors import ConfigError
from undelta.observation import Observation

ROUNDS = 2  # of the time after the first phase; before each the replay is chosen anew
POLISH, POLISH_RATE = 0.2, 0.2  # the share of that time for a last phase with weaker priors, and Adam's rate in it
LATE_TV = 0.67  # of the variation's weight in that phase
LATER = 0.3  # of the mismatch so far: what the rounds to come may reach
SECOND = 0.4  # of the first round's rate: what it found is not to be lost again

CURVE, LEAST_CURVE = 0.5, 150  # the share of the rounds' time for a learned curve, and the least of its iterations
CURVE_COST = 2  # the time of one in gradients: it moves as many variables as the model has
AFTER_CURVE = 0.1  # Adam's rate in the round after it, which is short and fine

FLAT_LIGHTNESS, FLAT_CHROMA = 0.5, 1.5  # of the variation's weight, with flat weights

LENGTH_RATE = 0.01  # Adam's for the logarithm of a length that is learned

# A trained network's gradients differ in size from step to step by so much that Adam's own scaling fails.
STEEP_RATE, STEEP_ROUNDS_RATE, STEEP_TV = 0.3, 0.21, 0.1

CLIPPED = 1.5  # times shorter than its path: an update that its client did not send whole


@dataclass(frozen=True, kw_only=True)
class Composite:
    """A midpoint phase, a learned curve where the path is long, and rounds with as fine a replay as the path needs.

    Of a clipped update the midpoint lies further out than it says. Where the path that the first images would give is
    much longer than the update, the midpoint phase is done again, there.
    """

    midpoint: Matching
    rollout: GradientMatching
    candidates: tuple[Candidate, ...]
    """All are tried in the midpoint phase, and compared by `judge_for`."""
    macro_steps: int | None
    """None: chosen before each round on the images so far, without any truth."""
    length: Literal["told", "learned"] = "told"
    curve: bool = True
    """Whether a long path is approached on a learned curve."""

    def __call__(self, observation: Observation, *, seed: int = 0, run: Run = UNWATCHED) -> Reconstruction:
        """Attack; an Adam whose E, B or η is unknown has no path to roll out, and the midpoint phase stands alone."""
        training = observation.training
        midpoint, unknown = self.midpoint, observation.unknown
        learned = not training.adaptive and (bool(unknown) or self.length == "learned")
        told = self.length == "told" or training.adaptive
        single = told and training.epochs * training.batches == 1 and not {"epochs", "batches"} & {*unknown}
        if single:
            midpoint = altered(midpoint, replay=OneStep())  # scenario 1: one gradient at θ is the whole truth

        chosen = self.candidates[0]

        def further_out(guess: Reconstruction, by: GradientMatching) -> GradientMatching | None:
            nonlocal chosen
            chosen = self._chosen(by)
            stretch = 1.0 if single or learned else path_stretch(observation, guess, run.memory)
            if stretch < CLIPPED:
                return None
            return replace(by, replay=OneStep(position=0.5, stretch=stretch))

        budget, spent = MACRO_STEPS[0] * self.rollout.steps, 0  # gradients

        def on_a_curve(guess: Reconstruction, by: GradientMatching) -> GradientMatching | None:
            nonlocal spent
            exact = training.epochs == 1 or (training.batches == 1 and training.epochs <= MACRO_STEPS[0])
            asked = self.curve and not (exact or learned or self.macro_steps)
            fits = not (training.adaptive or observation.further) and by.replay == OneStep(position=0.5)
            if not asked or not fits or chosen.weights != FLAT or chosen.signed:
                return None
            if not overshoots(observation, guess, run.memory):
                return None
            spent = min(budget, max(int(budget * CURVE), LEAST_CURVE * CURVE_COST))
            steps = max(1, spent // CURVE_COST)
            return replace(
                by, replay=LearnedCurve(), schedule=three_step, optimizer=Adam(learning_rate=1.0), steps=steps
            )

        def finer(guess: Reconstruction, by: GradientMatching) -> GradientMatching | None:
            nonlocal spent
            total = budget - (int(budget * POLISH) if chosen.late else 0)
            if spent >= total:
                return None
            rate = chosen.rounds_rate * (SECOND if spent else 1)
            if isinstance(by.replay, LearnedCurve):
                rate, by = AFTER_CURVE, replace(by, replay=OneStep(position=0.5))
            replay, settled = by.replay, True
            if not single:
                replay, settled = self._replay(observation, guess, by, run.memory, learned=learned)
            gradients = total - spent if settled or spent else total // ROUNDS
            spent += gradients
            weights = by.weights if isinstance(replay, OneStep) or by.weights != FLAT else FALLING
            steps = gradients // self._cost(replay)
            if not steps:
                return None
            priors = chosen.priors if chosen.then is None else chosen.then
            method = replace(self.rollout, replay=replay, weights=weights, priors=priors, steps=steps)
            optimizer, smoothing = Adam(learning_rate=rate), chosen.smoothing[1]
            return replace(method, optimizer=optimizer, signed=chosen.signed, smoothing=smoothing)

        def polish(guess: Reconstruction, by: GradientMatching) -> GradientMatching | None:
            steps = (budget - spent) // self._cost(by.replay)
            if chosen.late is None or not steps:
                return None
            optimizer = Adam(learning_rate=POLISH_RATE)
            return replace(by, priors=chosen.late, optimizer=optimizer, smoothing=chosen.smoothing[2], steps=steps)

        tries = tuple(
            altered(
                midpoint,
                weights=candidate.weights,
                priors=candidate.priors,
                signed=candidate.signed,
                smoothing=candidate.smoothing[0],
                optimizer=Adam(learning_rate=candidate.rate),
            )
            for candidate in self.candidates
            if not candidate.trained_only or was_trained(observation)
        )
        rounds = () if unknown and training.adaptive else (further_out, on_a_curve, *[finer] * ROUNDS, polish)
        return Phases(phases=(tries, *rounds), judge=judge_for(observation))(observation, seed=seed, run=run)

    def _chosen(self, by: GradientMatching) -> Candidate:
        """The candidate that won the first phase."""
        return next(one for one in self.candidates if (one.priors, one.signed) == (by.priors, by.signed))

    def _cost(self, replay: ReplayPart) -> int:
        """Gradients of one iteration; macro-steps that the user asks for count as five, so that iterations are told."""
        if isinstance(replay, CoarseRollout | LearnedLength):
            return MACRO_STEPS[0] if self.macro_steps else replay.steps
        return 1

    def _replay(
        self, observation: Observation, guess: Reconstruction, by: GradientMatching, memory: int, *, learned: bool
    ) -> tuple[ReplayPart, bool]:
        """The next round's replay, and whether it will do for all rounds to come."""
        if learned:
            observation = supposed(observation, guess, memory)
        elif observation.training.epochs == 1 and not observation.further:
            # Scenario 3: exact, if labels share mini-batches as they did; but not in the same order in every round.
            return FullRollout(), True
        most = observation.training.epochs * observation.training.batches
        if self.macro_steps:
            now: ReplayPart = CoarseRollout(steps=min(self.macro_steps, most))
            later = now
        else:
            last = CoarseRollout(steps=by.replay.steps) if isinstance(by.replay, LearnedLength) else by.replay
            now, later = resolving(observation, guess, last, memory, left=LATER)
        settled = now == later
        if learned and isinstance(now, CoarseRollout):
            now = LearnedLength(steps=now.steps, length=observation.path_length)
        return now, settled


def strongest(
    *,
    steps: int = 100,
    rollout_steps: int = 160,
    rollout_rate: float = 0.25,
    deep_rate: float = 0.7,
    macro_steps: int | None = None,
    weights: Literal["both", "flat", "rising"] = "both",
    tv: float = 0.01,
    deep_tv: float = 0.03,
    span: float = 0.003,
    deep_span: float = 0.001,
    smoothing: float = 0.05,
    bn: float = 0.001,
    bn_source: Source = "auto",
    signed: bool | Literal["auto"] = "auto",
    length: Literal["told", "learned"] = "told",
    curve: bool = True,
    restarts: int = 1,
    labels: str = "auto",
    masked: bool = True,
) -> Composite:
    """Match the mean gradient at the path's midpoint, then roll the path out as finely as the images need it.

    Args:
        steps: Iterations of the midpoint phase, with each of the layer weights.
        rollout_steps: The time of the rounds after it: five gradients for each of these, however they are spent; with
            ``macro_steps``, as many iterations.
        rollout_rate: Adam's rate in these rounds with flat weights.
        deep_rate: The same with rising weights.
        macro_steps: Full-batch steps that stand for the client's whole path; by default chosen before each round.
        weights: Of the layers: alike, rising with depth, or both, of which the better one is kept.
        tv: With flat weights, the weight of total variation; of color images half of it for lightness, and 1.5 times
            for color.
        deep_tv: With rising weights, the weight of the variation of lightness, and a third of that of color; a last
            phase has two thirds of both.
        span: With flat weights, the weight of the spans of linear layers' inputs.
        deep_span: With rising weights, after the first phase, the weight of the spans of all layers' inputs.
        smoothing: With rising weights, the width of the gradients' blur at the start, as a share of the image's side.
        bn: Weight of the BatchNorm prior.
        bn_source: Whose statistics the prior trusts.
        signed: Whether to try flat weights with signed steps, a smaller rate and more of a prior: "auto", beside both
            layer weights where BatchNorm statistics show a trained network; True, instead of them; False, never.
        length: Whether to believe what is said of E, B and η, or to learn the path's length η·E·B beside the images, as
            is done anyway where one of them is unknown.
        curve: Whether to match one gradient on a learned curve before the rounds, where the path is so long that coarse
            rollouts of it overshoot. It takes half of their time, or 150 iterations.
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
    colors = ColorVariation(weight=tv, lightness=FLAT_LIGHTNESS, chroma=FLAT_CHROMA)
    linear = InputSpans(weight=span, convolutions=False)
    flat = Candidate(weights=FLAT, priors=(colors, linear, statistics), rounds_rate=rollout_rate)
    variation, spans = ColorVariation(weight=deep_tv), InputSpans(weight=deep_span)
    rising = Candidate(
        weights=RISING,
        priors=(variation, statistics),
        then=(variation, spans, statistics),
        late=(ColorVariation(weight=deep_tv * LATE_TV), spans, statistics),
        smoothing=(smoothing, 0.6 * smoothing, 0.2 * smoothing),
        rounds_rate=deep_rate,
    )
    steep = Candidate(
        weights=FLAT,
        priors=(ColorVariation(weight=STEEP_TV), statistics),
        signed=True,
        rate=STEEP_RATE,
        rounds_rate=STEEP_ROUNDS_RATE,
        trained_only=signed == "auto",
    )
    choices = {"both": (flat, rising), "flat": (flat,), "rising": (rising,)}
    if length not in ("told", "learned"):
        raise ConfigError(f"expected length told or learned, got {length!r}")
    if weights not in choices:
        raise ConfigError(f"expected weights {', '.join(choices)}, got {weights!r}")
    candidates = choices[weights]
    if signed is True:
        candidates = (steep,)
    elif signed and weights == "both":
        candidates = (*candidates, steep)
    midpoint = GradientMatching(
        replay=OneStep(position=0.5),
        labels=label_source(labels),
        schedule=cosine_decay,
        steps=steps,
        masked=masked,
    )
    rollout = GradientMatching(
        replay=CoarseRollout(steps=MACRO_STEPS[0]),
        path_rate=LENGTH_RATE,
        schedule=cosine_decay,
        steps=rollout_steps,
        masked=masked,
    )
    return Composite(
        midpoint=best_of(restarts, midpoint),
        rollout=rollout,
        candidates=candidates,
        macro_steps=macro_steps,
        length=length,
        curve=curve,
    )
