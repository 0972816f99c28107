"""The floor where users meet it: scored runs, audits, and a command of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from undelta.cli import app
from undelta.client.scenario import Scenario
from undelta.errors import DataError
from undelta.studies.scoring import score_job
from undelta.studies.single import attack_job, floor_job, simulate_job
from undelta.trials.diagnosis import Thresholds
from undelta.trials.directory import RunDirectory
from undelta.trials.trial import Trial, run
from undelta.trials.verdict import judge

TOML = """
data = "digits"
num_samples = 2
model_arguments = { width = 4, hidden = 16 }
epochs = 3
batches = 1
learning_rate = 0.3
"""


@pytest.fixture
def scored(tmp_path: Path) -> Path:
    (tmp_path / "scenario.toml").write_text(TOML)
    seen, truth = tmp_path / "seen.safetensors", tmp_path / "truth.safetensors"
    simulate_job(tmp_path / "scenario.toml", observation_path=seen, truth_path=truth, seed=0)
    attack_job(seen, attack="awa", arguments={"steps": 4}, out=tmp_path / "run", seed=0)
    return tmp_path


def test_a_scored_run_has_the_floor_that_a_trial_has(scored: Path) -> None:
    (record,) = score_job(scored / "run", truth_path=scored / "truth.safetensors")
    scenario = Scenario(
        data="digits",
        num_samples=2,
        model_arguments={"width": 4, "hidden": 16},
        epochs=3,
        batches=1,
        learning_rate=0.3,
    )
    outcome = run(Trial(scenario=scenario, attack="awa", arguments={"steps": 4}))
    assert record.floor is not None
    assert outcome.record.floor is not None
    assert record.floor.terms == pytest.approx(outcome.record.floor.terms, rel=1e-4)
    assert record.floor.level == outcome.record.floor.level
    assert RunDirectory(scored / "run").records()[0].floor == record.floor


def test_an_observation_that_moved_can_be_named(scored: Path) -> None:
    moved = (scored / "seen.safetensors").rename(scored / "elsewhere.safetensors")
    truth = scored / "truth.safetensors"
    assert score_job(scored / "run", truth_path=truth)[0].floor is None
    assert score_job(scored / "run", truth_path=truth, observation_path=moved)[0].floor is not None


def test_another_observation_is_refused(scored: Path) -> None:
    other = scored / "other.safetensors"
    simulate_job(scored / "scenario.toml", observation_path=other, truth_path=scored / "t.safetensors", seed=1)
    with pytest.raises(DataError, match="another observation"):
        score_job(scored / "run", truth_path=scored / "truth.safetensors", observation_path=other)


def test_a_verdict_says_what_the_floor_means(scored: Path) -> None:
    trial = Trial(scenario=Scenario(data="digits", num_samples=2, batches=1), attack="awa", arguments={"steps": 2})
    outcome = run(trial)
    (verdict,) = judge([trial], {trial.key: outcome.record}, Thresholds(psnr=90.0))
    assert outcome.record.floor is not None
    assert outcome.record.floor.text in verdict.text


def test_floors_over_seeds(scored: Path) -> None:
    columns = floor_job(scored / "scenario.toml", seeds=(0, 1))
    assert {len(values) for values in columns.values()} == {2}
    assert all(value is not None and value < 1e-5 for value in columns["full rollout"])


def test_the_command_prints_every_replay(scored: Path) -> None:
    result = CliRunner().invoke(app, ["floor", str(scored / "scenario.toml"), "--seeds", "0,1"])
    assert result.exit_code == 0
    for words in ("AWA", "midpoint", "full rollout", "to"):
        assert words in result.stdout
