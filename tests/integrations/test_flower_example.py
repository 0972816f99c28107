"""examples/flower from end to end, in a real Flower simulation: train, record, attack, score, report."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
import torch

from undelta.client.federation import average
from undelta.client.local import train
from undelta.client.private import load_private
from undelta.observation import Observation, together
from undelta.observation.file import load_observation
from undelta.training import LocalTraining

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower"
MODEL = "photo_federation.task:small_cnn"
MOST_SECONDS = 300


def environment(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(EXAMPLE), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "OMP_NUM_THREADS": "1",
        "FLWR_HOME": str(folder / "flower"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "UNDELTA_LPIPS": "",
        "XDG_CACHE_HOME": os.devnull,
    }


def run(folder: Path, *words: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the example leaves behind: two rounds of two clients, and how long that took."""
    folder = tmp_path_factory.mktemp("flower")
    start = time.monotonic()
    said = run(folder, EXAMPLE / "simulate.py", "--out", "out")
    (folder / "seconds").write_text(str(time.monotonic() - start))
    assert "an update is not recorded" not in said
    assert "deprecated" not in said.lower()
    return folder


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    return importlib.import_module("photo_federation.task")


def recorded(folder: Path, task: ModuleType, server_round: int, partition: int) -> Observation:
    """The server's record of this client; which node is which partition only the clients' own truth tells."""
    own = task.load_photos(partition).images
    for path in sorted((folder / "out" / "server").glob(f"round-{server_round}-*")):
        private, _, _ = load_private(folder / "out" / "clients" / f"truth-{path.name}")
        if torch.equal(private.images, own):
            return load_observation(path, model=MODEL)
    raise AssertionError(f"no record of partition {partition} in round {server_round}")


def test_the_servers_and_the_clients_records_are_the_same_bytes(folder: Path) -> None:
    server = sorted((folder / "out" / "server").iterdir())
    assert len(server) == 4  # two rounds, two clients
    for path in server:
        assert path.read_bytes() == (folder / "out" / "clients" / path.name).read_bytes()


def test_undelta_simulates_the_same_client_to_the_same_update(folder: Path, task: ModuleType) -> None:
    torch.manual_seed(0)
    model = task.small_cnn()
    training = LocalTraining(epochs=4, batches=2, learning_rate=0.003, momentum=0.9)
    for server_round in (1, 2):
        states = []
        for partition in range(task.CLIENTS):
            seen = recorded(folder, task, server_round, partition)
            assert seen.training == training
            names = task.shuffles(partition, server_round)
            mine = train(model, task.load_photos(partition), training, task.IMAGE, seed=names)
            for name, value in mine.state.items():
                sent, received = model.state_dict()[name], seen.received[name]
                assert (seen.initial[name] - sent).abs().max() < 1e-6
                assert ((received - seen.initial[name]) - (value - sent)).abs().max() < 1e-6
                assert (received - seen.initial[name]).abs().max() > 1e-4  # the update is no zero itself
            states.append(mine.state)
        model.load_state_dict(average(states, [4, 4]))
    both = together([recorded(folder, task, server_round, 0) for server_round in (1, 2)])
    assert len(both.rounds) == 2


def test_the_recorded_update_is_attacked_scored_and_reported_within_minutes(folder: Path, task: ModuleType) -> None:
    start = time.monotonic()
    update = sorted((folder / "out" / "server").iterdir())[0]
    steps = ["--steps", "40", "--set", "rollout_steps=40"]
    run(folder, "-m", "undelta", "attack", update, "--model", MODEL, "--out", "run", *steps)
    run(folder, "-m", "undelta", "score", "run", "--truth", folder / "out" / "clients" / f"truth-{update.name}")
    run(folder, "-m", "undelta", "report", "run")
    seconds = time.monotonic() - start + float((folder / "seconds").read_text())
    if os.getloadavg()[0] < 2 * (os.cpu_count() or 1):  # else the time is that of others
        assert seconds < MOST_SECONDS
    record = json.loads(next(folder.glob("run/trials/*/record.json")).read_text())
    assert record["scenario"]["model"] == MODEL
    assert record["psnr"] > 16  # four photographs and no labels; noise is near 8 dB
    assert "original" in (folder / "run" / "report.html").read_text()


def test_the_app_names_its_model_once(task: ModuleType) -> None:
    assert task.MODEL == MODEL
    assert sum(path.read_text().count(MODEL) for path in EXAMPLE.rglob("*.py")) == 1
