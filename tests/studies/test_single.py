"""What the commands do, without the command line."""

from __future__ import annotations

import json
import math
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from undelta.attacker.attacks.strongest import Composite
from undelta.attacker.method import GradientMatching
from undelta.attacker.reconstruction import Moment
from undelta.client.disclose import disclose
from undelta.client.private import load_private
from undelta.client.scenario import Scenario
from undelta.errors import ConfigError, DataError, MissingKnowledge, ObservationError
from undelta.files import FORMAT, make_folder, read_tensors, write_tensors
from undelta.observation.file import digest_of, load_observation, save_observation
from undelta.report.pictures import read_pictures
from undelta.report.read import read_audit
from undelta.studies.scoring import score_job
from undelta.studies.single import attack_job, simulate_job
from undelta.trials.config import load_scenario, make_attack, parse_settings
from undelta.trials.directory import RECONSTRUCTION, Contents, RunDirectory
from undelta.trials.leases import Leases
from undelta.trials.trial import Trial

TOML = """
data = "faces"
image_size = 12
num_samples = 2
model = "cnn"
model_arguments = { width = 2, hidden = 4 }
epochs = 2
batches = 2
learning_rate = 1
"""
QUICK = {"steps": 2, "rollout_steps": 1, "macro_steps": 1}


@dataclass(frozen=True, kw_only=True)
class Files:
    scenario: Path
    observation: Path
    truth: Path


@pytest.fixture(autouse=True)
def no_lpips_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNDELTA_LPIPS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    paths = Files(scenario=tmp_path / "scenario.toml", observation=tmp_path / "observation", truth=tmp_path / "truth")
    paths.scenario.write_text(TOML)
    simulate_job(paths.scenario, observation_path=paths.observation, truth_path=paths.truth, seed=3)
    return paths


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float16, torch.int64, torch.complex64], ids=str)
def test_a_truth_of_other_numbers_is_refused(files: Files, dtype: torch.dtype) -> None:
    tensors, metadata = read_tensors(files.truth, kind="truth", error=DataError)
    tensors["images"] = tensors["images"].to(dtype)
    write_tensors(files.truth, tensors, metadata)
    with pytest.raises(DataError, match="expected images of float32 or float64 and labels of int64, got"):
        load_private(files.truth)


def test_an_attack_that_was_killed_right_after_its_result_says_what_it_found(files: Files, tmp_path: Path) -> None:
    def again() -> Any:
        return attack_job(files.observation, attack="sme", arguments={"steps": 2}, out=tmp_path / "out", seed=0)

    record = again()
    checkpoint = RunDirectory(tmp_path / "out").folder(record.key) / "checkpoint.pt"
    checkpoint.write_bytes(b"what the kill left")
    (tmp_path / "out" / "verdict.json").unlink()
    assert again() == record
    assert not checkpoint.exists()
    assert (tmp_path / "out" / "verdict.json").exists()
    with pytest.raises(ConfigError, match="already holds this attack's results"):
        again()


# Settings


def test_settings_are_written_as_in_toml_and_plain_words_need_no_quotes() -> None:
    words = ["steps=3", "tv=1e-3", "signed=true", "form=linear", 'name="a b"', "widths=[1, 2]", "empty="]
    assert parse_settings(words) == {
        "steps": 3,
        "tv": 1e-3,
        "signed": True,
        "form": "linear",
        "name": "a b",
        "widths": [1, 2],
        "empty": "",
    }
    assert parse_settings(["equation=a=b"]) == {"equation": "a=b"}
    assert parse_settings([]) == {}
    with pytest.raises(ConfigError, match="ssim is given twice; drop one"):
        parse_settings(["ssim=0.5", "ssim=0.99"])


@pytest.mark.parametrize("word", ["steps", "=3", "", "a b=3", "1=2", "a.b=2"])
def test_a_word_that_is_no_setting_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match="expected key=value") as caught:
        parse_settings([word])
    assert repr(word) in str(caught.value)


def test_a_number_of_thousands_of_digits_is_refused() -> None:
    with pytest.raises(ConfigError, match="steps"):
        make_attack("awa", parse_settings(["steps=" + "9" * 5_000]))


def test_attacks_are_made_by_name() -> None:
    assert isinstance(make_attack("strongest", {}), Composite)
    attack = make_attack("awa", {"steps": 7, "tv": 1, "form": "linear"})
    assert isinstance(attack, GradientMatching)
    assert attack.steps == 7


