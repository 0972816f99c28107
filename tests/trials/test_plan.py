"""An audit's configuration: what it multiplies out to, and that every mistake is one line before any work."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from undelta.client.scenario import Scenario
from undelta.errors import ConfigError
from undelta.training import spelled
from undelta.trials.diagnosis import Thresholds
from undelta.trials.plan import load_plan
from undelta.trials.trial import Trial

BASE = """
name = "test"
[scenario]
data = "faces"
image_size = 8
num_samples = 4
model = "mlp"
batches = 2
"""
ATTACK = """
[[attacks]]
attack = "awa"
steps = 3
"""


def plan_of(tmp_path: Path, text: str) -> list[Trial]:
    path = tmp_path / "audit.toml"
    path.write_text(text)
    return list(load_plan(path).trials)


def complaint(tmp_path: Path, text: str) -> str:
    path = tmp_path / "audit.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_plan(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert sorted(found.name for found in tmp_path.iterdir()) == ["audit.toml"]
    return str(caught.value)


# What it means


def test_scenarios_attacks_defenses_and_seeds_are_multiplied_out(tmp_path: Path) -> None:
    trials = plan_of(
        tmp_path,
        BASE.replace('"test"', '"test"\nseeds = [3, 5]')
        + "[vary]\nepochs = [1, 2]\nnorm_mode = ['train', 'eval']\n"
        + '[[defenses]]\nname = "one batch"\nbatches = 1\n'
        + ATTACK
        + '[[attacks]]\nattack = "ig"\nsteps = 2\n',
    )
    assert len(trials) == 4 * 2 * 2 * 2
    assert len({trial.key for trial in trials}) == len(trials)
    assert list(dict.fromkeys(trial.name for trial in trials)) == [
        "epochs=1, norm_mode=train",
        "epochs=1, norm_mode=eval",
        "epochs=2, norm_mode=train",
        "epochs=2, norm_mode=eval",
    ]
    first, last = trials[0], trials[-1]
    assert (first.defense, first.attack, first.arguments, first.seed) == ("none", "awa", {"steps": 3}, 3)
    assert (first.simulated.epochs, first.simulated.batches, first.simulated.data) == (1, 2, "faces")
    assert (last.defense, last.attack, last.arguments, last.seed) == ("one batch", "ig", {"steps": 2}, 5)
    assert (last.simulated.epochs, last.simulated.batches, last.simulated.norm_mode) == (2, 1, "eval")


def test_named_scenarios_come_besides_varied_ones(tmp_path: Path) -> None:
    named = '[[scenarios]]\nname = "pretrained"\nrounds = 1\n'
    assert [trial.name for trial in plan_of(tmp_path, BASE + named + ATTACK)] == ["pretrained"]
    trials = plan_of(tmp_path, BASE + "[vary]\nepochs = [3]\n" + named + ATTACK)
    assert [(trial.name, trial.simulated.epochs, trial.simulated.rounds) for trial in trials] == [
        ("epochs=3", 3, 0),
        ("pretrained", Scenario().epochs, 1),
    ]


def test_a_single_scenario_needs_no_name(tmp_path: Path) -> None:
    (trial,) = plan_of(tmp_path, BASE + ATTACK)
    assert (trial.name, trial.defense, trial.seed) == ("4 images of faces, mlp, 10 epochs of 2 batches", "none", 0)


def test_undefended_scenarios_may_be_left_out(tmp_path: Path) -> None:
    text = BASE.replace('"test"', '"test"\ninclude_undefended = false') + ATTACK
    trials = plan_of(tmp_path, text + '[[defenses]]\nname = "d"\nbatches = 1\n')
    assert [trial.defense for trial in trials] == ["d"]
    assert "include_undefended" in complaint(tmp_path, text)


def test_values_in_names_read_as_in_toml(tmp_path: Path) -> None:
    text = BASE + "[vary]\nmodel_arguments = [{ hidden = [2, 3] }]\ngrant_labels = [false]\nlearning_rate = [0.5]\n"
    (trial,) = plan_of(tmp_path, text + ATTACK)
    assert trial.name == "model_arguments={hidden=[2, 3]}, grant_labels=false, learning_rate=0.5"


def test_thresholds_are_read(tmp_path: Path) -> None:
    path = tmp_path / "audit.toml"
    path.write_text(BASE + ATTACK + "[verdict]\nssim = 0.7\n")
    assert load_plan(path).thresholds == Thresholds(ssim=0.7, psnr=20.0)


def test_combinations_with_the_same_content_run_once_and_are_named(tmp_path: Path) -> None:
    path = tmp_path / "audit.toml"
    path.write_text(BASE + "[vary]\nbatches = [1, 2]\n" + '[[defenses]]\nname = "one"\nbatches = 1\n' + ATTACK)
    plan = load_plan(path)
    assert (len(plan.trials), len(plan.keys)) == (4, 2)
    assert plan.repeats() == [
        "'batches=1' with 'one' is the same as 'batches=1', which runs for both",
        "'batches=2' with 'one' is the same as 'batches=1', which runs for both",
    ]


def test_the_example_in_the_repository_is_sound() -> None:
    plan = load_plan(Path(__file__).parents[2] / "examples" / "audit.toml")
    assert plan.repeats() == []
    assert len(plan.keys) >= 4


# Keys


def test_a_key_is_the_digest_of_the_content_and_ignores_names() -> None:
    trial = Trial(scenario=Scenario(), attack="awa", arguments={"steps": 2}, seed=1)
    content = {
        "scenario": spelled(trial.simulated),
        "attack": "awa",
        "arguments": {"steps": 2},
        "seed": 1,
    }
    expected = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    assert trial.key == expected
    assert replace(trial, name="x", defense="y").key == expected
    others = [
        replace(trial, seed=2),
        replace(trial, attack="ig"),
        replace(trial, arguments={"steps": 3}),
        replace(trial, scenario=Scenario(epochs=3)),
    ]
    assert len({trial.key, *(other.key for other in others)}) == 5


# Mistakes


@pytest.mark.parametrize(
    ("wrong", "complaints"),
    [
        (BASE, ["missing attacks"]),
        ("attacks = []\n" + BASE, ["attacks: expected at least one"]),
        (BASE + ATTACK.replace("awa", "awaa"), ["attacks[0]", "unknown attack 'awaa'", "'awa'", "strongest"]),
        (BASE + ATTACK.replace("steps", "stepz"), ["attacks[0]", "unknown key 'stepz'", "'steps'", "learning_rate"]),
        (BASE + ATTACK.replace("= 3", "= 0"), ["attacks[0]", "steps >= 1"]),
        (BASE + "[[attacks]]\nsteps = 3\n", ["attacks[0]: attack: expected a name", "None"]),
        (BASE + ATTACK + ATTACK, ["attacks[1]: awa with the same settings comes twice"]),
        (BASE.replace("mlp", "mpl") + ATTACK, ["[scenario]: model: unknown model 'mpl'", "mlp", "resnet18"]),
        (BASE + "model_arguments = { depth = 3 }\n" + ATTACK, ["model", "depth", "hidden"]),
        (BASE + "epocs = 3\n" + ATTACK, ["[scenario]: unknown key 'epocs'", "'epochs'", "learning_rate"]),
        (BASE.replace("faces", "facez") + ATTACK, ["data: no data source 'facez'", "photos, patches, faces, digits"]),
        (BASE.replace("= 4", "= 201") + ATTACK, ["num_samples: expected at most the 200 pictures of faces, got 201"]),
        (BASE + "clients = 60\n" + ATTACK, ["num_samples", "200 pictures", "got 240 by 60 clients"]),
        (BASE + "epochs = 0\n" + ATTACK, ["[scenario]: expected epochs >= 1, got epochs=0"]),
        (BASE + "[vary]\nepochs = [1, 0]\n" + ATTACK, ["scenario 'epochs=0': expected epochs >= 1"]),
        (BASE + "learning_rate = -0.1\n" + ATTACK, ["expected learning_rate > 0, got learning_rate=-0.1"]),
        (BASE + "[vary]\nepocs = [1]\n" + ATTACK, ["[vary]: unknown key 'epocs'", "'epochs'"]),
        (
            BASE
            + "[vary]\n"
            + "".join(f"{key} = {[*range(1, 51)]}\n" for key in ("epochs", "rounds", "image_size"))
            + ATTACK,
            ["[vary]: expected at most 10,000 combinations"],
        ),
        (BASE + "[vary]\nepochs = 1\n" + ATTACK, ["[vary]: epochs: expected a list of values, got 1"]),
        (BASE + "[vary]\nepochs = []\n" + ATTACK, ["[vary]: epochs: expected a list of values"]),
        (BASE + "[vary]\nepochs = ['x']\n" + ATTACK, ["scenario 'epochs=x': epochs: expected a whole number"]),
        (BASE + "[vary]\nepochs = [2, 2]\n" + ATTACK, ["scenarios: the name 'epochs=2' comes twice"]),
        (BASE + "[[scenarios]]\nname = 'a'\n[[scenarios]]\nname = 'a'\nepochs = 2\n" + ATTACK, ["'a' comes twice"]),
        (BASE + "[[scenarios]]\nepochs = 2\n" + ATTACK, ["scenarios[0]: name: expected a text, got None"]),
        (BASE + "[[scenarios]]\nname = 'a'\nepox = 2\n" + ATTACK, ["scenarios[0] (a): unknown key 'epox'", "epochs"]),
        (BASE + "[[defenses]]\nname = 'none'\nbatches = 1\n" + ATTACK, ["defenses: the name 'none' comes twice"]),
        (BASE + "[[defenses]]\nname = 'd'\nnoise = 1\n" + ATTACK, ["defenses[0] (d): unknown key 'noise'"]),
        (
            BASE + "[[defenses]]\nname = 'd'\nbatches = 9\n" + ATTACK,
            ["[scenario] with defense 'd'", "cannot fill 9 mini-batches"],
        ),
        (BASE.replace('"test"', '"test"\nseeds = []') + ATTACK, ["seeds: expected at least one"]),
        (BASE.replace('"test"', '"test"\nseeds = [1, 1]') + ATTACK, ["seeds", "[1, 1]"]),
        (BASE.replace('"test"', '"test"\nseeds = [0.5]') + ATTACK, ["seeds[0]: expected a whole number"]),
        (BASE.replace('"test"', "3") + ATTACK, ["name: expected a text, got 3"]),
        (BASE.replace('name = "test"', "") + ATTACK, ["missing name"]),
        (BASE.replace('"test"', '"test"\nseed = 1') + ATTACK, ["unknown key 'seed'", "'seeds'"]),
        (BASE + ATTACK + "[verdict]\nssim = 2\n", ["verdict: expected 0 < ssim <= 1, got ssim=2.0"]),
        (BASE + ATTACK + "[verdict]\nssin = 0.5\n", ["verdict: unknown key 'ssin'", "'ssim'"]),
        (BASE + ATTACK.replace("= 3", "="), ["not valid TOML"]),
        (
            BASE + "model_arguments = { hidden = [1979-05-27] }\n" + ATTACK,
            ["hidden: expected text or a number, got a date"],
        ),
        (BASE + "loss = 'hinge'\n" + ATTACK, ["loss: unknown value 'hinge'", "cross_entropy"]),
        (BASE.replace('"mlp"', '"nowhere.to_be:found"') + ATTACK, ["model: cannot import", "nowhere"]),
    ],
)
def test_a_mistake_is_one_line_that_names_the_key_and_the_choices(
    tmp_path: Path, wrong: str, complaints: list[str]
) -> None:
    message = complaint(tmp_path, wrong)
    assert "\n" not in message
    for expected in complaints:
        assert expected in message


@pytest.mark.parametrize("vary", ["epochs = 'LONG'", "epochs = ['LONG']"])
def test_a_long_value_is_not_repeated_in_full(tmp_path: Path, vary: str) -> None:
    message = complaint(tmp_path, BASE + "[vary]\n" + vary.replace("LONG", "x" * 5000) + "\n" + ATTACK)
    assert "epochs" in message
    assert len(message) < 500


def test_a_scenario_alone_is_told_what_an_audit_needs(tmp_path: Path) -> None:
    assert "an audit has them below [scenario]" in complaint(tmp_path, 'data = "faces"\nnum_samples = 2\n')


def test_too_few_classes_are_found_in_every_scenario_not_in_the_first_alone(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"\.toml: scenario 'classes=1': classes: faces has 2 classes, more than classes=1"
    ):
        plan_of(tmp_path, BASE + "[vary]\nclasses = [2, 1]\n" + ATTACK)


def test_a_custom_model_that_refuses_its_arguments_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "models" / "stubborn_model.py"
    module.parent.mkdir()
    module.write_text("def build(width):\n    raise ValueError(f'no such width: {width}')\n")
    monkeypatch.syspath_prepend(module.parent)
    path = tmp_path / "audit.toml"
    text = BASE.replace('"mlp"', '"stubborn_model:build"') + "model_arguments = { width = 3 }\n" + ATTACK
    path.write_text(text)
    with pytest.raises(ConfigError, match="model: no such width: 3"):
        load_plan(path)


def test_a_missing_configuration_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml: No such file"):
        load_plan(tmp_path / "absent.toml")
