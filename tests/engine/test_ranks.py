"""One attack shared by several processes of a real torchrun: the same result as one, and clear failure."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from undelta.client.disclose import disclose
from undelta.client.scenario import Scenario
from undelta.errors import DataError
from undelta.files import read_tensors
from undelta.observation.file import save_observation

CASES = {
    "several mini-batches": (
        Scenario(
            data="digits",
            num_samples=7,
            model="cnn",
            model_arguments={"width": 4, "hidden": 16},
            epochs=2,
            batches=3,
            learning_rate=0.05,
        ),
        ["--attack", "strongest", "--set", "rollout_steps=6", "--set", "macro_steps=3", "--steps", "8"],
    ),
    "BatchNorm in train mode": (
        Scenario(
            data="digits",
            num_samples=8,
            model="convnet",
            model_arguments={"width": 4},
            epochs=2,
            batches=2,
            learning_rate=0.05,
        ),
        # Nothing where the last digit decides: total variation has kinks, enhanced weights choose layers.
        [
            *("--attack", "awa", "--steps", "6", "--set", "form=linear", "--set", "tv=0.0"),
            *("--set", "bn=0.1", "--set", "bn_source=client"),
        ],
    ),
    "BatchNorm in eval mode, learned position": (
        Scenario(
            data="digits",
            num_samples=5,
            model="convnet",
            model_arguments={"width": 4},
            epochs=2,
            batches=1,
            learning_rate=0.05,
            norm_mode="eval",
        ),
        ["--attack", "sme", "--steps", "6"],
    ),
}


def command(processes: int, file: Path, out: Path, *words: str) -> list[str]:
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes), "--standalone"]
    return [
        sys.executable,
        *(launch if processes > 1 else []),
        "-m",
        "undelta",
        "attack",
        str(file),
        "--out",
        str(out),
        *words,
    ]


def images_of(out: Path) -> torch.Tensor:
    tensors, _ = read_tensors(
        next(out.glob("trials/*/reconstruction.safetensors")), kind="reconstruction", error=DataError
    )
    return tensors["images"]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


def observed(scenario: Scenario, path: Path) -> Path:
    save_observation(disclose(scenario.draw(0), scenario, dtype=torch.float64), path)
    return path


@pytest.mark.parametrize("case", CASES)
def test_two_processes_end_with_the_images_of_one(case: str, tmp_path: Path) -> None:
    scenario, words = CASES[case]
    file = observed(scenario, tmp_path / "client.safetensors")
    images = []
    for processes in (1, 2):
        out = tmp_path / str(processes)
        done = subprocess.run(
            command(processes, file, out, *words), env=environment(), capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("Score with:") == 1
        images.append(images_of(out))
    torch.testing.assert_close(images[1], images[0], rtol=0, atol=1e-6)


def test_a_lost_process_ends_the_run_with_a_checkpoint_that_goes_on(tmp_path: Path) -> None:
    scenario, _ = CASES["several mini-batches"]
    file = observed(scenario, tmp_path / "client.safetensors")
    words = ("--attack", "awa", "--steps", "150", "--checkpoint-seconds", "0")
    run = subprocess.Popen(
        command(2, file, tmp_path / "out", *words), env=environment(), stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 300
    while not list(tmp_path.glob("out/trials/*/checkpoint.pt")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(child_with_rank(run.pid, 1), signal.SIGKILL)
    _, said = run.communicate(timeout=300)
    assert run.returncode != 0
    assert "undelta: " in said
    assert "the same command resumes from there" in said
    assert list(tmp_path.glob("out/trials/*/checkpoint.pt"))
    assert not list(tmp_path.glob("out/trials/*/record.json"))

    again = subprocess.run(
        command(2, file, tmp_path / "out", *words), env=environment(), capture_output=True, text=True, timeout=300
    )
    assert again.returncode == 0, again.stderr
    whole = subprocess.run(
        command(2, file, tmp_path / "whole", *words), env=environment(), capture_output=True, text=True, timeout=300
    )
    assert whole.returncode == 0, whole.stderr
    assert torch.equal(images_of(tmp_path / "out"), images_of(tmp_path / "whole"))


def child_with_rank(parent: int, rank: int) -> int:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            variables = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if int(fields[1]) == parent and f"RANK={rank}".encode() in variables:
            return int(entry.name)
    raise AssertionError("no such process")
