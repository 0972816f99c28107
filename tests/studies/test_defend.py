"""`undelta defend`: the ladder, the accuracy on held-out images, the points, and a run from start to end."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from undelta.cli.console import print_tradeoff
from undelta.client.defenses import DEFENSES, DpSgd
from undelta.client.disclose import disclose
from undelta.client.federation import federate, initial_model
from undelta.client.scenario import Scenario
from undelta.errors import ConfigError
from undelta.studies import defend, utility
from undelta.studies.defend import defend_job, load_file, plan_of
from undelta.studies.ladder import ladder, noise_for, reference
from undelta.studies.utility import Federation, accuracy, measure, measure_all
from undelta.trials.plan import load_plan
from undelta.trials.pool import Workers
from undelta.trials.record import REFERENCE, versions
from undelta.trials.tradeoff import Point, compare, read_tradeoff, sentences
from undelta.updates import difference, inner

SCENARIO = Scenario(
    data="digits",
    num_samples=8,
    model="mlp",
    model_arguments={"hidden": [16]},
    epochs=2,
    batches=2,
    learning_rate=0.1,
    clients=3,
    participants=3,
)

TOML = """
name = "Small"
rounds = 2
seeds = [0, 1]

[scenario]
data = "digits"
num_samples = 3
model = "mlp"
model_arguments = { hidden = [8] }
epochs = 1
batches = 1
learning_rate = 0.1
clients = 2
participants = 2

[[attacks]]
attack = "ig"
steps = 3

[[defenses]]
name = "short"
defenses = [{ defense = "clipping", norm = 0.01 }]

[[defenses]]
name = "private"
defenses = [{ defense = "dp_sgd", noise_multiplier = 2.0 }]

