"""The one command that repeats a trial does repeat it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from undelta.errors import DataError
from undelta.files import read_tensors, write_tensors
from undelta.report.read import read_audit
from undelta.report.repeat import command
from undelta.studies.scoring import score_job
from undelta.studies.single import attack_job, simulate_job
from undelta.trials.config import to_toml

from .test_read import SCENARIO

KEYS = st.text(min_size=1, max_size=5)
PLAIN = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"])),
)
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3))


@given(VALUES)
def test_values_survive_the_way_through_toml_on_one_line(value: Any) -> None:
    text = to_toml(value)
    assert len(text.split("\n")) == 1
    assert tomllib.loads(f"value = {text}") == {"value": value}


def test_unset_fields_are_left_out_of_toml() -> None:
    assert to_toml({"a": None, "b c": 1}) == '{ "b c" = 1 }'


def shell(text: str, directory: Path) -> None:
    """Paste a command."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(["/bin/sh", "-c", text], cwd=directory, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_pasting_the_command_gives_the_same_trial_with_the_same_pictures(finished: Path, tmp_path: Path) -> None:
    audit = read_audit(finished)
    record = next(record for record in audit.records if record.scored and record.defense != "none")
    shell(command(record), tmp_path)
    folder = tmp_path / f"trial-{record.key}" / "trials" / record.key
    repeated = json.loads((folder / "record.json").read_text())
    assert (repeated["psnr"], repeated["ssim"], repeated["mismatch"]) == (record.psnr, record.ssim, record.mismatch)
    tensors = read_tensors(audit.pictures[record.key], kind="pictures", error=DataError)[0]
    again = read_tensors(folder / "pictures.safetensors", kind="pictures", error=DataError)[0]
    assert all(torch.equal(tensor, again[name]) for name, tensor in tensors.items())


def test_a_scored_run_is_repeated_with_the_two_seeds_it_had(tmp_path: Path) -> None:
    (tmp_path / "given.toml").write_text(SCENARIO)
    seen, truth, run = tmp_path / "given", tmp_path / "hidden", tmp_path / "run"
    simulate_job(tmp_path / "given.toml", observation_path=seen, truth_path=truth, seed=5)
    attack_job(seen, attack="ig", arguments={"steps": 2}, out=run, seed=1)
    score_job(run, truth_path=truth)
    audit = read_audit(run)
    shell(command(audit.records[0]), tmp_path)
    (again,) = read_audit(tmp_path / "repeated").records
    assert (again.psnr, again.ssim) == (audit.records[0].psnr, audit.records[0].ssim)
    assert again.observation == audit.records[0].observation


def test_an_update_of_unknown_origin_is_attacked_again_with_the_same_settings(finished: Path) -> None:
    audit = read_audit(finished)
    scenario = {**audit.records[0].scenario, "data": None, "model": "my.models:net"}
    record = replace(audit.records[0], scenario=scenario, arguments={"steps": 3, "labels": "it's", "q": {"conv": 1.5}})
    assert command(record) == (
        "undelta attack OBSERVATION --attack awa --seed 0 --set steps=3 --set 'labels=\"it'\"'\"'s\"' "
        "--set 'q={ conv = 1.5 }' --model my.models:net --out repeated\n"
    )


@pytest.mark.parametrize("seed", ["0; touch x #", "$(touch x)", "1 --seed 2"])
def test_no_seed_can_smuggle_a_command_into_the_shell(finished: Path, tmp_path: Path, seed: Any) -> None:
    (first, *_) = read_audit(finished).records
    record = replace(first, scenario={**first.scenario, "seed": seed}, observation_file="seen")
    text = command(record).replace("undelta", "printf '%s|'")
    said = subprocess.run(["/bin/sh", "-c", text], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert f"--seed|{seed}|" in said
    assert [path.name for path in tmp_path.iterdir()] == ["scenario.toml"]


def test_a_truth_whose_seed_is_no_number_is_refused(tmp_path: Path) -> None:
    (tmp_path / "given.toml").write_text(SCENARIO)
    seen, truth, run = tmp_path / "given", tmp_path / "hidden", tmp_path / "run"
    simulate_job(tmp_path / "given.toml", observation_path=seen, truth_path=truth, seed=5)
    attack_job(seen, attack="ig", arguments={"steps": 1}, out=run, seed=1)
    tensors, metadata = read_tensors(truth, kind="truth", error=DataError)
    metadata["scenario"]["seed"] = "0; touch x #"
    write_tensors(truth, tensors, metadata)
    with pytest.raises(DataError, match="scenario: seed: expected a whole number, got '0; touch x #'"):
        score_job(run, truth_path=truth)


@pytest.mark.parametrize("name", ["END\nrm -rf x\n", "$(touch x)", "`touch x`", "'; touch x; '"])
def test_no_name_can_smuggle_a_command_into_the_shell(finished: Path, tmp_path: Path, name: str) -> None:
    audit = read_audit(finished)
    record = replace(audit.records[0], name=name, key=f"k{name}", attack=name)
    text = command(record).replace("undelta audit", "true")
    shell(text, tmp_path)
    (file,) = tmp_path.iterdir()  # the configuration and nothing else
    assert tomllib.loads(file.read_text())["name"] == name
