"""Attacks made of attacks: restarts, groups of runs, phases; how they count, choose, end early and resume."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from undelta.attacker.attack import Attack, Run
from undelta.attacker.attacks import awa, gradinversion, strongest
from undelta.attacker.combine import Consensus, Phases, Restarts, altered, best_of, method_of
from undelta.attacker.descent import Descent
from undelta.attacker.distances import Weights, cosine
from undelta.attacker.method import GradientMatching
from undelta.attacker.optimizers import Adam
from undelta.attacker.reconstruction import Moment, Reconstruction
from undelta.attacker.replays import InterpolatedEpoch, OneStep
from undelta.client.disclose import disclose
from undelta.client.scenario import Scenario
from undelta.errors import ConfigError
from undelta.observation import Observation
from undelta.updates import Update

METHOD = GradientMatching(replay=OneStep(position=0.5), optimizer=Adam(learning_rate=1.0), steps=11)


def equal(one: Reconstruction, other: Reconstruction) -> bool:
    return torch.equal(one.images, other.images) and (one.mismatch, one.status) == (other.mismatch, other.status)


def test_every_restart_is_the_attack_itself_in_another_attempt(observation: Observation) -> None:
    attempts = [METHOD(observation, seed=2, attempt=attempt) for attempt in range(3)]
    assert equal(attempts[0], METHOD(observation, seed=2))
    assert len({result.mismatch for result in attempts}) == 3
    best = min(attempts, key=lambda result: result.mismatch)
    assert equal(Restarts(attack=METHOD, restarts=3)(observation, seed=2), best)


def test_a_group_of_one_is_the_method_itself(observation: Observation) -> None:
    assert equal(Consensus(attack=METHOD, group=1, consistency=1.0)(observation), METHOD(observation))


def test_the_best_member_of_a_group_that_nothing_pulls_is_the_best_of_independent_runs(
    observation: Observation, monkeypatch: pytest.MonkeyPatch
) -> None:
    descents = spied(monkeypatch)
    result = Consensus(attack=METHOD, group=3)(observation)
    ends = [descent.problem.value(descent.images, descent.soft_labels(None))[0].mismatch for descent in descents]
    assert len(set(ends)) == 3
    assert result.mismatch == min(ends)
    assert equal(METHOD(observation), descents[0].result("completed", 11, 0.0, []))


def test_a_group_is_pulled_together(observation: Observation, monkeypatch: pytest.MonkeyPatch) -> None:
    spreads = []
    for consistency in (0.0, 1.0):
        with monkeypatch.context() as patch:
            descents = spied(patch)
            Consensus(attack=METHOD, group=2, consistency=consistency)(observation)
        spreads.append(float((descents[0].images - descents[1].images).square().mean()))
    assert spreads[1] < 0.2 * spreads[0]


def spied(monkeypatch: pytest.MonkeyPatch) -> list[Descent]:
    """The descents that begin from now on."""
    seen: list[Descent] = []
    original = Descent.__init__

    def spy(self: Descent, *arguments: Any, **keywords: Any) -> None:
        original(self, *arguments, **keywords)
        seen.append(self)

    monkeypatch.setattr(Descent, "__init__", spy)
    return seen


def test_a_group_may_be_restarted(observation: Observation) -> None:
    group = Consensus(attack=METHOD, group=2, consistency=0.01)
    both = Restarts(attack=group, restarts=2)
    attempts = [group(observation, attempt=attempt) for attempt in range(2)]
    result = both(observation)
    assert (both.steps, result.iterations) == (22, 22)
    assert equal(result, min(attempts, key=lambda attempt: attempt.mismatch))


def test_one_try_needs_no_combinator() -> None:
    assert best_of(1, METHOD) is METHOD
    assert best_of(2, METHOD) == Restarts(attack=METHOD, restarts=2)
    assert isinstance(gradinversion(group=1), GradientMatching)
    assert isinstance(gradinversion(group=2), Consensus)


@pytest.mark.parametrize("attack", [METHOD, Restarts(attack=Consensus(attack=METHOD, group=2), restarts=3)])
def test_a_method_can_be_altered_under_its_combinators(attack: GradientMatching | Restarts) -> None:
    assert method_of(attack) == METHOD
    other = altered(attack, steps=7)
    assert method_of(other) == replace(METHOD, steps=7)
    assert altered(other, steps=11) == attack


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: Restarts(attack=METHOD, restarts=0), "expected restarts >= 1, got restarts=0"),
        (lambda: Consensus(attack=METHOD, group=0), "expected group >= 1, got group=0"),
        (lambda: gradinversion(group=-1), "expected group >= 1, got group=-1"),
    ],
    ids=["restarts", "group", "gradinversion"],
)
def test_there_is_no_best_of_nothing(make: Callable[[], object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        make()


@pytest.mark.parametrize("phases", [(), (lambda found, method: method,)], ids=["none", "nothing before"])
def test_phases_need_a_first_one(phases: tuple[Any, ...], observation: Observation) -> None:
    with pytest.raises(ConfigError, match=r"first phase|at least one phase"):
        Phases(phases=phases)(observation)


def test_a_later_phase_sees_the_method_under_the_combinator(observation: Observation) -> None:
    seen: list[GradientMatching] = []

    def none(found: Reconstruction, method: GradientMatching) -> None:
        seen.append(method)

    Phases(phases=(Restarts(attack=METHOD, restarts=2), none))(observation)
    assert seen == [METHOD]


def test_a_part_of_a_run_counts_from_where_it_begins_and_has_a_name_of_its_own() -> None:
    seen: list[tuple[int, int]] = []
    run = Run(watch=lambda moment, total: seen.append((moment.iteration, total)), memory=5)
    part = run.within("phase 1", done=30, total=50).within("restart 2", done=8, total=12)
    part.tell(Moment(3, 0.0, 1.0, 1.0), 4)
    assert seen == [(41, 50)]
    assert (part.part, part.memory) == ("attack, phase 1, restart 2", 5)
    Run().within("phase 1", done=0, total=1).tell(Moment(3, 0.0, 1.0, 1.0), 4)  # nobody watches


def test_the_members_of_a_group_agree_on_which_image_has_which_label(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = spied(monkeypatch)
    scenario = replace(scenario, num_samples=6)
    gradinversion(steps=1, group=3, labels="disclosed")(disclose(scenario.draw(0), scenario))
    classes = [descent.classes for descent in seen if descent.classes is not None]
    assert len(classes) == 3
    assert torch.equal(classes[0], classes[1])
    assert torch.equal(classes[0], classes[2])


def interrupt_at(iteration: int) -> Callable[[Moment, int], None]:
    def watch(moment: Moment, total: int) -> None:
        if moment.iteration >= iteration:
            raise KeyboardInterrupt

    return watch


def test_restarts_choose_the_smallest_mismatch_of_their_own(observation: Observation) -> None:
    seen: dict[int, float] = {}

    def watch(moment: Moment, total: int) -> None:
        seen[moment.iteration] = moment.mismatch

    method = GradientMatching(replay=OneStep(position=0.5), steps=11)
    best = Restarts(attack=method, restarts=5)(observation, run=Run(watch=watch))
    assert best.iterations == 55
    assert best.status == "completed"
    ends = [seen[11 * restart + 10] for restart in range(5)]
    assert len(set(ends)) == 5
    assert best.history[1].mismatch == min(ends)


def test_more_restarts_are_never_worse_by_the_attackers_measure(observation: Observation) -> None:
    results = [awa(steps=3, restarts=restarts)(observation).mismatch for restarts in (1, 2, 4)]
    assert results == sorted(results, reverse=True)


def test_a_diverged_try_loses_against_one_that_did_not(observation: Observation) -> None:
    calls = 0

    def fragile(dummy: Update, target: Update, weights: Weights) -> Tensor:
        nonlocal calls
        calls += 1
        return cosine(dummy, target, weights) * (math.nan if calls == 2 else 1.0)

    method = GradientMatching(replay=InterpolatedEpoch(), distance=fragile, steps=3)
    result = Restarts(attack=method, restarts=2)(observation)
    assert result.status == "completed"
    assert result.iterations == 1 + 3


def test_an_interruption_between_phases_keeps_what_was_found(observation: Observation) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    result = Phases(phases=(awa(steps=12), interrupted))(observation)
    assert result.status == "interrupted"
    assert torch.equal(result.images, awa(steps=12)(observation).images)


def test_an_interruption_ends_all_tries_and_keeps_the_best(observation: Observation) -> None:
    tries = Phases(phases=((awa(steps=12), awa(steps=12, learning_rate=1e-9), awa(steps=12)),))
    result = tries(observation, run=Run(watch=interrupt_at(12 + 10)))
    assert result.status == "interrupted"
    assert result.iterations - (12 + 10) in (0, 1)
    assert torch.equal(result.images, awa(steps=12)(observation).images)


@pytest.mark.parametrize(
    ("attack", "totals"),
    [
        (awa(steps=15, restarts=2), [30] * 4),
        (strongest(steps=15, rollout_steps=12, macro_steps=2, weights="flat"), [0] * 4),
        (Phases(phases=((awa(steps=15), awa(steps=15, form="linear")),)), [30] * 4),
    ],
    ids=["restarts", "phases", "tries"],
)
def test_a_watch_sees_iterations_counted_over_all_tries_and_phases(
    attack: Attack, totals: list[int], observation: Observation
) -> None:
    seen: list[tuple[int, int]] = []
    attack(observation, run=Run(watch=lambda moment, total: seen.append((moment.iteration, total))))
    # A phase may depend on the one before: then nobody knows the total, which is open.
    assert seen == list(zip([0, 10, 15, 25], totals, strict=True))


def test_phases_start_where_the_one_before_ended(observation: Observation) -> None:
    first = GradientMatching(replay=OneStep(position=0.5), steps=15)
    second = GradientMatching(replay=OneStep(position=0.5), steps=1)
    alone = first(observation)
    both = Phases(phases=(first, second))(observation)
    assert both.iterations == 16
    ended, resumed = [moment for moment in both.history if moment.iteration == 15]
    assert ended == alone.history[-1]._replace(seconds=ended.seconds)
    assert resumed.mismatch == pytest.approx(alone.mismatch, rel=1e-3)
    assert torch.equal(both.labels, alone.labels)


def test_iterates_lead_from_the_start_to_the_result(observation: Observation) -> None:
    first = GradientMatching(replay=OneStep(position=0.5), steps=30)
    result = Phases(phases=(first, replace(first, optimizer=Adam(learning_rate=1e-3), steps=20)))(observation)
    numbers = [iterate.iteration for iterate in result.iterates]
    assert numbers[0] == 0
    assert numbers == sorted(set(numbers))
    assert numbers[-1] > 40  # some of the second phase, counted on
    assert all(iterate.images.dtype == torch.uint8 for iterate in result.iterates)
    gaps = [(iterate.images / 255 - result.images).abs().mean() for iterate in result.iterates]
    assert gaps[-1] < 0.1 * gaps[0]
    assert [iterate.seconds for iterate in result.iterates] == sorted(iterate.seconds for iterate in result.iterates)
