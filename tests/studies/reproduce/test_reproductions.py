"""Every reproduction at every scale: which trials it asks for, and that each could run; nothing is computed."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from undelta.errors import ConfigError, DataError
from undelta.studies.reproduce.job import listing, make_plan
from undelta.studies.reproduce.published import Case
from undelta.studies.reproduce.render import _iterations
from undelta.studies.reproduce.reproductions import (
    COMPARISON,
    EPOCHS,
    LABELS,
    LARGE,
    REPRODUCTIONS,
    STAGES,
    STRONGEST,
    TUNED,
    TUNING,
    Asked,
    Reproduction,
    cells_of,
    find_reproductions,
)
from undelta.studies.reproduce.results import Cell, Results
from undelta.studies.reproduce.scales import CPU, PAPER, RESNET18, SCALES, SMOKE, Scale, find_scale
from undelta.studies.reproduce.tuned import TUNING_SEED, tuned_weights
from undelta.trials.config import toml_lines
from undelta.trials.trial import Trial

Q = {"conv": 2.0, "norm": 3.0, "linear": 4.0, "enhanced": 5.0, "p_mean": 0.1, "p_var": 0.2, "other": 1.0}


@pytest.fixture(scope="module")
def imagenet(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder as large as the paper scale asks for; the pictures are one pixel each, and no trial reads them."""
    folder = tmp_path_factory.mktemp("imagenet")
    for number in range(128):
        path = folder / f"class{number % 4}" / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(np.zeros((1, 1, 3), dtype=np.uint8)).save(path)
    return str(folder)


def cells(reproduction: Reproduction, scale: Scale, data: str = "DATA", seeds: tuple[int, ...] = (0,)) -> list[Cell]:
    return cells_of(reproduction, scale, data=data, seeds=seeds, tuned=Q)


def trials(reproduction: Reproduction, scale: Scale) -> list[Trial]:
    return [trial for cell in cells(reproduction, scale) for trial in cell.trials]


@pytest.mark.parametrize("name", REPRODUCTIONS)
@pytest.mark.parametrize("scale", SCALES)
def test_every_trial_of_every_scale_could_run(name: str, scale: str, imagenet: str) -> None:
    data = SCALES[scale].data or imagenet
    plan = make_plan(Asked(scale=scale, data=data, seeds=(0, 1), names=(name,)), Q)
    assert len(plan.trials) == len(plan.keys) > 0
    assert {trial.simulated.data for trial in plan.trials} == {data}


@pytest.mark.parametrize("name", REPRODUCTIONS)
@pytest.mark.parametrize("scale", SCALES)
def test_cases_that_differ_in_the_paper_differ_at_every_scale(name: str, scale: str) -> None:
    """Else two rows of a table would be one."""
    found = cells(REPRODUCTIONS[name], SCALES[scale])
    assert len({cell.here for cell in found}) == len({cell.row for cell in found})
    keys = [trial.key for cell in found for trial in cell.trials]
    assert len(set(keys)) == len(keys)


def test_the_paper_scale_is_the_papers_setting() -> None:
    for trial in trials(COMPARISON, PAPER):
        scenario = trial.simulated
        assert (scenario.model, scenario.image_size, scenario.learning_rate) == ("resnet18", 224, 1e-4)
        assert scenario.model_arguments == {}
        assert trial.name == f"N={scenario.num_samples}, E={scenario.epochs}, B={scenario.batches}"
        if trial.attack != "strongest":
            assert (trial.arguments["steps"], trial.arguments["learning_rate"]) == (10_000, 0.1)
    large = [trial for trial in trials(LARGE, PAPER) if is_the_papers(trial)]
    assert [trial.arguments["steps"] for trial in large] == [50_000]
    assert [(t.simulated.num_samples, t.simulated.epochs, t.simulated.batches) for t in large] == [(128, 64, 4)]
    assert [trial.simulated.epochs for trial in trials(EPOCHS, PAPER) if is_the_papers(trial)] == [4, 8, 16, 32]


def is_the_papers(trial: Trial) -> bool:
    """AWA with the paper's Q."""
    return trial.attack == "awa" and "q" not in trial.arguments


def test_the_resnet18_scale_is_the_papers_network_and_client() -> None:
    for trial in trials(COMPARISON, RESNET18):
        scenario = trial.simulated
        assert (scenario.model, scenario.learning_rate, scenario.classes) == ("resnet18", 1e-4, 1000)
        assert trial.name == f"N={scenario.num_samples}, E={scenario.epochs}, B={scenario.batches}"
        assert scenario.num_samples <= 16
    found = {(cell.row, cell.method): cell for cell in cells(COMPARISON, RESNET18)}
    assert found["N=16, E=16, B=4", "AGIC"].trials
    assert found["N=32, E=8, B=4", "AWA"].reason == "not run: more than 16 images take too long here"
    assert found["N=64, E=32, B=4", "AGIC, averaged"].reason == "not run: impractical (paper too)"


