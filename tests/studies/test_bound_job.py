"""The bound where users meet it: a job with files, and a command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from undelta.cli import app
from undelta.errors import ConfigError, DataError
from undelta.evaluation.lanczos import Krylov
from undelta.studies import products
from undelta.studies.bound import bound_job
from undelta.studies.scoring import score_job
from undelta.studies.single import attack_job, simulate_job

TOML = """
data = "digits"
num_samples = 2
model_arguments = { width = 2, hidden = 8 }
epochs = 1
batches = 2
learning_rate = 0.05
"""
NOISE = '\n[[defenses]]\ndefense = "noise"\nscale = 0.01\n'


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "scenario.toml"
    path.write_text(TOML)
    return path


def test_more_noise_leaves_less_and_the_files_hold_what_is_returned(scenario: Path, tmp_path: Path) -> None:
    out = tmp_path / "bound"
    counts: list[tuple[int, int]] = []
    (found,) = bound_job(
        scenario, sigmas=(1e-3, 1e-1), products=30, out=out, told=lambda done, total: counts.append((done, total))
    )
    low, high = found.ceilings
    assert low.mean > high.mean > found.prior_psnr - 1
    assert 0 < counts[-1][0] <= counts[-1][1] == 30
    assert sorted(path.name for path in out.iterdir()) == ["bound-seed-0.png", "bound.json"]
    (written,) = json.loads((out / "bound.json").read_text())["seeds"]
    assert written["ceilings"][0]["psnr"] == list(low.psnr)
    assert written["spectrum"]["fixed"][0] >= written["spectrum"]["fixed"][1]


def test_a_defense_is_the_noise_and_seeds_differ(scenario: Path) -> None:
    given = [one.ceilings[0].mean for one in bound_job(scenario, sigmas=(0.01,), products=20, seeds=(0, 1))]
    scenario.write_text(TOML + NOISE)
    found = bound_job(scenario, products=20, seeds=(0, 1))
    assert "noise defense" in found[0].noise
    assert [one.ceilings[0].mean for one in found] == pytest.approx(given, abs=1e-6)
    assert given[0] != given[1]


def test_a_stopped_command_resumes_to_the_same_numbers(
    scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = bound_job(scenario, sigmas=(1e-3,), products=20)
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
            bound_job(scenario, sigmas=(1e-3,), products=20, out=tmp_path / "out")
    (kept,) = (tmp_path / "out").iterdir()
    assert kept.stat().st_mode & 0o077 == 0
    counts: list[int] = []
    again = bound_job(
        scenario, sigmas=(1e-3,), products=20, out=tmp_path / "out", told=lambda done, total: counts.append(done)
    )
    assert counts[0] == 8
    assert again[0].ceilings == whole[0].ceilings
    assert again[0].linear == whole[0].linear
    assert not kept.exists()


def test_headroom_is_what_the_strongest_attack_left(scenario: Path, tmp_path: Path) -> None:
    seen, truth = tmp_path / "seen.safetensors", tmp_path / "truth.safetensors"
    simulate_job(scenario, observation_path=seen, truth_path=truth, seed=0)
    attack_job(seen, attack="awa", arguments={"steps": 2}, out=tmp_path / "run", seed=0)
    (record,) = score_job(tmp_path / "run", truth_path=truth)
    (found,) = bound_job(scenario, sigmas=(1e-3,), products=20, run=tmp_path / "run")
    assert found.reached is not None
    assert found.reached.psnr == record.psnr
    assert found.headroom(found.ceilings[0]) == found.ceilings[0].mean_typical - found.reached.psnr
    with pytest.raises(DataError, match="no scored attack on this scenario's update"):
        bound_job(scenario, seeds=(1,), sigmas=(1e-3,), products=20, run=tmp_path / "run")


def test_what_has_no_bound_is_refused(scenario: Path) -> None:
    with pytest.raises(ConfigError, match="expected sigmas > 0"):
        bound_job(scenario, sigmas=(0.0,))
    with pytest.raises(ConfigError, match="expected products >= 20"):
        bound_job(scenario, products=3)
    scenario.write_text(f"{TOML}observed_rounds = 2\n")
    with pytest.raises(ConfigError, match="one observed round"):
        bound_job(scenario)


def test_the_command_says_what_it_assumes(scenario: Path) -> None:
    result = CliRunner().invoke(app, ["bound", str(scenario), "--sigma", "0.01", "--products", "20"])
    assert result.exit_code == 0, result.output
    for words in (
        "no attack can be expected to exceed",
        "Gaussian prior",
        "linear around",
        "power spectrum is granted",
    ):
        assert words in result.stdout
