"""The bound where users meet it: a job with files, and a command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from undelta.cli import app
from undelta.errors import ConfigError, DataError
from undelta.evaluation.lanczos import Krylov
from undelta.studies import products
from undelta.studies.bound import bound_job
from undelta.studies.bound_case import Question
from undelta.studies.scoring import score_job
from undelta.studies.single import attack_job, simulate_job
from undelta.trials.bound_file import read_bound

TOML = """
data = "digits"
num_samples = 2
model_arguments = { width = 2, hidden = 8 }
epochs = 1
batches = 2
learning_rate = 0.05
"""
FEW = Question(sigmas=(1e-3,), products=20)
NOISE = '\n[[defenses]]\ndefense = "noise"\nscale = 0.01\n'


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "scenario.toml"
    path.write_text(TOML)
    return path


def test_more_noise_leaves_less_and_the_files_hold_what_is_returned(scenario: Path, tmp_path: Path) -> None:
    out = tmp_path / "bound"
    counts: list[tuple[int, int]] = []
    found = bound_job(
        scenario,
        question=Question(sigmas=(1e-3, 1e-1), products=30),
        out=out,
        told=lambda done, total: counts.append((done, total)),
    )
    low, high = found.rows
    assert low.bound > high.bound > (found.prior_psnr or 99) - 2
    assert low.sigma == 1e-3
    assert low.fixed >= high.fixed
    assert 0 < counts[-1][0] <= counts[-1][1] == 30
    assert sorted(path.name for path in out.iterdir()) == ["bound-seed-0.png", "bound.json"]
    written = read_bound(out)
    assert written is not None
    assert written.rows == found.rows
    assert json.loads((out / "bound.json").read_text())["rows"][0]["images"] == list(low.images)


def test_a_defense_is_the_noise_and_seeds_differ(scenario: Path) -> None:
    given = [
        row.bound for row in bound_job(scenario, question=Question(sigmas=(0.01,), products=20), seeds=(0, 1)).rows
    ]
    scenario.write_text(TOML + NOISE)
    found = bound_job(scenario, question=Question(products=20), seeds=(0, 1))
    assert "noise defense" in found.noise
    assert [row.bound for row in found.rows] == pytest.approx(given, abs=1e-6)
    assert given[0] != given[1]


def test_a_stopped_command_resumes_to_the_same_numbers(
    scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = bound_job(scenario, question=FEW)
    monkeypatch.setattr(products.Kept, "SECONDS", 0.0)
    save, calls = products.Kept.save, list[str]()

    def stop(self: products.Kept, name: str, found: Krylov) -> None:
        save(self, name, found)
        calls.append(name)
        if len(calls) == 7:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(products.Kept, "save", stop)
        with pytest.raises(KeyboardInterrupt):
            bound_job(scenario, question=FEW, out=tmp_path / "out")
    (kept,) = (tmp_path / "out").iterdir()
    assert kept.stat().st_mode & 0o077 == 0
    counts: list[int] = []
    again = bound_job(scenario, question=FEW, out=tmp_path / "out", told=lambda done, total: counts.append(done))
    assert counts[0] == 8
    assert again.rows == whole.rows
    assert again.spectra == whole.spectra
    assert not kept.exists()


def test_headroom_is_what_the_strongest_attack_left(scenario: Path, tmp_path: Path) -> None:
    seen, truth = tmp_path / "seen.safetensors", tmp_path / "truth.safetensors"
    simulate_job(scenario, observation_path=seen, truth_path=truth, seed=0)
    attack_job(seen, attack="awa", arguments={"steps": 2}, out=tmp_path / "run", seed=0)
    (record,) = score_job(tmp_path / "run", truth_path=truth)
    (row,) = bound_job(scenario, question=FEW, run=tmp_path / "run").rows
    assert row.reached is not None
    assert row.reached == record.psnr
    assert row.headroom == max(row.bound, row.mean_linear) - row.reached
    assert f"awa, reached {row.reached:.1f}" in row.text
    alone, beside = tmp_path / "alone", tmp_path / "beside"
    bound_job(scenario, question=FEW, out=alone)
    bound_job(scenario, question=FEW, out=beside, run=tmp_path / "run")
    heights = []
    for path in (alone, beside):
        with Image.open(path / "bound-seed-0.png") as sheet:
            heights.append(sheet.height)
    assert heights[1] - heights[0] == (heights[0] - 4) // 3, "one row more than originals, estimate and difference"
    with pytest.raises(DataError, match="no scored attack on this scenario's update"):
        bound_job(scenario, seeds=(1,), question=FEW, run=tmp_path / "run")


def test_each_image_has_singular_values_and_directions_of_its_own_where_asked(scenario: Path, tmp_path: Path) -> None:
    question = Question(sigmas=(1e-3,), products=20, directions=5)
    counts: list[tuple[int, int]] = []
    found = bound_job(scenario, question=question, out=tmp_path, told=lambda done, total: counts.append((done, total)))
    images = found.spectra[0]["images"]
    assert [len(one["leading"]) for one in images] == [5, 5]
    assert all(one["trailing_at_most"][0] < one["leading"][0] for one in images)
    assert counts[-1][0] <= counts[-1][1] == 30
    assert (tmp_path / "directions-seed-0.png").stat().st_mode & 0o077 == 0
    with pytest.raises(ConfigError, match="expected directions >= 2"):
        Question(directions=1)


def test_what_has_no_bound_is_refused(scenario: Path) -> None:
    with pytest.raises(ConfigError, match="expected sigmas > 0"):
        bound_job(scenario, question=Question(sigmas=(0.0,)))
    with pytest.raises(ConfigError, match="expected products >= 20"):
        bound_job(scenario, question=Question(products=3))
    scenario.write_text(f"{TOML}observed_rounds = 2\n")
    with pytest.raises(ConfigError, match="one observed round"):
        bound_job(scenario)


def test_the_command_says_what_it_assumes(scenario: Path) -> None:
    result = CliRunner().invoke(app, ["bound", str(scenario), "--sigma", "0.01", "--products", "20"])
    assert result.exit_code == 0, result.output
    for words in (
        "no attack is expected to exceed",
        "Gaussian prior",
        "linear around",
        "power spectrum is granted",
        "last layer's inputs",
    ):
        assert words in result.stdout