@pytest.mark.parametrize(
    ("name", "arguments", "complaints"),
    [
        ("awaa", {}, ["unknown attack 'awaa'", "did you mean 'awa'?", "strongest"]),
        ("awa", {"stepz": 1}, ["attack awa", "unknown key 'stepz'", "did you mean 'steps'?", "learning_rate"]),
        ("awa", {"steps": 1.5}, ["attack awa: steps: expected a whole number, got 1.5"]),
        ("awa", {"tv": "much"}, ["attack awa: tv: expected a number, got 'much'"]),
        ("awa", {"signed": 1}, ["attack awa: signed: expected true or false, got 1"]),
        ("awa", {"form": "lineer"}, ["unknown value 'lineer'", "approximation, enhanced, linear"]),
        ("awa", {"steps": 0}, ["attack awa", "steps >= 1", "steps=0"]),
        ("strongest", {"restarts": -1}, ["attack strongest", "restarts >= 1"]),
    ],
)
def test_a_wrong_attack_is_named_with_the_choices(
    name: str, arguments: dict[str, object], complaints: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        make_attack(name, arguments)
    for complaint in complaints:
        assert complaint in str(caught.value)


# Scenarios


def test_a_scenario_is_read_from_toml(files: Files) -> None:
    assert load_scenario(files.scenario) == Scenario(
        data="faces",
        image_size=12,
        num_samples=2,
        model="cnn",
        model_arguments={"width": 2, "hidden": 4},
        epochs=2,
        batches=2,
        learning_rate=1.0,
    )


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"epocs = 2", "did you mean 'epochs'?"),
        (b"epochs = 2.5", "epochs: expected a whole number, got 2.5"),
        (b"epochs = 0", "epochs >= 1"),
        (b"epochs =", "not valid TOML"),
        (b"\xff", "not valid TOML"),
        (b"epochs = " + b"9" * 5_000, "scenario.toml"),
        (b"learning_rate = 1" + b"0" * 400, "learning_rate"),
        (b'loss = "hinge"', "cross_entropy"),
        (b"num_samples = 2\nbatches = 3", "cannot fill 3 mini-batches"),
    ],
)
def test_a_wrong_scenario_is_one_clear_error(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "scenario.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_scenario(path)
    assert str(path) in str(caught.value)
    assert complaint in str(caught.value)


def test_a_missing_scenario_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml: No such file"):
        load_scenario(tmp_path / "absent.toml")


# Jobs


def test_simulate_writes_what_the_server_sees_and_the_truth_apart(files: Files) -> None:
    scenario = load_scenario(files.scenario)
    private, described, digest = load_private(files.truth)
    assert digest == digest_of(load_observation(files.observation))
    drawn = scenario.draw(3)
    assert torch.equal(private.images, drawn.images)
    assert torch.equal(private.labels, drawn.labels)
    assert (described["data"], described["seed"]) == ("faces", 3)
    expected = disclose(drawn, scenario, seed=3)
    loaded = load_observation(files.observation)
    assert all(torch.equal(tensor, expected.received[name]) for name, tensor in loaded.received.items())


def test_simulating_again_gives_the_same_content(tmp_path: Path, files: Files) -> None:
    again = Files(scenario=files.scenario, observation=tmp_path / "observation 2", truth=tmp_path / "truth 2")
    simulate_job(again.scenario, observation_path=again.observation, truth_path=again.truth, seed=3)
    for kind, one, two in (
        ("observation", files.observation, again.observation),
        ("truth", files.truth, again.truth),
    ):
        tensors, metadata = read_tensors(one, kind=kind, error=DataError)
        tensors_again, metadata_again = read_tensors(two, kind=kind, error=DataError)
        assert metadata == metadata_again
        assert tensors.keys() == tensors_again.keys()
        assert all(torch.equal(tensor, tensors_again[name]) for name, tensor in tensors.items())


def test_attack_and_score_leave_results_pictures_and_images(tmp_path: Path, files: Files) -> None:
    out = tmp_path / "deep" / "run"
    record = attack_job(files.observation, attack="strongest", arguments=QUICK, out=out, seed=1)
    assert record.psnr is None
    assert record.scenario["data"] is None
    store = RunDirectory(out)
    assert store.records() == [record]
    folder = store.folder(record.key)
    tensors, _ = read_tensors(folder / RECONSTRUCTION, kind="reconstruction", error=DataError)
    assert tensors["images"].shape == (2, 1, 12, 12)
    with Image.open(out / "reconstruction.png") as image:
        assert image.size == (4 + 2 * 100, 4 + 120)

    (scored,) = score_job(out, truth_path=files.truth)
    assert 0 < (scored.psnr or 0) < 100
    assert scored.lpips is None
    assert len(scored.images) == 2
    assert (scored.scenario["data"], scored.scenario["rounds"]) == ("faces", 0)
    assert scored.arguments == QUICK
    assert store.records() == [scored]
    with Image.open(out / "reconstruction.png") as image:
        assert image.size == (4 + 2 * 100, 4 + 2 * 120)
    assert sorted(path.name for path in out.iterdir()) == [
        "reconstruction.png",
        "run.json",
        "trials",
        "verdict.json",
    ]
    assert sorted(path.name for path in folder.iterdir()) == [
        "pictures.safetensors",
        "reconstruction.safetensors",
        "record.json",
        "trial.json",
    ]
    assert read_pictures(folder / "pictures.safetensors").originals.shape == (2, 1, 12, 12)


def test_scoring_twice_gives_the_same_record(tmp_path: Path, files: Files) -> None:
    attack_job(files.observation, attack="strongest", arguments=QUICK, out=tmp_path / "run", seed=1)
    first = score_job(tmp_path / "run", truth_path=files.truth)
    assert score_job(tmp_path / "run", truth_path=files.truth) == first


def test_an_attack_that_needs_labels_says_so_and_writes_nothing(tmp_path: Path, files: Files) -> None:
    scenario = Scenario(data="faces", image_size=4, num_samples=2, model="mlp", epochs=1, batches=1, grant_labels=False)
    save_observation(disclose(scenario.draw(0), scenario), tmp_path / "unlabeled")
    granted = {"steps": 1, "labels": "disclosed"}
    with pytest.raises(MissingKnowledge, match="grant_labels"):
        attack_job(tmp_path / "unlabeled", attack="sme", arguments=granted, out=tmp_path / "run", seed=0)
    assert not (tmp_path / "run").exists()


def test_a_bad_observation_leaves_no_directory_behind(tmp_path: Path, files: Files) -> None:
    with pytest.raises(ObservationError, match="got 'truth'"):
        attack_job(files.truth, attack="awa", arguments={"steps": 1}, out=tmp_path / "run", seed=0)
    assert not (tmp_path / "run").exists()


def test_a_finished_run_is_kept_unless_told_otherwise(tmp_path: Path, files: Files) -> None:
    out = tmp_path / "run"
    attack_job(files.observation, attack="strongest", arguments=QUICK, out=out, seed=1)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match="--overwrite"):
        attack_job(files.observation, attack="strongest", arguments=QUICK, out=out, seed=1)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    (first,) = RunDirectory(out).records()
    attack_job(files.observation, attack="strongest", arguments=QUICK, out=out, seed=1, overwrite=True)
    (again,) = RunDirectory(out).records()
    assert (again.mismatch, again.seconds) != (first.mismatch, first.seconds)
    assert again.mismatch == first.mismatch


