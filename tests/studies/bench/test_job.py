"""The benchmark at work: attacks behind the fence, and what is made of their results."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from undelta.errors import ConfigError
from undelta.studies.bench import job
from undelta.studies.bench import row as row_of_leaderboard
from undelta.studies.bench.cases import Benchmark, load_benchmark
from undelta.studies.bench.job import bench_job, contestant

OWN = """
import torch
from undelta.attacker.reconstruction import Reconstruction


def grey(*, level: float = 0.5):
    def attack(observation, *, seed=0, run=None):
        images = torch.full((observation.num_samples, *observation.image.shape), level)
        return Reconstruction(
            images=images, labels=observation.labels, mismatch=1.0, iterations=1, seconds=0.0, status="completed"
        )

    return attack
"""

PEEK = """
import importlib
import os
import undelta.attacker.alone as alone
import skimage
from pathlib import Path

picture = Path(skimage.__file__).parent / "data" / "coffee.png"
assert picture.exists()
alone.raise_the_fence()
os.chdir(picture.parent.parent)
for peek in (lambda: __import__("undelta.client.scenario"), lambda: importlib.import_module("undelta.evaluation"),
             lambda: picture.read_bytes(), lambda: open("data/coffee.png", "rb"),
             lambda: __import__("undelta.attacker.awareness_of_client")):
    try:
        peek()
        print("got through")
    except Exception as problem:
        print(type(problem).__name__)
"""


@pytest.fixture
def one_case(monkeypatch: pytest.MonkeyPatch) -> Benchmark:
    whole = load_benchmark()
    small = replace(whole, cases={"short": replace(whole.cases["short"], seeds=(0,))})
    monkeypatch.setattr(job, "load_benchmark", lambda: small)
    monkeypatch.setattr(job, "SECRET_DRAWS", 1)
    monkeypatch.setattr(row_of_leaderboard, "SECRET_DRAWS", 1)
    return small


def test_the_fence_keeps_the_truth_out_of_reach() -> None:
    done = subprocess.run([sys.executable, "-c", PEEK], capture_output=True, text=True, check=True)
    refused = [*["ImportError"] * 2, *["PermissionError"] * 2]
    assert done.stdout.split() == [*refused, "ModuleNotFoundError"], "what is not there is not found, as always"


def test_somebody_elses_attack_gets_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_case: Benchmark) -> None:
    (tmp_path / "own_attack.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    one = contestant("own_attack:grey", {"level": 0.25}, "Mine")
    row = bench_job(one, out=tmp_path / "row.json")
    (entry,), (secret,) = row.entries, row.secret
    assert (row.name, row.repeats, entry.status, secret.status) == ("Mine", True, "completed", "completed")
    assert entry.psnr is not None
    assert 3 < entry.psnr < 20
    assert entry.client_steps is not None
    assert entry.client_steps < one_case.budget
    assert row.doubts(one_case) == []
    monkeypatch.setattr(job, "_attacked", None)  # nothing is run again
    assert bench_job(one, out=tmp_path / "row.json") == row
    with pytest.raises(ConfigError, match="other settings"):
        bench_job(contestant("own_attack:grey", {"level": 0.5}), out=tmp_path / "row.json")
    (tmp_path / "own_attack.py").write_text(OWN + "\n")
    with pytest.raises(ConfigError, match="other code or versions"):
        bench_job(one, out=tmp_path / "row.json")


def test_a_row_names_the_code_that_made_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in ("attacker", "client"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "some.py").write_text("one")
    monkeypatch.setattr(job, "PACKAGE", tmp_path)
    before = job.code_digest("sme")
    (tmp_path / "client" / "some.py").write_text("two")
    assert job.code_digest("sme") == before  # no attack runs on that
    (tmp_path / "attacker" / "some.py").write_text("two")
    assert job.code_digest("sme") != before


def test_an_attack_that_cannot_be_used_is_not_applicable(tmp_path: Path, one_case: Benchmark) -> None:
    row = bench_job(contestant("analytic"), out=tmp_path / "row.json")
    assert row.entries[0].status == "not applicable"
    assert "linear" in row.entries[0].error
    assert row.score(one_case) == 0


def test_costly_iterations_are_fewer() -> None:
    long = load_benchmark().cases["long"]
    steps = contestant("agic").arguments["steps"]
    assert contestant("agic").settings(long)["steps"] == steps // 20
    assert contestant("sme").settings(long)["steps"] == contestant("sme").arguments["steps"]
    assert contestant("agic", {"steps": 7}).settings(long)["steps"] == 7  # what is asked for is taken at its word


def test_unknown_attacks_and_cases_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'sme'"):
        contestant("sm")
    with pytest.raises(ConfigError, match="--cases"):
        bench_job(contestant("sme"), out=tmp_path / "row.json", only=["shrot"])