[[defenses]]
name = "summed"
aggregate = 2
"""


def write(path: Path, text: str = TOML) -> Path:
    path.write_text(text)
    return path


def point(defense: str, psnr: float | None, accuracy: float | None, **fields: Any) -> Point:
    unset: dict[str, Any] = dict.fromkeys(("worst_psnr", "worst_ssim", "fraction_recovered", "epsilon"))
    unset |= dict.fromkeys(("attack", "recognizable", "images", "epsilon_in_all", "delta"))
    return Point(defense=defense, psnr=psnr, accuracy=accuracy, accuracies=(), **{**unset, **fields})


# Utility


def test_held_out_images_are_no_clients_images() -> None:
    clients, test = SCENARIO.draw_all(5), SCENARIO.draw_held_out(5, 10_000)
    pictures = [image.numpy().tobytes() for client in clients for image in client.images]
    held_out = [image.numpy().tobytes() for image in test.images]
    assert len(pictures) + len(held_out) == 1797
    assert not set(pictures) & set(held_out)
    assert torch.equal(SCENARIO.draw_held_out(5, 7).images, test.images[:7])


def test_accuracy_is_the_share_of_right_answers_of_the_federations_model() -> None:
    federation = Federation.of(SCENARIO, rounds=4, seed=0)
    result = measure(federation)
    image, test = SCENARIO.image_spec(), SCENARIO.draw_held_out(0, 1000)
    model = federate(replace(SCENARIO, rounds=4), SCENARIO.draw_all(0), image, seed=0, dtype=torch.float32)
    pairs = zip(test.images, test.labels, strict=True)
    right = [int(model((one - 0.5)[None] / 0.25).argmax()) == int(label) for one, label in pairs]
    assert result.accuracy == pytest.approx(sum(right) / 1000)
    assert (result.test_images, result.error, result.rounds) == (1000, None, 4)
    untrained = accuracy(initial_model(SCENARIO, image, seed=0, dtype=torch.float32), test, image, SCENARIO)
    assert (result.accuracy or 0) > untrained + 0.1


def test_a_defense_that_destroys_the_update_costs_accuracy() -> None:
    noisy = replace(SCENARIO, defenses=({"defense": "noise", "scale": 1.0},))
    results = [measure(Federation.of(scenario, rounds=4, seed=0)).accuracy for scenario in (SCENARIO, noisy)]
    assert (results[0] or 0) > (results[1] or 0) + 0.1


def test_statistics_that_nobody_sends_are_not_used_for_testing_and_others_are() -> None:
    scenario = replace(SCENARIO, model="convnet", model_arguments={"width": 4})
    withheld = replace(scenario, defenses=({"defense": "withholding"},))
    image, test = scenario.image_spec(), scenario.draw_held_out(0, 60)
    for tested, mode in ((withheld, True), (scenario, False)):
        model = initial_model(scenario, image, seed=0, dtype=torch.float32)
        model.train(mode)
        with torch.no_grad():
            answers = model(image.normalize(test.images)).argmax(1)
        model = initial_model(scenario, image, seed=0, dtype=torch.float32)
        assert accuracy(model, test, image, tested) == pytest.approx(float((answers == test.labels).float().mean()))
        assert {module.training for module in model.modules() if isinstance(module, nn.BatchNorm2d)} == {mode}


def test_statistics_that_training_never_used_are_those_to_test_with() -> None:
    scenario = replace(SCENARIO, model="convnet", model_arguments={"width": 4}, norm_mode="eval")
    image, test = scenario.image_spec(), scenario.draw_held_out(0, 40)
    withheld = replace(scenario, defenses=({"defense": "withholding"},))
    model = initial_model(scenario, image, seed=0, dtype=torch.float32)
    assert accuracy(model, test, image, withheld) == accuracy(model, test, image, scenario)
    assert not any(module.training for module in model.modules())


def test_test_images_are_normalized_in_chunks_of_equal_sizes_and_never_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = replace(SCENARIO, model="convnet", model_arguments={"width": 4}, defenses=({"defense": "withholding"},))
    image, test = scenario.image_spec(), scenario.draw_held_out(0, 41)
    monkeypatch.setattr(utility, "CHUNK", 20)
    sizes: list[int] = []
    model = initial_model(scenario, image, seed=0, dtype=torch.float32)
    model.register_forward_hook(lambda _module, inputs, _output: sizes.append(len(inputs[0])))
    accuracy(model, test, image, scenario)
    assert sorted(sizes) == [13, 14, 14]
    alone = replace(test, images=test.images[:1], labels=test.labels[:1])
    with pytest.raises(ConfigError, match="expected at least two test images"):
        accuracy(model, alone, image, scenario)


def test_federations_that_train_alike_are_measured_once() -> None:
    one = Federation.of(replace(SCENARIO, aggregate=2, grant_labels=False, rounds=3), rounds=2, seed=0)
    assert one.key == Federation.of(SCENARIO, rounds=2, seed=0).key
    assert one.key != Federation.of(SCENARIO, rounds=3, seed=0).key
    assert one.key != Federation.of(SCENARIO, rounds=2, seed=1).key
    assert one.key != Federation.of(replace(SCENARIO, epochs=3), rounds=2, seed=0).key


def test_without_images_left_there_is_no_accuracy_but_a_reason() -> None:
    result = measure(Federation.of(Scenario(data="photos", num_samples=8), rounds=1, seed=0))
    assert (result.accuracy, result.test_images) == (None, 0)
    assert "none is left to test with" in (result.error or "")


def test_what_is_measured_is_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    federations = [Federation.of(SCENARIO, rounds=1, seed=seed) for seed in (0, 1)]
    said: list[str] = []
    half = tmp_path / "utility" / federations[0].key / f".utility.json.{'0' * 16}"  # whoever wrote it was killed
    half.parent.mkdir(parents=True)
    half.touch()
    first = measure_all(tmp_path, federations, Workers(count=1), say=said.append)
    assert said == ["Measuring utility: 2 of 2 federations to train."]
    assert sorted(path.name for path in tmp_path.glob("utility/*/*")) == ["utility.json"] * 2
    monkeypatch.setattr(utility, "measure", lambda _: pytest.fail("measured again"))
    assert measure_all(tmp_path, federations, Workers(count=1), say=said.append) == first
    assert len(said) == 1


def test_several_workers_measure_the_same(tmp_path: Path) -> None:
    federations = [Federation.of(SCENARIO, rounds=1, seed=seed) for seed in (0, 1, 2)]
    alone = measure_all(tmp_path / "a", federations, Workers(count=1), say=lambda _: None)
    shared = measure_all(tmp_path / "b", federations, Workers(count=2), say=lambda _: None)
    assert {key: one.accuracy for key, one in alone.items()} == {key: one.accuracy for key, one in shared.items()}


# The ladder


def test_the_ladder_has_every_defense_and_the_plain_fields() -> None:
    rungs, notes = ladder(SCENARIO, seed=0)
    used = {table["defense"] for rung in rungs for table in rung.get("defenses", [])}
    assert used == set(DEFENSES) - {"withholding", "top_k", "pure_noise"}  # no BatchNorm here; pruning is top-k
    fields = {key for rung in rungs for key in rung} - {"name", "defenses"}
    assert fields == {"batches", "epochs", "learning_rate", "aggregate"}
    assert len({rung["name"] for rung in rungs}) == len(rungs)
    assert notes == []


def rung_of(scenario: Scenario, name: str) -> dict[str, Any] | None:
    return next((rung for rung in ladder(scenario, seed=0)[0] if rung["name"] == name), None)


def test_the_ladder_offers_twice_the_mini_batches_where_every_client_can_fill_them() -> None:
    name = "twice the mini-batches"
    assert rung_of(SCENARIO, name) == {"name": name, "batches": 4}
    assert rung_of(replace(SCENARIO, batches=4), name) == {"name": name, "batches": 8}  # one image each
    assert rung_of(replace(SCENARIO, batches=5), name) is None
    assert rung_of(replace(SCENARIO, client_samples=(8, 3, 8)), name) is None


def test_the_ladder_offers_averages_of_more_clients_than_the_scenario_averages() -> None:
    def averages(**fields: Any) -> list[int]:
        rungs, _ = ladder(replace(SCENARIO, **fields), seed=0)
        return [rung["aggregate"] for rung in rungs if "aggregate" in rung]

    assert averages() == [2, 3]  # there are but three
    assert averages(clients=8) == [2, 4]
    assert averages(clients=8, aggregate=2) == [4]
    assert averages(clients=8, aggregate=4) == []
    assert averages(clients=1, participants=1) == []


def test_the_level_of_noise_is_as_long_as_what_the_scenario_itself_sends() -> None:
    own = replace(SCENARIO, defenses=({"defense": "clipping", "norm": 0.02},))
    noise = replace(own, defenses=tuple(reference(own)["defenses"]))
    observation = disclose(noise.draw(0), noise)
    update = difference(observation.received, observation.initial, list(observation.received))
    assert float(inner(update, update).sqrt()) == pytest.approx(0.02, rel=1e-4)
    clipped = [rung["defenses"][-1]["norm"] for rung in ladder(own, seed=0)[0] if rung["name"].startswith("clipping")]
    assert clipped == [0.01, 0.002]


def test_the_ladder_of_a_batchnorm_model_offers_groupnorm_and_uses_it_for_dp_sgd() -> None:
    scenario = replace(SCENARIO, model="convnet", model_arguments={"width": 2}, batches=1)
    rungs, notes = ladder(scenario, seed=0)
    grouped = {rung["name"] for rung in rungs if rung.get("model_arguments") == {"width": 2, "norm": "group"}}
    assert "GroupNorm" in grouped
    assert len([name for name in grouped if name.startswith("dp_sgd")]) == 3
    assert "no BatchNorm statistics" in {rung["name"] for rung in rungs}
    assert notes == []


def test_a_scenarios_own_defenses_stay_and_what_does_not_go_with_them_is_left_out() -> None:
    own = {"defense": "soteria", "ratio": 0.1}
    rungs, notes = ladder(replace(SCENARIO, defenses=(own,)), seed=0)
    assert all(rung["defenses"][0] == own for rung in rungs if "defenses" in rung)
    assert len([note for note in notes if "at most one of soteria and dp_sgd" in note]) == 5


@pytest.mark.parametrize("epsilon", [50.0, 8.0, 1.0])
def test_the_noise_for_an_epsilon_gives_it_and_less_noise_does_not(epsilon: float) -> None:
    multiplier = noise_for(SCENARIO, epsilon)
    spent = [DpSgd(noise_multiplier=m).epsilon(SCENARIO.training, rounds=1) for m in (multiplier, 0.98 * multiplier)]
    assert spent[0] is not None
    assert spent[1] is not None
    assert spent[0] <= epsilon < spent[1]


def test_the_audit_behind_it_is_a_configuration_of_its_own(tmp_path: Path) -> None:
    plan, _ = plan_of(load_file(write(tmp_path / "a.toml")), where="a.toml")
    again = tmp_path / "audit.toml"
    again.write_text(plan.text)
    assert load_plan(again).keys == plan.keys
    assert [table["name"] for table in tomllib.loads(plan.text)["defenses"]] == [
        "short",
        "private",
        "summed",
        REFERENCE,
    ]


def test_a_scenario_alone_is_enough_and_mistakes_are_one_line(tmp_path: Path) -> None:
    alone = load_file(write(tmp_path / "s.toml", 'data = "digits"\nrounds = 3\n'))
    assert (dict(alone.scenario), alone.rounds) == ({"data": "digits", "rounds": 3}, defend.ROUNDS)
    for text, message in (
        ('data = "digits"\nepocs = 3\n', "unknown key 'epocs'"),
        (TOML.replace("rounds = 2", "rounds = 0"), "expected rounds >= 1"),
        (TOML.replace("norm = 0.01", "norm = -1.0"), r"'short'.*expected 0 < norm"),
        (TOML.replace('"mlp"', '"cnn"').replace("hidden = [8]", 'norm = "batch"'), r"'private'.*use GroupNorm"),
    ):
        path = write(tmp_path / "wrong.toml", text)
        with pytest.raises(ConfigError, match=message):
            plan_of(load_file(path), where="wrong.toml")


# Points


def test_the_pareto_front_is_what_nothing_beats_in_both() -> None:
    values = {"a": (30.0, 0.9), "b": (20.0, 0.9), "c": (10.0, 0.5), "d": (15.0, 0.4), "e": (20.0, 0.9)}
    points = compare([point(name, *pair) for name, pair in values.items()], point("noise", 9.5, 0.1))
    assert [one.defense for one in points if one.pareto] == ["b", "c", "e"]
    assert [one.defense for one in points if one.at_noise_level] == ["c"]


def test_what_was_not_measured_is_neither_on_the_front_nor_at_the_level_of_noise() -> None:
    (one, two) = compare([point("a", None, 0.9), point("b", 10.0, None)], point("noise", None, None))
    assert (one.pareto, two.pareto, one.at_noise_level, two.at_noise_level) == (False, False, None, None)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("defend")
    defend_job(write(directory / "small.toml"), out=directory / "out", workers=Workers(count=1), bound=True)
    return directory


def test_a_run_from_start_to_end(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = read_tradeoff(finished / "out")
    assert result is not None
    assert [one.defense for one in result.points] == ["none", "short", "private", "summed"]
    assert result.reference.defense == REFERENCE
    records = [json.loads(path.read_text()) for path in (finished / "out").glob("trials/*/record.json")]
    assert result.date == max(record["date"] for record in records)
    assert result.versions == versions()
    for one in (*result.points, result.reference):
        own = [record for record in records if record["defense"] == one.defense]
        assert one.psnr == max(record["psnr"] for record in own)
        assert one.worst_psnr == max(image["psnr"] for record in own for image in record["images"])
        assert len(one.accuracies) == 2
        assert one.accuracy == pytest.approx(sum(one.accuracies) / 2)
    private = result.points[2]
    defense = DpSgd(noise_multiplier=2.0)
    training = Scenario(data="digits", epochs=1, batches=1).training
    assert private.epsilon == pytest.approx(defense.epsilon(training, rounds=1))
    assert private.epsilon_in_all == pytest.approx(defense.epsilon(training, rounds=2))
    assert (private.delta, result.points[0].delta) == (1e-5, None)
    assert result.points[3].accuracies == result.points[0].accuracies, "aggregation costs no accuracy"
    done = defend_job(finished / "small.toml", out=finished / "out", workers=Workers(count=1))
    print_tradeoff(done.tradeoff)
    shown = capsys.readouterr().out
    for word in ("private", "epsilon", "accuracy", REFERENCE.split()[0]):
        assert word in shown
    assert any("From the scenario's own update" in line for line in sentences(done.tradeoff))


def test_every_defense_has_a_ceiling_beside_its_leakage_or_the_reason_why_not(finished: Path) -> None:
    result = read_tradeoff(finished / "out")
    assert result is not None
    none, short, private, summed = (one.bound for one in result.points)
    assert none is not None
    assert short is not None
    assert private is not None
    assert private.row is not None
    assert private.row.sigma == pytest.approx(2.0 * 0.1 / 3)  # one step of η z C/N
    assert (summed and summed.reason) == "expected one client and one observed round, got a scenario with several"
    nothing = result.reference.bound
    assert nothing is not None
    assert nothing.row is not None
    assert nothing.row.fixed == 0
    assert "nothing of the update is sent" in nothing.text
    assert nothing.row.ceiling < private.row.ceiling + 1
    records = [json.loads(path.read_text()) for path in (finished / "out").glob("trials/*/record.json")]
    for one in (*result.points, result.reference):
        if one.bound and one.bound.row:
            seed = one.bound.row.seed
            reached = max(item["psnr"] for item in records if (item["defense"], item["seed"]) == (one.defense, seed))
            assert one.bound.row.reached == reached
            assert one.headroom == pytest.approx((one.ceiling or 0) - reached)
    said = sentences(result)
    assert any(line.startswith("Ceiling: ") for line in said)
    assert "No bound for summed: expected one client and one observed round, got a scenario with several." in said
    assert len(list((finished / "out").glob("bounds/*/bound.json"))) == 10, "one for each update, of both seeds"


def test_a_second_run_does_nothing_again(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {path: path.stat().st_mtime_ns for path in (finished / "out").glob("*/*/*.json")}
    monkeypatch.setattr(utility, "measure", lambda _: pytest.fail("measured again"))
    defend_job(finished / "small.toml", out=finished / "out", workers=Workers(count=1))
    assert files == {path: path.stat().st_mtime_ns for path in (finished / "out").glob("*/*/*.json")}


def test_options_take_the_place_of_the_files_own(tmp_path: Path) -> None:
    done = defend_job(
        write(tmp_path / "a.toml"),
        out=tmp_path / "out",
        attacks=["idlg"],
        rounds=1,
        seeds=[3],
        workers=Workers(count=1),
    )
    assert (done.tradeoff.rounds, done.tradeoff.seeds) == (1, (3,))
    assert all(one.psnr is None for one in done.tradeoff.points), "iDLG does not apply to several images"
    assert all(one.accuracy is not None for one in done.tradeoff.points)