def test_attacks_on_one_update_accumulate_and_are_scored_together(tmp_path: Path, files: Files) -> None:
    out = tmp_path / "run"
    for attack in ("ig", "awa"):
        attack_job(files.observation, attack=attack, arguments={"steps": 2}, out=out, seed=1)
    scored = score_job(out, truth_path=files.truth)
    assert [(record.attack, record.scored) for record in scored] == [("ig", True), ("awa", True)]
    attack_job(files.observation, attack="sme", arguments={"steps": 2}, out=out, seed=1)
    assert [record.scored for record in RunDirectory(out).records()] == [True, True, False]
    assert len(read_audit(out).records) == 3


def test_an_attack_does_not_write_into_an_audit(tmp_path: Path, files: Files) -> None:
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit" / "audit.toml").touch()
    with pytest.raises(ConfigError, match="holds an audit"):
        attack_job(files.observation, attack="ig", arguments={"steps": 2}, out=tmp_path / "audit", seed=1)


def test_an_attack_that_runs_already_is_not_started_twice(tmp_path: Path, files: Files) -> None:
    out = tmp_path / "run"

    def start_again(moment: Moment, total: int) -> None:
        with pytest.raises(ConfigError, match="the same attack is running"):
            attack_job(files.observation, attack="ig", arguments={"steps": 2}, out=out, seed=1)

    attack_job(files.observation, attack="ig", arguments={"steps": 2}, out=out, seed=1, watch=start_again)
    assert [record.status for record in RunDirectory(out).records()] == ["completed"]


def test_scoring_against_another_scenarios_truth_is_refused(tmp_path: Path, files: Files) -> None:
    attack_job(files.observation, attack="strongest", arguments=QUICK, out=tmp_path / "run", seed=1)
    before = RunDirectory(tmp_path / "run").records()
    files.scenario.write_text(TOML.replace("12", "16"))
    simulate_job(files.scenario, observation_path=tmp_path / "other", truth_path=tmp_path / "other truth", seed=3)
    with pytest.raises(DataError, match="the truth of another observation"):
        score_job(tmp_path / "run", truth_path=tmp_path / "other truth")
    with pytest.raises(DataError, match="expected a file of kind 'truth', got 'observation'"):
        score_job(tmp_path / "run", truth_path=files.observation)
    assert RunDirectory(tmp_path / "run").records() == before