def test_layer_weights_are_tuned_on_images_that_no_table_reports(tmp_path: Path) -> None:
    asked = Asked(scale="resnet18", data="folder", seeds=(0,), names=("tuning",))
    assert asked.tuning_scenario()["data"] == "patches"
    first, *_ = cells(TUNING, RESNET18)
    assert asked.tuning_scenario()["epochs"] == first.trials[0].simulated.epochs == 16
    smoke = Asked(scale="smoke", data="faces", seeds=(0, 1), names=("tuning",))
    assert smoke.tuning_scenario()["data"] == "faces"
    assert TUNING_SEED not in smoke.seeds


def test_what_the_paper_leaves_open_can_be_chosen() -> None:
    asked = Asked(
        scale="resnet18",
        data="folder",
        seeds=(0,),
        names=("ablation",),
        scenario={"image_size": 32, "norm_mode": "train", "initial": "trained.safetensors"},
        settings={"tv": 0.2, "depth_weight": 3.0},
    )
    found = [trial for cell in asked.cells("ablation", Q) for trial in cell.trials]
    assert {(t.simulated.image_size, t.simulated.norm_mode, t.simulated.initial) for t in found} == {
        (32, "train", "trained.safetensors")
    }
    assert {trial.arguments["tv"] for trial in found} == {0.2}
    assert not any("depth_weight" in trial.arguments for trial in found)  # AWA has no such setting
    assert asked.tuning_scenario()["image_size"] == 32
    assert asked.tuning_settings == {"setting": "paper", "learning_rate": 1.0, "tv": 0.2, "bn": 0.0}
    assert "but image_size = 32, but norm_mode = train" in asked.says
    with pytest.raises(ConfigError, match="--set: unknown setting 'depth_weight'"):
        asked.check_settings()
    compared = replace(asked, names=("comparison",))  # AGIC has it
    compared.check_settings()
    assert {t.arguments.get("depth_weight") for c in compared.cells("comparison", Q) for t in c.trials} == {None, 3.0}


@pytest.mark.parametrize("name", ["labels", "average", "form", "q", "setting", "nodes"])
def test_settings_by_which_columns_differ_cannot_be_set_for_all(name: str) -> None:
    asked = Asked(scale="smoke", data="faces", seeds=(0,), names=("comparison",), settings={name: "joint"})
    with pytest.raises(ConfigError, match=f"--set {name}: columns of the tables differ by it"):
        asked.check_settings()


def test_a_scale_with_too_few_cases_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected 4 cases of epochs, got 1"):
        cells(EPOCHS, replace(SMOKE, cases={"epochs": ((2, 2, 2),)}))


def test_what_the_paper_found_impractical_is_not_run() -> None:
    found = {(cell.row, cell.method): cell for cell in cells(COMPARISON, CPU)}
    assert len(found) == 80
    for row in ("N=64, E=32, B=4", "N=64, E=32, B=8", "N=128, E=32, B=4", "N=128, E=32, B=8"):
        for method in ("iDLG", "AGIC", "AGIC, averaged"):
            assert found[row, method].trials == ()
            assert found[row, method].reason == "not run: impractical (paper too)"
        assert len(found[row, "GENG"].trials) == len(found[row, STRONGEST].trials) == 1
    assert sum(len(cell.trials) for cell in found.values()) == 80 - 4 * 3


def test_all_methods_of_the_paper_share_optimizer_regularizers_and_most_of_them_iterations() -> None:
    for scale in SCALES.values():
        shared = [
            {key: trial.arguments.get(key) for key in ("learning_rate", "tv", "bn")}
            for trial in trials(COMPARISON, scale)
            if trial.attack != "strongest"
        ]
        assert all(arguments == shared[0] for arguments in shared)
        steps = {cell.method: cell.trials[0].arguments.get("steps") for cell in cells(COMPARISON, scale) if cell.trials}
        for method in (*scale.method_iterations, *scale.method_gradients):
            assert (steps.pop(method) or 0) < scale.iterations  # an iteration costs several times AWA's
        steps.pop(STRONGEST)
        assert set(steps.values()) == {scale.iterations}


def test_methods_that_go_through_all_epochs_take_fewer_iterations_the_more_epochs_there_are() -> None:
    steps = {
        (cell.here, cell.method): cell.trials[0].arguments.get("steps") for cell in cells(COMPARISON, RESNET18)[:32]
    }
    assert [steps[f"N=8, E={epochs}, B=4", "iDLG"] for epochs in (8, 16)] == [150, 75]
    assert [steps[f"N=8, E={epochs}, B=4", "AWA"] for epochs in (8, 16)] == [1000, 1000]


