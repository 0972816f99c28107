"""`strongest` is exact where exactness is possible, and honest about its time."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest
import torch

from undelta.attacker.attacks import ATTACKS, strongest
from undelta.attacker.attacks.strongest import AFTER_CURVE, CLIPPED, LATE_TV, STEEP_RATE, STEEP_ROUNDS_RATE, STEEP_TV
from undelta.attacker.candidates import FLAT, RISING, judge_for, was_trained
from undelta.attacker.combine import LOST, Consensus, Phases, method_of
from undelta.attacker.descent import Descent, Method
from undelta.attacker.distances import mismatch
from undelta.attacker.method import GradientMatching
from undelta.attacker.optimizers import Adam
from undelta.attacker.paths import LearnedCurve
from undelta.attacker.priors import ColorVariation, TotalVariation, total_variation
from undelta.attacker.replay import Replay
from undelta.attacker.replays import CoarseRollout, OneStep
from undelta.attacker.resolution import MACRO_STEPS
from undelta.attacker.span import InputSpans
from undelta.attacker.weights import WeightsPart
from undelta.client.disclose import disclose, disclose_with_secrets
from undelta.client.scenario import Scenario
from undelta.errors import ConfigError
from undelta.observation import Observation
from undelta.observation.withhold import without
from undelta.seeding import stream
from undelta.updates import Layer, Update

SCENARIO = Scenario(
    data="digits", num_samples=4, model="lenet", model_arguments={"width": 4}, epochs=3, batches=2, learning_rate=0.05
)

MODULE = sys.modules["undelta.attacker.attacks.strongest"]  # the package has the function under that name


def replays_of(observation: Observation, monkeypatch: pytest.MonkeyPatch) -> list[Replay]:
    """The replays that a short run of the attack uses, phase by phase."""
    seen: list[Replay] = []
    original = Descent.__init__

    def spy(self: Descent, *arguments: Any, **keywords: Any) -> None:
        original(self, *arguments, **keywords)
        seen.append(self.problem.rounds[0].replay)

    monkeypatch.setattr(Descent, "__init__", spy)
    strongest(steps=2, rollout_steps=2)(observation)
    return seen


@pytest.mark.parametrize(
    ("epochs", "batches"), [(1, 1), (2, 1), (3, 1), (1, 2)], ids=["S1", "S2, two epochs", "S2", "S3"]
)
def test_its_last_replay_explains_the_truth_exactly_where_that_is_possible(
    epochs: int, batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = replace(SCENARIO, epochs=epochs, batches=batches, learning_rate=1.0)
    private = scenario.draw(0)
    observation, (run,) = disclose_with_secrets(private, scenario, dtype=torch.float64)
    replay = replays_of(observation, monkeypatch)[-1]
    order = run.orders[0]
    update, _, _ = replay(observation.image.normalize(private.images.double())[order], private.labels[order])
    assert mismatch(update, replay.target) < 1e-12


def test_an_adam_of_unknown_length_leaves_the_midpoint_phase_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = replace(SCENARIO, optimizer="adam")
    observation = without(disclose(scenario.draw(0), scenario), "epochs", "learning_rate")
    assert len(replays_of(observation, monkeypatch)) == 2  # with flat and with rising weights


def test_a_single_step_is_matched_where_it_was_made_also_without_its_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = replace(SCENARIO, epochs=1, batches=1)
    observation = without(disclose(scenario.draw(0), scenario), "learning_rate")
    for replay in replays_of(observation, monkeypatch):
        assert all(torch.equal(value, observation.initial[name]) for name, value in replay.start.items())


def test_a_straight_path_needs_no_rollout_and_the_midpoint_takes_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = replace(SCENARIO, learning_rate=1e-4)
    observation = disclose(scenario.draw(0), scenario)
    *_, last = replays_of(observation, monkeypatch)
    torch.testing.assert_close(last.start, OneStep(position=0.5)(observation, stream("test")).start)
    attack = strongest(steps=7, rollout_steps=3)
    assert attack(observation).iterations == 2 * 7 + 3 * MACRO_STEPS[0]
    assert replace(attack, macro_steps=2)(observation).iterations == 2 * 7 + 3  # whoever asks for steps gets them


def test_rounds_share_the_time_and_get_finer_as_the_mismatch_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = iter([(5, 10), (20, 20)])
    monkeypatch.setattr(MODULE, "resolving", lambda *_, left: tuple(CoarseRollout(steps=one) for one in next(pairs)))
    observation = disclose(SCENARIO.draw(0), SCENARIO)
    result = strongest(steps=2, rollout_steps=16)(observation)
    # 2 x 2 iterations, then 40 gradients in steps of 5, then 40 in steps of 20.
    assert result.iterations == 2 * 2 + 40 // 5 + 40 // 20


LONG = replace(SCENARIO, learning_rate=8.0, epochs=20)


def test_a_long_path_is_approached_on_a_learned_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "LEAST_CURVE", 4)
    monkeypatch.setattr(MODULE, "resolving", lambda *_, left: (CoarseRollout(steps=20),) * 2)
    observation = disclose(LONG.draw(0), LONG)
    methods = methods_of(observation, monkeypatch, weights="flat", rollout_steps=16)
    # Of 80 gradients 40 in 20 iterations on the curve, and 40 in 2 of 20 macro-steps each, which are small ones.
    assert [(method.replay, method.steps) for method in methods[1:]] == [
        (LearnedCurve(), 20),
        (CoarseRollout(steps=20), 2),
    ]
    assert methods[-1].optimizer.learning_rate == AFTER_CURVE
    monkeypatch.setattr(MODULE, "LEAST_CURVE", 40)
    *_, last = methods_of(observation, monkeypatch, weights="flat", rollout_steps=16)
    assert (last.replay, last.steps) == (LearnedCurve(), 40)  # too little time for both


@pytest.mark.parametrize(
    ("fields", "settings"),
    [
        ({}, {"curve": False}),
        ({}, {"macro_steps": 2}),
        ({}, {"length": "learned"}),
        ({}, {"weights": "rising"}),
        ({}, {"signed": True}),
        ({"epochs": 1}, {}),
        ({"epochs": 3, "batches": 1}, {}),
        ({"optimizer": "adam"}, {}),
        ({"observed_rounds": 2}, {}),
    ],
    ids=str,
)
def test_there_is_no_curve_where_it_does_not_fit(
    fields: dict[str, Any], settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MODULE, "overshoots", lambda *_: True)
    scenario = replace(SCENARIO, **fields)
    observation = disclose(scenario.draw(0), scenario)
    curves = [method for method in methods_of(observation, monkeypatch, **settings) if method.replay == LearnedCurve()]
    assert not curves


def test_there_is_no_curve_to_a_point_that_a_clipped_update_does_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "overshoots", lambda *_: True)
    monkeypatch.setattr(MODULE, "path_stretch", lambda *_: 2 * CLIPPED)
    observation = disclose(SCENARIO.draw(0), SCENARIO)
    assert all(method.replay != LearnedCurve() for method in methods_of(observation, monkeypatch, weights="flat"))


@pytest.mark.parametrize("limit", [LOST, math.inf])  # a rougher phase is undone, however little it lost
def test_a_phase_that_ends_worse_than_it_began_is_undone(limit: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("undelta.attacker.combine.LOST", limit)
    observation = disclose(SCENARIO.draw(0), SCENARIO)
    sound = GradientMatching(replay=OneStep(position=0.5), steps=30)
    astray = GradientMatching(replay=OneStep(position=0.5), optimizer=Adam(learning_rate=50.0), box=False, steps=11)
    alone, both = sound(observation), Phases(phases=(sound, astray))(observation)
    assert torch.equal(both.images, alone.images)
    assert both.mismatch == alone.mismatch
    assert both.iterations == 41
    assert both.history[-1] == alone.history[-1]._replace(iteration=41, seconds=both.history[-1].seconds)
    assert len(both.iterates) == len(alone.iterates)


@pytest.mark.parametrize(("limit", "kept"), [(LOST, True), (1.05, False)])
def test_smoother_images_make_up_for_a_larger_mismatch_of_the_same_size(
    limit: float, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("undelta.attacker.combine.LOST", limit)
    observation = disclose(SCENARIO.draw(0), SCENARIO)
    rough = GradientMatching(replay=OneStep(position=0.5), steps=30)
    smooth = replace(rough, priors=(TotalVariation(weight=1e3),), optimizer=Adam(learning_rate=0.02))
    first = rough(observation)
    second = smooth(observation, start=first)
    assert total_variation(second.images) < total_variation(first.images)
    assert first.mismatch < second.mismatch
    assert (second.mismatch < limit * first.mismatch) == kept
    both = Phases(phases=(rough, smooth))(observation)
    assert torch.equal(both.images, second.images if kept else first.images)


def test_restarts_and_groups_are_for_the_first_phase_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = replace(SCENARIO, learning_rate=1e-4)  # straight, so the first phase goes on
    observation = disclose(scenario.draw(0), scenario)
    attack = strongest(steps=4, rollout_steps=2, restarts=2, weights="flat")
    assert attack(observation).iterations == 2 * 4 + 2 * MACRO_STEPS[0]
    runs: list[GradientMatching] = []
    original = Descent.__init__

    def spy(self: Descent, method: GradientMatching, *arguments: Any, **keywords: Any) -> None:
        original(self, method, *arguments, **keywords)
        runs.append(method)

    monkeypatch.setattr(Descent, "__init__", spy)
    replace(attack, midpoint=Consensus(attack=method_of(attack.midpoint), group=3))(observation)
    assert [run.steps for run in runs] == [4, 4, 4, 2 * MACRO_STEPS[0]]


def test_a_single_epoch_has_as_many_gradients_as_a_rollout() -> None:
    scenario = replace(SCENARIO, epochs=1)
    attack = strongest(steps=4, rollout_steps=2, weights="flat")
    assert attack(disclose(scenario.draw(0), scenario)).iterations == 4 + 2 * MACRO_STEPS[0]


@pytest.mark.parametrize("better", ["flat", "rising"])
def test_the_layer_weights_that_explain_the_update_better_go_on(better: Literal["flat", "rising"]) -> None:
    scenario = replace(SCENARIO, learning_rate=0.5)
    observation = disclose(scenario.draw(0), scenario)
    attack = strongest(steps=9, rollout_steps=5, macro_steps=2)
    astray = (TotalVariation(weight=1e3),)  # explains nothing
    candidates = tuple(
        candidate if (candidate.weights == FLAT) == (better == "flat") else replace(candidate, priors=astray)
        for candidate in attack.candidates
    )
    both = replace(attack, candidates=candidates)(observation)
    alone = strongest(steps=9, rollout_steps=5, macro_steps=2, weights=better)(observation)
    assert torch.equal(both.images, alone.images)
    assert both.layer_weights == alone.layer_weights
    assert (both.iterations, alone.iterations) == (9 + 9 + 5, 9 + 5)
    assert [moment.iteration for moment in both.history] == sorted(moment.iteration for moment in both.history)


@dataclass(frozen=True, kw_only=True)
class Only:
    """Layers of one kind, and next to nothing of the others."""

    kind: str

    def __call__(self, layers: Sequence[Layer], dummy: Update, target: Update) -> torch.Tensor:
        return torch.tensor([1.0 if layer.kind == self.kind else 1e-9 for layer in layers])


@pytest.mark.parametrize("kind", ["conv", "linear"])
def test_candidates_are_compared_under_the_same_layer_weights(kind: str) -> None:
    observation = disclose(SCENARIO.draw(0), SCENARIO)
    tries = tuple(
        GradientMatching(
            replay=OneStep(position=0.5), weights=Only(kind=one), optimizer=Adam(learning_rate=1.0), steps=20
        )
        for one in ("conv", "linear")
    )
    chosen = Phases(phases=(tries,), judge=Only(kind=kind))(observation)
    alone = tries[0 if kind == "conv" else 1](observation)
    assert torch.equal(chosen.images, alone.images)


@pytest.mark.parametrize("name", ["agic", "sme", "dlfa"])
def test_candidates_of_any_canvas_and_replay_can_be_compared(name: str) -> None:
    observation = disclose(SCENARIO.draw(0), SCENARIO)
    build: Any = ATTACKS[name]
    tries = tuple(method_of(build(steps=steps, labels="disclosed")) for steps in (1, 12))
    results = [attempt(observation) for attempt in tries]
    best = min(results, key=lambda result: result.mismatch)
    assert torch.equal(Phases(phases=(tries,))(observation).images, best.images)


def test_an_interruption_while_candidates_are_compared_keeps_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    observation = disclose(SCENARIO.draw(0), SCENARIO)
    tries = tuple(GradientMatching(replay=OneStep(position=0.5), steps=steps) for steps in (1, 12))

    def interrupt(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(Phases, "_best", interrupt)
    result = Phases(phases=(tries, tries[0]))(observation)
    assert (result.status, result.iterations) == ("interrupted", 13)
    assert torch.equal(result.images, tries[1](observation).images)


@pytest.mark.parametrize(("model", "judge"), [("lenet", FLAT), ("convnet", RISING)])
def test_rising_weights_judge_networks_with_norms_alone(model: str, judge: WeightsPart) -> None:
    scenario = replace(SCENARIO, model=model)
    assert judge_for(disclose(scenario.draw(0), scenario)) == judge


def test_unknown_layer_weights_are_refused() -> None:
    with pytest.raises(ConfigError, match="expected weights both, flat, rising, got 'steep'"):
        strongest(weights="steep")  # type: ignore[arg-type]


def test_the_midpoint_of_a_clipped_update_is_looked_for_further_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "path_stretch", lambda *_: 2 * CLIPPED)
    observation = disclose(SCENARIO.draw(0), SCENARIO)
    first, _, second, _ = replays_of(observation, monkeypatch)
    for name, value in observation.initial.items():
        moves = [replay.start[name] - value for replay in (first, second)]
        torch.testing.assert_close(moves[1], 2 * CLIPPED * moves[0], rtol=1e-3, atol=1e-6)
    single = replace(SCENARIO, epochs=1, batches=1)
    *_, last = replays_of(disclose(single.draw(0), single), monkeypatch)
    assert all(torch.equal(last.start[name], value) for name, value in observation.initial.items())  # not of one step
    monkeypatch.setattr(MODULE, "path_stretch", lambda *_: 0.9 * CLIPPED)
    straight = disclose(SCENARIO.draw(0), replace(SCENARIO, learning_rate=1e-4))
    assert len(replays_of(straight, monkeypatch)) == 3


def methods_of(observation: Observation, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> list[Method]:
    """How a short run of the attack moves its images, descent by descent."""
    seen: list[Method] = []
    original = Descent.__init__

    def spy(self: Descent, *arguments: Any, **keywords: Any) -> None:
        original(self, *arguments, **keywords)
        seen.append(self.method)

    monkeypatch.setattr(Descent, "__init__", spy)
    strongest(**{"steps": 2, "rollout_steps": 4, **settings})(observation)
    return seen


@pytest.mark.parametrize(("weights", "rate"), [("flat", 0.25), ("rising", 0.7)])
def test_each_candidate_has_a_rate_of_its_own_in_the_rounds(
    weights: str, rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    observation = disclose(SCENARIO.draw(0), SCENARIO)
    first, second, *_ = methods_of(observation, monkeypatch, weights=weights, macro_steps=2)
    assert [first.optimizer, second.optimizer] == [Adam(learning_rate=1.0), Adam(learning_rate=rate)]


def normed(*, touched: bool) -> Observation:
    """An update of a small ResNet; its running statistics are those of data, or of nothing."""
    scenario = replace(SCENARIO, model="resnet8", model_arguments={"width": 4}, norm_mode="eval")
    observation = disclose(scenario.draw(0), scenario)
    if not touched:
        return observation
    means = {name: value + 0.1 for name, value in observation.initial.items() if name.endswith("running_mean")}
    return replace(observation, initial={**observation.initial, **means}, received={**observation.received, **means})


@pytest.mark.parametrize("touched", [False, True], ids=["fresh", "trained"])
def test_signed_steps_are_a_candidate_where_the_network_was_trained(
    touched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    observation = normed(touched=touched)
    assert was_trained(observation) is touched
    signs = [method.signed for method in methods_of(observation, monkeypatch)]
    assert signs[:3] == [False, False, True] if touched else not any(signs)
    assert not any(method.signed for method in methods_of(observation, monkeypatch, signed=False))


def test_signed_steps_alone_reach_every_phase_at_their_own_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    methods = methods_of(normed(touched=True), monkeypatch, signed=True)
    assert len(methods) > 1
    assert all(method.signed for method in methods)
    rates = [method.optimizer.learning_rate for method in methods]
    assert rates[:2] == [STEEP_RATE, STEEP_ROUNDS_RATE]


def test_rising_weights_come_with_smooth_gradients_and_later_with_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"weights": "rising", "smoothing": 0.1, "deep_span": 0.05, "rollout_steps": 20}
    methods = methods_of(normed(touched=False), monkeypatch, **settings)
    first, *rounds, last = methods
    assert rounds
    assert [method.smoothing for method in methods] == pytest.approx([0.1, *[0.06] * len(rounds), 0.02])
    spans = InputSpans(weight=0.05)
    assert [spans in method.priors for method in methods] == [False, *[True] * (len(rounds) + 1)]
    assert first.priors[0] == ColorVariation(weight=0.03)
    assert last.priors[0] == ColorVariation(weight=0.03 * LATE_TV)


def test_flat_weights_keep_plain_gradients_and_their_priors_spans_among_them(monkeypatch: pytest.MonkeyPatch) -> None:
    methods = methods_of(normed(touched=False), monkeypatch, weights="flat", smoothing=0.1, span=0.05)
    assert InputSpans(weight=0.05, convolutions=False) in methods[0].priors
    assert {(method.smoothing, method.priors) for method in methods} == {(0.0, methods[0].priors)}
    assert methods[0].priors[0] == ColorVariation(weight=0.01, lightness=0.5, chroma=1.5)


def test_signed_steps_stay_signed_whatever_the_priors_of_the_others() -> None:
    attack = strongest(deep_tv=STEEP_TV)  # rising and signed have the same priors now
    rising, steep = attack.candidates[1:]
    assert rising.priors == steep.priors
    methods = [
        replace(method_of(attack.midpoint), priors=candidate.priors, signed=candidate.signed)
        for candidate in (rising, steep)
    ]
    assert [attack._chosen(method) for method in methods] == [rising, steep]


def test_layer_weights_that_the_user_names_are_tried_alone() -> None:
    assert [candidate.signed for candidate in strongest(weights="flat").candidates] == [False]


def test_a_network_without_batch_norm_does_not_tell_whether_it_was_trained() -> None:
    assert not was_trained(disclose(SCENARIO.draw(0), SCENARIO))
