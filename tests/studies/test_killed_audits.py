"""An audit of twelve trials, killed three times at random moments, ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from undelta.errors import DataError
from undelta.files import read_tensors

TOML = """
name = "to be killed"
seeds = [0, 1]
[scenario]
data = "faces"
image_size = 8
num_samples = 4
model = "cnn"
model_arguments = { width = 4, hidden = 16 }
batches = 2
learning_rate = 0.05
[vary]
epochs = [1, 2]
[[attacks]]
attack = "awa"
steps = 80
[[attacks]]
attack = "strongest"
steps = 50
rollout_steps = 35
[[attacks]]
attack = "sme"
steps = 90
"""
TRIALS, KILLS = 12, 3
CLOCK = ("seconds", "peak_memory_mb", "date")


def start(directory: Path, out: Path) -> subprocess.Popen[bytes]:
    words = ["audit", str(directory / "audit.toml"), "--out", str(out), "--workers", "2"]
    return subprocess.Popen(
        [sys.executable, "-m", "undelta", *words, "--checkpoint-seconds", "0.02"],
        start_new_session=True,  # a process group of its own, to be killed as a whole
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "UNDELTA_LPIPS": "", "XDG_CACHE_HOME": os.devnull},
    )


def finish(process: subprocess.Popen[bytes]) -> None:
    printed = process.communicate(timeout=300)[0].decode()
    assert process.returncode == 0, printed


def files(out: Path, name: str) -> set[Path]:
    return set(out.glob(f"trials/*/{name}"))


def wait_until_something_runs(process: subprocess.Popen[bytes], out: Path) -> None:
    """Until an attack of this very process group writes checkpoints; old ones may lie about."""
    began, deadline = time.time(), time.monotonic() + 300
    while time.monotonic() < deadline and process.poll() is None:
        for path in files(out, "checkpoint.pt"):
            try:
                if path.stat().st_mtime > began:
                    return
            except FileNotFoundError:  # its trial has just finished
                continue
        time.sleep(0.01)


def wait_or_until_one_more(seconds: float, out: Path) -> None:
    """That long, but a kill costs no more than a trial or two, so that the last one still hits something."""
    done, deadline = len(files(out, "record.json")), time.monotonic() + seconds
    while time.monotonic() < deadline and len(files(out, "record.json")) == done:
        time.sleep(0.005)


def without_clock(path: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(path.read_text())
    for key in CLOCK:
        del record[key]
    for moment in record["history"] + record["curve"]:
        del moment["seconds"]
    return record


def test_an_audit_killed_at_three_random_moments_ends_with_the_same_records(tmp_path: Path) -> None:
    (tmp_path / "audit.toml").write_text(TOML)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    began = time.monotonic()
    process = start(tmp_path, whole)
    wait_until_something_runs(process, whole)
    start_up = time.monotonic() - began
    finish(process)
    seconds = [json.loads(path.read_text())["seconds"] for path in files(whole, "record.json")]
    per_trial = sum(seconds) / TRIALS
    dice = random.Random(17)  # noqa: S311
    caught_in_the_middle = 0
    finished = []
    for number in range(KILLS):
        process = start(tmp_path, killed)
        if number == 1:  # while it starts: it reads, checks, prepares, spawns
            wait_or_until_one_more(dice.uniform(0.1, 1) * start_up, killed)
        else:  # while it works
            wait_until_something_runs(process, killed)
            wait_or_until_one_more(dice.uniform(0, 1.2) * per_trial, killed)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        finished.append(len(files(killed, "record.json")))
        caught_in_the_middle += bool(files(killed, "checkpoint.pt"))
    assert finished == sorted(finished)  # nothing that was done is ever undone
    assert finished[-1] < TRIALS  # or the last kills would have hit nothing
    assert caught_in_the_middle >= KILLS // 2
    finish(start(tmp_path, killed))

    assert len(files(killed, "record.json")) == TRIALS
    for path in sorted(files(whole, "*")):
        other = killed / path.relative_to(whole)
        if path.name == "record.json":
            assert without_clock(other) == without_clock(path)
        elif path.name == "pictures.safetensors":
            tensors, _ = read_tensors(path, kind="pictures", error=DataError)
            again, _ = read_tensors(other, kind="pictures", error=DataError)
            assert tensors.keys() == again.keys()
            assert all(torch.equal(tensor, again[name]) for name, tensor in tensors.items())
        else:
            assert other.read_bytes() == path.read_bytes()
    # One record per trial, and no lease, checkpoint or half-written file left behind.
    left = {path.relative_to(killed) for path in killed.glob("trials/*/*")}
    assert left == {path.relative_to(whole) for path in whole.glob("trials/*/*")}
    assert {path.name for path in files(killed, "*")} == {"trial.json", "record.json", "pictures.safetensors"}
    assert json.loads((killed / "verdict.json").read_text()) == json.loads((whole / "verdict.json").read_text())