def test_a_table_names_the_fewest_and_the_most_iterations() -> None:
    found = Results(cells=tuple(cells(COMPARISON, RESNET18)))
    assert _iterations(found).startswith("iDLG 75 to 150, AGIC 75 to 150, AGIC, averaged 75 to 150, GENG 1000, ")
    assert _iterations(found).endswith("AWA, Q tuned here 1000, strongest (ours) as by default")


def test_a_run_compares_all_methods_on_one_update_before_it_goes_to_the_next() -> None:
    plan = make_plan(Asked(scale="cpu", data="patches", seeds=(2, 0), names=("comparison",)), Q)
    updates = [(trial.scenario, trial.seed) for trial in plan.trials]
    assert [seed for (_, seed), _ in groupby(updates)] == [2, 0] * 10
    assert [len([*methods]) for _, methods in groupby(updates)] == [8] * 12 + [5] * 8


def test_geng_knows_the_labels_as_the_others_do() -> None:
    """The paper takes them as known; without a word GENG would infer its own."""
    for scale in SCALES.values():
        geng = [trial for trial in trials(COMPARISON, scale) if trial.attack in ("geng_epoch", "geng_path")]
        assert len(geng) == 2 * (10 if scale.most_samples is None else 4)
        assert {trial.arguments["labels"] for trial in geng} == {"disclosed"}


def test_stages_attack_the_same_images_after_more_and_more_rounds() -> None:
    asked = cells(STAGES, SMOKE, data="faces")
    found = [trial.simulated for cell in asked for trial in cell.trials if is_the_papers(trial)]
    assert [scenario.rounds for scenario in found] == [0, 1, 2]
    assert {(scenario.clients, scenario.participants) for scenario in found} == {(4, 4)}
    first, *later = [scenario.draw(0).images for scenario in found]
    assert all((images == first).all() for images in later)


def test_tuned_weights_are_tried_only_once_there_are_some(tmp_path: Path) -> None:
    before = [cell for cell in cells_of(TUNING, SMOKE, data="faces", seeds=(0,)) if cell.method == TUNED]
    assert {cell.reason for cell in before} == {"not tuned yet"}
    assert tuned_weights(tmp_path) is None
    (tmp_path / "tuning").mkdir()
    (tmp_path / "tuning" / "weights.toml").write_text('attack = "awa"\n[q]\n' + "\n".join(toml_lines(Q)))
    assert tuned_weights(tmp_path) == Q
    after = [cell for cell in cells(TUNING, SMOKE) if cell.method == TUNED]
    assert [trial.arguments["q"] for cell in after for trial in cell.trials] == [Q] * 3
    (tmp_path / "tuning" / "weights.toml").write_text("[q]\nconv = -1.0\n")
    with pytest.raises(DataError, match=r"weights.toml: \[q\]"):
        tuned_weights(tmp_path)


@pytest.mark.parametrize("scale", [SMOKE, CPU, RESNET18, PAPER], ids=lambda scale: scale.name)
def test_granted_labels_are_the_trials_that_the_comparison_has_anyway(scale: Scale) -> None:
    compared = {trial.key for trial in trials(COMPARISON, scale)}
    granted, *others = [trial.key in compared for trial in trials(LABELS, scale)]
    assert granted
    assert not any(others)


def test_trials_that_two_tables_share_run_once() -> None:
    plan = make_plan(Asked(scale="cpu", data="patches", seeds=(0,), names=("comparison", "epochs")), Q)
    alone = len(trials(COMPARISON, CPU)) + len(trials(EPOCHS, CPU))
    assert len(plan.trials) == alone - 6  # AWA with either Q and strongest at N=32, E=8 and E=16


def test_names_scales_and_lists() -> None:
    assert [one.name for one in find_reproductions("all")] == list(REPRODUCTIONS)
    with pytest.raises(ConfigError, match="unknown reproduction 'ablatoin'; did you mean 'ablation'"):
        find_reproductions("ablatoin")
    with pytest.raises(
        ConfigError, match="unknown scale 'gpu'; did you mean 'cpu'\\? choose from cpu, paper, resnet18, smoke"
    ):
        find_scale("gpu")
    lines = listing()
    assert [line.split()[0] for line in lines] == list(REPRODUCTIONS)
    assert lines[0].endswith("trials: smoke 32, cpu 204, resnet18 96, paper 68")
    assert PAPER.case(Case(8, 32, 1)) == (8, 32, 1)


def test_data_that_are_too_few_are_said_before_any_work() -> None:
    with pytest.raises(ConfigError, match="expected at most the 8 pictures of photos"):
        make_plan(Asked(scale="cpu", data="photos", seeds=(0,), names=("large",)))
