"""Directories become values: strict where a field is wrong, tolerant where the format says null."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from undelta.errors import DataError
from undelta.files import to_json
from undelta.report.read import read_audit
from undelta.studies.comparison import compare_jobs
from undelta.studies.scoring import score_job
from undelta.studies.single import attack_job, simulate_job
from undelta.trials.directory import RunDirectory
from undelta.trials.leases import Leases
from undelta.trials.plan import load_plan
from undelta.trials.record import UNFINISHED

from .audits import TOML, TRIALS, AuditCopy

pytestmark = pytest.mark.usefixtures("bounded_memory")

SCENARIO = """
data = "faces"
image_size = 12
num_samples = 2
model = "cnn"
model_arguments = { width = 2, hidden = 4 }
epochs = 2
batches = 1
learning_rate = 0.05
"""


def test_an_audit_is_read_whole(finished: Path) -> None:
    audit = read_audit(finished)
    assert audit.title == "Faces of a small clinic"
    assert audit.configuration == TOML
    assert len(audit.records) == len({record.key for record in audit.records}) == TRIALS
    assert {record.status for record in audit.records} == {"completed", "not applicable"}
    assert {(verdict.scenario, verdict.defense) for verdict in audit.judgment.verdicts} == {
        record.group for record in audit.records
    }


def test_records_are_those_of_the_files(finished: Path) -> None:
    for record in read_audit(finished).records:
        assert json.loads(to_json(record)) == json.loads((finished / "trials" / record.key / "record.json").read_text())


def test_scenarios_defenses_and_attacks_come_in_the_order_of_the_configuration(finished: Path) -> None:
    audit = read_audit(finished)
    first = [record for record in audit.records if record.group == ("epochs=1", "none")]
    assert [(record.attack, record.seed) for record in first] == [
        (attack, seed) for attack in ("awa", "ig", "analytic") for seed in (0, 1)
    ]
    assert list(dict.fromkeys(record.group for record in audit.records)) == [
        (f"epochs={epochs}", defense) for epochs in (1, 2) for defense in ("none", "smaller steps")
    ]


def test_a_trial_that_nobody_has_finished_is_there_without_numbers(audit: AuditCopy) -> None:
    path = audit.records(attack="awa")[0]
    audit.forget(path)
    read = read_audit(audit.path)
    record = next(record for record in read.records if record.key == path.parent.name)
    assert (record.status, record.attack, record.scored) == (UNFINISHED, "awa", False)
    assert record.key not in read.pictures


def test_a_trial_that_is_just_being_prepared_is_not_there_yet(audit: AuditCopy) -> None:
    path = audit.records(attack="awa")[0]
    audit.forget(path)
    (path.parent / "trial.json").unlink()
    assert len(read_audit(audit.path).records) == TRIALS - 1


@pytest.mark.parametrize("keys", [["../../elsewhere"], ["0" * 16, "0" * 16]])
def test_keys_that_no_trial_has_are_refused(audit: AuditCopy, keys: list[str]) -> None:
    audit.change(audit.path / "run.json", keys=keys)
    with pytest.raises(DataError, match=r"run\.json: expected keys of 16 hex digits, each once"):
        read_audit(audit.path)


def test_a_directory_of_another_version_says_so(audit: AuditCopy) -> None:
    (audit.path / "run.json").unlink()
    with pytest.raises(DataError, match="another version"):
        read_audit(audit.path)


def test_a_failed_trial_carries_its_reason(audit: AuditCopy) -> None:
    path = audit.records(attack="ig")[0]
    audit.fail(path, "out of memory")
    record = next(record for record in read_audit(audit.path).records if record.key == path.parent.name)
    assert (record.status, record.error, record.scored) == ("failed", "out of memory", False)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"psnr": "high"}, "psnr: expected a number, got 'high'"),
        ({"psnr": True}, "psnr: expected a number, got True"),
        ({"ssim": float("nan")}, "ssim: expected a finite number, got nan"),
        ({"mismatch": 10**400}, "mismatch: expected a number, got one too large"),
        ({"seed": 1.5}, "seed: expected a whole number, got 1.5"),
        ({"status": 3}, "status: expected a text, got 3"),
        ({"scenario": []}, "scenario: expected a table, got []"),
        ({"images": {}}, "images: expected a list, got {}"),
        ({"history": [3]}, "history[0]: expected a table of settings, got 3"),
        ({"curve": [{"iteration": "x"}]}, "iteration: expected a whole number, got 'x'"),
        ({"layer_weights": {"conv1": "heavy"}}, "conv1: expected a number, got 'heavy'"),
    ],
)
def test_a_wrong_field_is_named_with_its_file(audit: AuditCopy, fields: dict[str, Any], complaint: str) -> None:
    path = audit.records(attack="awa")[0]
    audit.change(path, **fields)
    with pytest.raises(DataError) as caught:
        read_audit(audit.path)
    assert str(path) in str(caught.value)
    assert complaint in str(caught.value)


@pytest.mark.parametrize("content", ["{", "[1]", "\udcff", "[" * 100_000], ids=["half", "list", "bytes", "deep"])
def test_a_file_that_is_no_record_is_named(audit: AuditCopy, content: str) -> None:
    path = audit.records()[0]
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError, match=r"record\.json"):
        read_audit(audit.path)


def test_null_is_no_mistake_where_something_was_not_measured(audit: AuditCopy) -> None:
    path = audit.records(attack="awa")[0]
    nothing = ("psnr", "layer_weights", "threads", "date", "peak_memory_mb", "floor")
    audit.change(path, **dict.fromkeys(nothing))
    record = next(record for record in read_audit(audit.path).records if record.key == path.parent.name)
    assert (record.scored, record.layer_weights) == (False, None)


def test_a_verdict_is_gone_as_soon_as_its_results_are_to_change(audit: AuditCopy) -> None:
    (audit.path / "audit.toml").write_text(
        TOML.replace("seeds = [0, 1]", "seeds = [0, 1, 2]\nverdict = { ssim = 0.01 }")
    )
    plan = load_plan(audit.path / "audit.toml")
    store = RunDirectory(audit.path)
    assert "not finished" not in read_audit(audit.path).judgment.verdicts[0].trials
    (audit.path / "defend.json").touch()
    store.prepare(plan.text, plan.trials, Leases(worker="test"), thresholds=plan.thresholds)
    verdict = read_audit(audit.path).judgment.verdicts[0]
    assert verdict.trials["not finished"] == 3
    assert not (audit.path / "defend.json").exists()
    assert verdict.thresholds.ssim == 0.01
    with pytest.raises(DataError, match=r"no verdict\.json"):
        compare_jobs(audit.path, audit.path)


def test_an_edited_configuration_does_not_keep_an_audit_from_being_read(audit: AuditCopy) -> None:
    (audit.path / "audit.toml").write_text("name = [")
    assert read_audit(audit.path).title == "Faces of a small clinic"


def test_a_directory_without_results_says_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected a run directory of undelta, found no file run\.json"):
        read_audit(tmp_path)
    (tmp_path / "run.json").write_text('{"title": "", "keys": []}')
    with pytest.raises(DataError, match="start the audit first"):
        read_audit(tmp_path)


def test_an_absent_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="absent: no such directory"):
        read_audit(tmp_path / "absent")


def test_tuning_is_read_with_its_failed_trials(audit: AuditCopy) -> None:
    trials = [{"number": 0, "value": 0.5, "parameters": {"conv": 3.0}}, {"number": 1, "value": None, "parameters": {}}]
    (audit.path / "tuning.json").write_text(json.dumps({"trials": trials}))
    tuning = read_audit(audit.path).tuning
    assert tuning is not None
    assert [(trial.number, trial.value) for trial in tuning.trials] == [(0, 0.5), (1, None)]


def test_a_single_run_is_read_before_and_after_it_is_scored(tmp_path: Path) -> None:
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    seen, truth, run = tmp_path / "seen", tmp_path / "truth", tmp_path / "run"
    simulate_job(tmp_path / "scenario.toml", observation_path=seen, truth_path=truth, seed=5)
    attack_job(seen, attack="ig", arguments={"steps": 2}, out=run, seed=1)
    audit = read_audit(run)
    (record,) = audit.records
    assert (record.scored, record.name) == (False, "2 images, cnn, 2 epochs")
    score_job(run, truth_path=truth)
    (record,) = read_audit(run).records
    assert record.scored
    assert (record.name, record.scenario["seed"], record.seed) == ("2 images of faces, cnn, 2 epochs", 5, 1)
