"""Several rounds of one client: one set of images for all of them, and never more than the server saw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from undelta.attacker.attacks import sme, strongest
from undelta.attacker.combine import method_of
from undelta.attacker.descent import Descent
from undelta.attacker.labels import label_source
from undelta.attacker.method import GradientMatching
from undelta.attacker.paths import LearnedPosition
from undelta.attacker.priors import TotalVariation
from undelta.attacker.replays import CoarseRollout, FullRollout, OneStep
from undelta.cli import app
from undelta.client.disclose import disclose, disclose_with_secrets
from undelta.client.private import Private, save_private
from undelta.client.scenario import Scenario
from undelta.engine import MEMORY
from undelta.errors import ConfigError, DataError, MissingKnowledge, ObservationError
from undelta.observation import Observation, together
from undelta.observation.file import digest_of, load_observation, save_observation
from undelta.observation.withhold import pure_noise, without, without_labels
from undelta.seeding import stream
from undelta.studies.audit import plan_recorded
from undelta.studies.tuning.shadow import cast_shadow
from undelta.trials.trial import Recorded

SCENARIO = Scenario(
    data="digits",
    num_samples=4,
    model_arguments={"width": 4, "hidden": 16},
    epochs=2,
    batches=2,
    learning_rate=0.05,
    observed_rounds=3,
)


def seen(dtype: torch.dtype = torch.float32, scenario: Scenario = SCENARIO) -> Observation:
    return disclose(scenario.draw(0), scenario, dtype=dtype)


def slope(method: GradientMatching, observation: Observation) -> tuple[float, Tensor]:
    """The loss at a start that all observations of a client have in common, and its gradient."""
    descent = Descent(method, observation, torch.Generator().manual_seed(0))
    loss = descent._closure(True)
    gradient = descent.variables["images"].grad
    assert gradient is not None
    return loss, gradient


@pytest.mark.parametrize("replay", [CoarseRollout(steps=2), LearnedPosition()], ids=["rollout", "learned position"])
def test_the_loss_of_several_rounds_is_the_mean_over_them(replay: CoarseRollout | LearnedPosition) -> None:
    observation = seen(torch.float64)
    method = GradientMatching(replay=replay, priors=(TotalVariation(weight=0.1),))
    loss, gradient = slope(method, observation)
    alone = [slope(method, one) for one in observation.rounds]
    assert loss == pytest.approx(sum(one for one, _ in alone) / 3, rel=1e-12)
    torch.testing.assert_close(gradient, torch.stack([one for _, one in alone]).mean(0), rtol=1e-10, atol=1e-14)
    descent = Descent(method, observation, torch.Generator().manual_seed(0))
    value, _ = descent.problem.value(descent.images, descent.soft_labels(None))
    assert value.loss == pytest.approx(loss, rel=1e-12)


def test_images_may_follow_the_median_of_the_rounds_pulls() -> None:
    """A round that was spoiled moves the mean, and not the median."""
    first, second, third = seen(torch.float64).rounds
    noise = pure_noise(third, torch.Generator().manual_seed(0))
    method = GradientMatching(replay=OneStep(), fusion="median")
    pulls = [slope(method, one)[1] for one in (first, second, noise)]
    _, fused = slope(method, together([first, second, noise]))
    torch.testing.assert_close(fused, torch.stack(pulls).median(0).values, rtol=1e-12, atol=1e-16)
    _, alone = slope(method, first)
    torch.testing.assert_close(alone, slope(replace(method, fusion="mean"), first)[1], rtol=1e-12, atol=1e-16)
    with pytest.raises(ConfigError, match="fusion mean or median"):
        GradientMatching(replay=OneStep(), fusion="krum")  # type: ignore[arg-type]


def test_every_round_learns_variables_of_its_own() -> None:
    result = sme(steps=30)(seen())
    assert set(result.learned) == {"position", "position of round 2", "position of round 3"}
    assert len(set(map(float, result.learned.values()))) == 3, "they moved together"


def test_the_truth_explains_all_rounds_where_replays_are_exact() -> None:
    scenario = replace(SCENARIO, batches=1)
    private = scenario.draw(0)
    observation = disclose(private, scenario, dtype=torch.float64)
    descent = Descent(GradientMatching(replay=FullRollout()), observation, stream("test"))
    value = descent.problem.at(private.images, private.labels)
    assert value.mismatch < 1e-12
    one, two = (descent.problem.rounds[number].replay.start for number in (0, 1))
    assert any(not torch.equal(one[name], two[name]) for name in one), "the rounds begin at different parameters"


def test_a_client_alone_begins_each_round_where_the_last_one_ended() -> None:
    first, second, third = seen().rounds
    for earlier, later in ((first, second), (second, third)):
        assert all(torch.equal(earlier.received[name], later.initial[name]) for name in later.initial)
    assert digest_of(first) == digest_of(seen(scenario=replace(SCENARIO, observed_rounds=1)))


def test_other_participants_move_the_model_between_observed_rounds() -> None:
    scenario = replace(SCENARIO, clients=3, participants=2, observed_rounds=2)
    first, second = seen(scenario=scenario).rounds
    assert any(not torch.equal(first.received[name], second.initial[name]) for name in first.received)
    everyone = replace(scenario, participants=1)
    assert digest_of(seen(scenario=everyone).rounds[0]) == digest_of(first), "others do not touch the attacked client"


def test_secrets_are_those_of_the_first_round() -> None:
    private = SCENARIO.draw(0)
    observation, (run,) = disclose_with_secrets(private, SCENARIO)
    assert all(torch.equal(run.state[name], value) for name, value in observation.received.items())


def test_a_file_holds_all_rounds(tmp_path: Path) -> None:
    observation = together([seen().rounds[0], *seen(scenario=replace(SCENARIO, learning_rate=0.01)).rounds[1:]])
    save_observation(observation, tmp_path / "seen.safetensors")
    found = load_observation(tmp_path / "seen.safetensors")
    assert digest_of(found) == digest_of(observation) != digest_of(observation.rounds[0])
    assert [one.training.learning_rate for one in found.rounds] == [0.05, 0.01, 0.01]
    assert torch.equal(found.rounds[2].received["fc1.weight"], observation.rounds[2].received["fc1.weight"])


def test_rounds_are_joined_on_the_command_line(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.safetensors" for number in range(3)]
    for path, one in zip(paths, seen().rounds, strict=True):
        save_observation(one, path)
    words = ["join", *map(str, paths), "--out", str(tmp_path / "all.safetensors")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "3 rounds" in done.output
    assert digest_of(load_observation(tmp_path / "all.safetensors")) == digest_of(seen())
    truth = tmp_path / "truth.safetensors"
    save_private(SCENARIO.draw(0), truth, {"observed_rounds": 1}, seen().rounds[1])
    recorded = Recorded.of(tmp_path / "all.safetensors", truth=truth)
    assert recorded.about["observed_rounds"] == 3  # epsilon counts these
    twice = CliRunner().invoke(app, ["join", str(paths[0]), str(paths[0]), "--out", str(tmp_path / "twice")])
    assert twice.exit_code != 0
    with pytest.raises(DataError, match="another observation"):
        Recorded.of(paths[0], truth=truth)
    again = CliRunner().invoke(app, [*words[:-1], str(paths[0])])
    assert again.exit_code != 0
    assert digest_of(load_observation(paths[0])) == digest_of(seen().rounds[0])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_samples": 6}, "number of samples (4, 6)"),
        ({"epochs": 3}, "local epochs"),
        ({"optimizer": "adam"}, "optimizer"),
        ({"model_arguments": {"width": 2, "hidden": 16}}, "model"),
        ({"grant_labels": False}, "labels"),
        ({"image_size": 12}, "kind of images"),
    ],
)
def test_what_cannot_be_the_same_client_is_refused(change: dict[str, object], words: str) -> None:
    other = seen(scenario=replace(SCENARIO, **change))  # type: ignore[arg-type]
    with pytest.raises(ObservationError, match="not rounds of one client") as caught:
        together([seen(), other])
    assert words in str(caught.value)


def test_other_labels_are_other_data() -> None:
    other = disclose(SCENARIO.draw(1), SCENARIO)
    with pytest.raises(ObservationError, match="labels"):
        together([seen(), other])


def test_a_round_with_other_images_shows_in_the_notes() -> None:
    # Nobody can tell beforehand: as many images, and no labels to compare.
    scenario = replace(SCENARIO, epochs=1, batches=1, num_samples=1, observed_rounds=2)
    private = scenario.draw(0)
    kept, _ = without_labels(disclose(private, scenario)).rounds
    changed = without_labels(disclose(Private(images=1 - private.images, labels=private.labels), scenario)).rounds[1]
    method = GradientMatching(replay=FullRollout(), labels=label_source("idlg"))
    descent = Descent(method, together([kept, changed]), stream("test"))
    inputs = kept.image.normalize(private.images)
    (note,) = descent.problem.doubts(inputs, private.labels)
    assert "round 2" in note
    assert "may have changed" in note
    same = Descent(method, without_labels(disclose(private, scenario)), stream("test"))
    assert same.problem.doubts(inputs, private.labels) == ()


@pytest.mark.parametrize(
    "withhold",
    [
        lambda one: pure_noise(one, torch.Generator().manual_seed(0)),
        lambda one: without(one, "learning_rate"),
        without_labels,
    ],
)
def test_what_is_withheld_is_withheld_in_every_round(withhold: Callable[[Observation], Observation]) -> None:
    observation = seen()
    less = withhold(observation)
    assert len(less.rounds) == 3
    for before, after in zip(observation.rounds, less.rounds, strict=True):
        same_update = all(torch.equal(value, after.received[name]) for name, value in before.received.items())
        assert (after.labels is None, after.unknown != (), not same_update).count(True) == 1


def test_a_single_epoch_of_mini_batches_is_not_rolled_out_in_one_order_for_all_rounds() -> None:
    scenario = replace(SCENARIO, epochs=1, batches=2)
    attack = strongest(steps=2, macro_steps=2)
    for rounds, part in ((1, FullRollout()), (2, CoarseRollout(steps=2))):
        observation = seen(scenario=replace(scenario, observed_rounds=rounds))
        guess = attack.midpoint(observation)
        method = method_of(attack.midpoint)
        assert attack._replay(observation, guess, method, MEMORY, learned=False) == (part, True)


def test_rounds_whose_length_is_unknown_learn_one_each() -> None:
    observation = without(seen(scenario=replace(SCENARIO, learning_rate=1.0)), "learning_rate")
    result = strongest(steps=20, rollout_steps=10, macro_steps=2, weights="flat")(observation)
    assert result.objective is not None
    assert result.objective["replay"]["part"] == "LearnedLength"
    assert set(result.learned) == {"log_length", "log_length of round 2", "log_length of round 3"}


def test_a_shadow_of_several_rounds_has_none_of_the_clients() -> None:
    observation = seen()
    assert cast_shadow(observation, "digits", seed=0).observation.further == ()
    with pytest.raises(MissingKnowledge, match="batches"):
        cast_shadow(without(observation, "batches"), "digits", seed=0)


def test_noise_in_place_of_several_rounds_tells_nothing_of_where_they_led() -> None:
    observation = seen()
    for one in pure_noise(observation, torch.Generator().manual_seed(0)).rounds:
        assert all(torch.equal(one.initial[name], value) for name, value in observation.initial.items())


def test_the_truths_of_joined_rounds_must_be_one(tmp_path: Path) -> None:
    first, second, _ = seen().rounds
    save_observation(together([first, second]), tmp_path / "both.safetensors")
    truths = [tmp_path / "first.safetensors", tmp_path / "second.safetensors"]
    save_private(SCENARIO.draw(0), truths[0], {}, first)
    save_private(SCENARIO.draw(0), truths[1], {}, second)
    (trial,) = plan_recorded([tmp_path / "both.safetensors"], truths=truths).trials
    assert isinstance(trial.scenario, Recorded)
    assert trial.scenario.truth is not None
    save_private(SCENARIO.draw(1), truths[1], {}, second)
    with pytest.raises(ConfigError, match="data changed"):
        plan_recorded([tmp_path / "both.safetensors"], truths=truths)


def test_privacy_counts_every_observed_round() -> None:
    private = replace(
        SCENARIO,
        observed_rounds=1,
        defenses=({"defense": "dp_sgd", "noise_multiplier": 1.0, "norm": 1.0, "delta": 1e-5},),
    )
    one, three = private.privacy(), replace(private, observed_rounds=3).privacy()
    assert one is not None
    assert three == private.privacy(rounds=3) != one


@pytest.mark.parametrize("rounds", [0, 10**9])
def test_rounds_have_bounds(rounds: int) -> None:
    with pytest.raises(ConfigError, match="observed_rounds"):
        replace(SCENARIO, observed_rounds=rounds)