def test_scoring_a_directory_that_is_no_run_is_refused(tmp_path: Path, files: Files) -> None:
    with pytest.raises(DataError, match=r"run\.json"):
        score_job(tmp_path, truth_path=files.truth)
    record = attack_job(files.observation, attack="strongest", arguments=QUICK, out=tmp_path / "run", seed=1)
    (RunDirectory(tmp_path / "run").folder(record.key) / RECONSTRUCTION).unlink()
    with pytest.raises(DataError, match="no such file"):
        score_job(tmp_path / "run", truth_path=files.truth)


def test_a_reconstruction_file_without_images_is_refused(tmp_path: Path, files: Files) -> None:
    record = attack_job(files.observation, attack="strongest", arguments=QUICK, out=tmp_path / "run", seed=1)
    write_tensors(
        RunDirectory(tmp_path / "run").folder(record.key) / RECONSTRUCTION,
        {"labels": torch.tensor([0, 1])},
        {"format": FORMAT, "kind": "reconstruction"},
    )
    with pytest.raises(DataError, match="images"):
        score_job(tmp_path / "run", truth_path=files.truth)


def test_a_record_without_its_fields_is_refused(tmp_path: Path, files: Files) -> None:
    record = attack_job(files.observation, attack="strongest", arguments=QUICK, out=tmp_path / "run", seed=1)
    (RunDirectory(tmp_path / "run").folder(record.key) / "record.json").write_text(json.dumps({"schema": 1}))
    with pytest.raises(DataError, match=r"record\.json"):
        score_job(tmp_path / "run", truth_path=files.truth)


@pytest.mark.parametrize("content", ["{", '{"schema": 1}'])
def test_results_that_cannot_be_read_are_somebodys_and_can_be_overwritten(
    tmp_path: Path, files: Files, content: str
) -> None:
    settings: dict[str, Any] = {"attack": "ig", "arguments": {"steps": 2}, "out": tmp_path / "run", "seed": 1}
    record = attack_job(files.observation, **settings)
    path = RunDirectory(tmp_path / "run").folder(record.key) / "record.json"
    path.write_text(content)
    for _ in range(2):  # the second time, too: no lease is left behind
        with pytest.raises(ConfigError, match=r"record\.json"):
            attack_job(files.observation, **settings)
    assert path.read_text() == content
    assert attack_job(files.observation, **settings, overwrite=True).mismatch == record.mismatch


def test_a_file_in_the_directorys_place_is_refused(tmp_path: Path, files: Files) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="is a file"):
        attack_job(files.observation, attack="ig", arguments={"steps": 1}, out=tmp_path / "file", seed=1)
    with pytest.raises(ConfigError, match="cannot make the directory"):
        make_folder(tmp_path / "file" / "below")


def test_the_truth_of_another_observation_is_refused(files: Files, tmp_path: Path) -> None:
    attack_job(files.observation, attack="ig", arguments={"steps": 1}, out=tmp_path / "run", seed=0)
    other = tmp_path / "other"
    simulate_job(files.scenario, observation_path=tmp_path / "seen", truth_path=other, seed=4)
    with pytest.raises(DataError, match="the truth of another observation"):
        score_job(tmp_path / "run", truth_path=other)


