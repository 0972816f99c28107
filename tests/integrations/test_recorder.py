"""The recorder by itself: bounds that hold for clients side by side, and both files of a client or none."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from undelta.client.private import Private
from undelta.errors import ConfigError
from undelta.integrations import recorder
from undelta.integrations.recorder import Recorder
from undelta.models import build
from undelta.observation import ImageSpec, Observation
from undelta.observation.file import save_observation

IMAGE = ImageSpec(shape=(1, 4, 4), mean=(0.5,), std=(0.25,), classes=3)
ARGUMENTS = {"hidden": [5]}
SETTINGS = {"epochs": 1, "batches": 1, "lr": 0.1}


def recorder_of(folder: Path, **bounds: int) -> Recorder:
    limits: dict[str, Any] = {"most": 16, "most_bytes": 10**9, **bounds}
    log = logging.getLogger("undelta.test")
    return Recorder(into=folder, model="mlp", image=IMAGE, model_arguments=ARGUMENTS, log=log, **limits)


def keep(recorder: Recorder, node: int, **options: Any) -> None:
    before = build("mlp", ARGUMENTS, shape=IMAGE.shape, classes=IMAGE.classes).state_dict()
    after = {name: tensor + 0.1 for name, tensor in before.items()}
    recorder.keep(f"node-{node}", before, after, **{"settings": SETTINGS, "num_samples": 2, **options})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("bound", [{"most": 1}, {"most_bytes": 8000}])
def test_clients_that_are_recorded_at_once_keep_to_the_bound_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: dict[str, int]
) -> None:
    """Each with a recorder of its own, as clients in processes of their own have."""
    met = threading.Barrier(2)

    def save_slowly(observation: Observation, path: Path) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            met.wait(0.5)  # until the other has looked for room, too, if nothing stops it
        save_observation(observation, path)

    monkeypatch.setattr(recorder, "save_observation", save_slowly)

    def client(node: int) -> None:
        own = recorder_of(tmp_path, **bound)
        with own.guard():
            keep(own, node)

    threads = [threading.Thread(target=client, args=(node,)) for node in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(names(tmp_path)) == 1


def test_a_folder_that_cannot_be_locked_is_written_to_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(handle: int, operation: int) -> None:
        raise OSError(9, "Bad file descriptor")  # as network file systems may say

    monkeypatch.setattr(fcntl, "flock", refuse)
    keep(recorder_of(tmp_path), 1)
    assert names(tmp_path) == ["node-1.safetensors"]


def test_where_its_truth_cannot_be_written_an_update_is_not_left_behind_and_an_earlier_pair_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = Private(images=torch.rand(2, 1, 4, 4), labels=torch.tensor([0, 1]))
    own = recorder_of(tmp_path)
    keep(own, 1, private=private)
    keep(own, 2, private=private)
    before = {name: (tmp_path / name).read_bytes() for name in names(tmp_path)}
    assert len(before) == 4

    def full(*words: object) -> None:
        raise ConfigError("no space left on device")

    monkeypatch.setattr(recorder, "save_private", full)
    for node in (2, 3):  # in place of an earlier one, and as a new one
        with pytest.raises(ConfigError, match="no space left"):
            keep(own, node, private=private)
    assert {name: (tmp_path / name).read_bytes() for name in names(tmp_path)} == before


@pytest.mark.usefixtures("bounded_memory")
@pytest.mark.parametrize("settings", [{"batch-size": 1}, {"batches": 10**10}, {"batches": 1, "epochs": 10**10}])
def test_a_client_that_claims_too_much_costs_the_server_nothing(tmp_path: Path, settings: dict[str, int]) -> None:
    began = time.perf_counter()
    with pytest.raises(ConfigError, match=r"expected (num_samples|epochs x batches) <= 10,000,000"):
        keep(recorder_of(tmp_path), 1, settings={"epochs": 1, "lr": 0.1, **settings}, num_samples=10**10)
    assert time.perf_counter() - began < 2


def test_the_truth_of_an_earlier_update_does_not_stay_beside_a_new_one(tmp_path: Path) -> None:
    keep(recorder_of(tmp_path), 1, private=Private(images=torch.rand(2, 1, 4, 4), labels=torch.tensor([0, 1])))
    keep(recorder_of(tmp_path), 1)
    assert names(tmp_path) == ["node-1.safetensors"]


def test_a_process_that_was_forked_meanwhile_does_not_keep_others_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handles: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(os, "close", handles.append)  # as if a child still had the folder open
        with recorder_of(tmp_path)._alone():
            pass
    handles.append(os.open(tmp_path, os.O_RDONLY))
    fcntl.flock(handles[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)  # complains if it is held
    for handle in handles:
        os.close(handle)
