"""Directories become values: strict where a field is wrong, tolerant where the format says null."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from undelta.audit.jobs import attack_job, score_job, simulate_job
from undelta.errors import DataError
from undelta.report.read import UNFINISHED, read_audit

from .audits import TOML, TRIALS, AuditCopy

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
    assert len(audit.entries) == len({entry.key for entry in audit.entries}) == TRIALS
    assert {entry.status for entry in audit.entries} == {"completed", "not applicable"}
    assert {(verdict.scenario, verdict.defense) for verdict in audit.verdicts} == {
        entry.group for entry in audit.entries
    }


def test_an_entry_says_what_its_record_says(finished: Path) -> None:
    for entry in read_audit(finished).entries:
        record = json.loads((finished / "trials" / entry.key / "record.json").read_text())
        assert entry.metrics == {key: record[key] for key in entry.metrics}
        assert (entry.attack, entry.arguments, entry.seed) == (
            record["attack"],
            record["attack_arguments"],
            record["seed"],
        )
        assert entry.scenario == record["scenario"]
        assert [point.value for point in entry.mismatches] == [moment["mismatch"] for moment in record["history"]]
        assert [point.value for point in entry.psnrs] == [moment["psnr"] for moment in record["curve"]]
        assert len(entry.images) == len(record["images"])
        assert entry.scored == (record["psnr"] is not None)


def test_scenarios_defenses_and_attacks_come_in_the_order_of_the_configuration(finished: Path) -> None:
    audit = read_audit(finished)
    first = [entry for entry in audit.entries if entry.group == ("epochs=1", "none")]
    assert [(entry.attack, entry.seed) for entry in first] == [
        (attack, seed) for attack in ("awa", "ig", "analytic") for seed in (0, 1)
    ]
    assert list(dict.fromkeys(entry.group for entry in audit.entries)) == [
        (f"epochs={epochs}", defense) for epochs in (1, 2) for defense in ("none", "smaller steps")
    ]


def test_ten_epochs_come_after_two(audit: AuditCopy) -> None:
    for path in audit.path.glob("trials/*/*.json"):
        audit.change(path, name=json.loads(path.read_text())["name"].replace("epochs=1", "epochs=10"))
    names = list(dict.fromkeys(entry.name for entry in read_audit(audit.path).entries))
    assert names == ["epochs=2", "epochs=10"]


def test_a_trial_that_nobody_has_finished_is_there_without_numbers(audit: AuditCopy) -> None:
    path = audit.records(attack="awa")[0]
    audit.forget(path)
    entry = next(entry for entry in read_audit(audit.path).entries if entry.key == path.parent.name)
    assert (entry.status, entry.attack, entry.scored, entry.pictures) == (UNFINISHED, "awa", False, None)


def test_a_failed_trial_carries_its_reason(audit: AuditCopy) -> None:
    path = audit.records(attack="ig")[0]
    audit.fail(path, "out of memory")
    entry = next(entry for entry in read_audit(audit.path).entries if entry.key == path.parent.name)
    assert (entry.status, entry.error, entry.scored) == ("failed", "out of memory", False)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"psnr": "high"}, "psnr: expected a number or null, got 'high'"),
        ({"psnr": True}, "psnr: expected a number or null, got True"),
        ({"ssim": float("nan")}, "ssim: expected a finite number or null, got nan"),
        ({"mismatch": 10**400}, "mismatch: expected a finite number or null"),
        ({"seed": 1.5}, "seed: expected a whole number, got 1.5"),
        ({"status": 3}, "status: expected a text, got 3"),
        ({"scenario": []}, "scenario: expected an object or null, got []"),
        ({"images": {}}, "images: expected a list, got {}"),
        ({"history": [3]}, "expected a JSON object, got 3"),
        ({"curve": [{"iteration": "x"}]}, "iteration: expected a whole number, got 'x'"),
        ({"layer_weights": {"conv1": "heavy"}}, "conv1: expected a number or null, got 'heavy'"),
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
    nothing = ("psnr", "images", "history", "curve", "layer_weights", "versions", "threads", "date", "peak_memory_mb")
    audit.change(path, **dict.fromkeys(nothing))
    entry = next(entry for entry in read_audit(audit.path).entries if entry.key == path.parent.name)
    assert (entry.scored, entry.images, entry.mismatches, entry.layer_weights) == (False, (), (), None)


def test_an_edited_configuration_does_not_keep_an_audit_from_being_read(audit: AuditCopy) -> None:
    (audit.path / "audit.toml").write_text("name = [")
    assert read_audit(audit.path).title == "audit"


@pytest.mark.parametrize("made", [[], ["trials"]])
def test_a_directory_without_results_says_what_was_expected(tmp_path: Path, made: list[str]) -> None:
    for name in made:
        (tmp_path / name).mkdir()
    with pytest.raises(DataError, match=r"start the audit first" if made else r"trials/.*results\.json"):
        read_audit(tmp_path)


def test_an_absent_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="absent: no such directory"):
        read_audit(tmp_path / "absent")


def test_tuning_is_read_with_its_failed_trials(audit: AuditCopy) -> None:
    trials = [{"number": 0, "value": 0.5, "parameters": {"conv": 3.0}}, {"number": 1, "value": None, "parameters": {}}]
    (audit.path / "tuning.json").write_text(json.dumps({"trials": trials}))
    assert [(trial.number, trial.value) for trial in read_audit(audit.path).tuning] == [(0, 0.5), (1, None)]


def test_a_single_run_is_read_before_and_after_it_is_scored(tmp_path: Path) -> None:
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    seen, truth, run = tmp_path / "seen", tmp_path / "truth", tmp_path / "run"
    simulate_job(tmp_path / "scenario.toml", observation_path=seen, truth_path=truth, seed=5)
    attack_job(seen, attack="ig", arguments={"steps": 2}, out=run, seed=1)
    audit = read_audit(run)
    (entry,) = audit.entries
    assert (entry.scored, entry.name, audit.sheet) == (False, "cnn, N=2, E=2, B=1", run / "reconstruction.png")
    score_job(run, truth_path=truth)
    (entry,) = read_audit(run).entries
    assert entry.scored
    assert (entry.name, entry.scenario["seed"], entry.seed) == ("faces, cnn, N=2, E=2, B=1", 5, 1)