def test_the_truth_may_not_overwrite_the_observation(files: Files, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the same file"):
        simulate_job(files.scenario, observation_path=tmp_path / "x", truth_path=tmp_path / "y" / ".." / "x", seed=0)


def test_a_setting_that_is_not_a_number_is_refused_before_any_work(files: Files, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tv: expected a finite number, got nan"):
        attack_job(files.observation, attack="awa", arguments={"tv": math.nan}, out=tmp_path / "run", seed=0)
    assert not (tmp_path / "run").exists()


def test_an_interrupted_run_goes_on_with_the_same_command(files: Files, tmp_path: Path) -> None:
    def interrupt(moment: Moment, total: int) -> None:
        raise KeyboardInterrupt

    settings: dict[str, Any] = {"attack": "ig", "arguments": {"steps": 12}, "out": tmp_path / "run", "seed": 0}
    assert attack_job(files.observation, **settings, watch=interrupt).status == "interrupted"
    assert attack_job(files.observation, **settings).status == "completed"
    whole = attack_job(files.observation, **{**settings, "out": tmp_path / "whole"})
    assert RunDirectory(tmp_path / "run").records()[0].mismatch == whole.mismatch


# Several commands, one directory


def test_a_refused_attack_takes_back_nothing_but_its_own(files: Files, tmp_path: Path) -> None:
    out = tmp_path / "run"
    attack_job(files.observation, attack="ig", arguments={"steps": 2}, out=out, seed=1)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(MissingKnowledge):
        attack_job(files.observation, attack="idlg", arguments={"steps": 2}, out=out, seed=1)  # for one image alone
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_a_directory_whose_writer_was_killed_early_is_still_usable(files: Files, tmp_path: Path) -> None:
    out = tmp_path / "run"
    attack_job(files.observation, attack="ig", arguments={"steps": 2}, out=out, seed=1)
    (path,) = out.glob("trials/*/trial.json")
    path.unlink()
    attack_job(files.observation, attack="awa", arguments={"steps": 2}, out=out, seed=1)
    assert [record.attack for record in RunDirectory(out).records()] == ["ig", "awa"]


def test_attacks_that_begin_at_once_all_stay_in_the_directory(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, read = tmp_path / "run", RunDirectory.contents
    settings: dict[str, Any] = {"attack": "ig", "arguments": {"steps": 2}, "out": out}
    attack_job(files.observation, **settings, seed=0)

    def slowly(store: RunDirectory) -> Contents:
        found = read(store)
        time.sleep(0.3)  # long enough for the others to read the same
        return found

    monkeypatch.setattr(RunDirectory, "contents", slowly)
    threads = [
        threading.Thread(target=attack_job, args=(files.observation,), kwargs={**settings, "seed": seed})
        for seed in (1, 2, 3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(record.seed for record in RunDirectory(out).records()) == [0, 1, 2, 3]
    assert not list(out.glob("lease*"))


def test_what_is_overwritten_stays_until_the_new_result_is_there(files: Files, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"attack": "ig", "arguments": {"steps": 12}, "out": tmp_path / "run", "seed": 0}
    attack_job(files.observation, **settings)
    store = RunDirectory(tmp_path / "run")

    def stop(moment: Moment, total: int) -> None:
        (there,) = store.records()
        assert there.status == "completed"
        assert not (tmp_path / "run" / "verdict.json").exists()  # what it says is about to change
        raise RuntimeError

    with pytest.raises(RuntimeError):
        attack_job(files.observation, **settings, overwrite=True, watch=stop)
    assert [record.status for record in store.records()] == ["completed"]


def test_a_resumed_attack_does_not_keep_the_pictures_of_its_interrupted_result(files: Files, tmp_path: Path) -> None:
    def interrupt(moment: Moment, total: int) -> None:
        raise KeyboardInterrupt

    settings: dict[str, Any] = {"attack": "ig", "arguments": {"steps": 12}, "out": tmp_path / "run", "seed": 0}
    attack_job(files.observation, **settings, watch=interrupt)
    (scored,) = score_job(tmp_path / "run", truth_path=files.truth)
    assert scored.status == "interrupted"
    (verdict,) = read_audit(tmp_path / "run").judgment.verdicts
    assert verdict.images == 2
    assert "the attack was interrupted after" in verdict.text
    assert "Nothing was measured" not in verdict.text
    (path,) = tmp_path.glob("run/trials/*/pictures.safetensors")
    before = read_pictures(path)
    assert len(before.originals) == 2
    attack_job(files.observation, **settings)
    after = read_pictures(path)
    assert len(after.originals) == 0  # they are not known to this result yet
    assert not torch.equal(after.reconstruction, before.reconstruction)


def test_attacks_on_other_updates_are_left_out_of_a_score(files: Files, tmp_path: Path) -> None:
    simulate_job(files.scenario, observation_path=tmp_path / "other", truth_path=tmp_path / "other truth", seed=4)
    for path in (files.observation, tmp_path / "other"):
        attack_job(path, attack="ig", arguments={"steps": 2}, out=tmp_path / "run", seed=1)
    assert len(score_job(tmp_path / "run", truth_path=files.truth)) == 1


def test_an_audit_does_not_set_single_attacks_aside(files: Files, tmp_path: Path) -> None:
    attack_job(files.observation, attack="ig", arguments={"steps": 2}, out=tmp_path / "run", seed=1)
    trial = Trial(scenario=load_scenario(files.scenario), attack="ig", arguments={"steps": 1})
    with pytest.raises(ConfigError, match="holds what `undelta attack` wrote"):
        RunDirectory(tmp_path / "run").prepare("", [trial], Leases(worker="test"))
