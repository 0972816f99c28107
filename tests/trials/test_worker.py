"""Workers and the store: results appear whole, failures are results, and what was begun goes on."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from undelta.attacker.reconstruction import Moment
from undelta.client.scenario import Scenario
from undelta.errors import ConfigError, DataError, NoRoom
from undelta.files import load_json, read_tensors, to_json
from undelta.trials import directory as store_module
from undelta.trials.directory import Contents, RunDirectory
from undelta.trials.leases import Lease, LeaseLost, Leases
from undelta.trials.record import SCHEMA, Record
from undelta.trials.tasks import serve
from undelta.trials.trial import Trial
from undelta.trials.worker import Trials, attempt

SCENARIO = Scenario(
    data="faces",
    image_size=8,
    num_samples=2,
    model="mlp",
    model_arguments={"hidden": [4]},
    epochs=2,
    batches=1,
    learning_rate=0.05,
)
ONE = Trial(scenario=SCENARIO, attack="awa", arguments={"steps": 25})
TWO = replace(ONE, seed=1)
DONE = ONE.unmeasured("completed")
BROKEN = """
from torch import nn
class Model(nn.Sequential):
    def forward(self, images):
        raise RuntimeError("shapes\\n  do not fit")
def build():
    return Model(nn.Flatten(), nn.Linear(64, 2))
"""


@pytest.fixture(autouse=True)
def no_lpips_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNDELTA_LPIPS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)


@pytest.fixture
def leases() -> Leases:
    return Leases(worker="test")


@pytest.fixture
def store(tmp_path: Path, leases: Leases) -> RunDirectory:
    made = RunDirectory(tmp_path / "audit")
    made.prepare("# text\n", [ONE, TWO], leases)
    return made


@pytest.fixture
def lease(store: RunDirectory, leases: Leases) -> Iterator[Lease]:
    lease = leases.acquire(store.folder(ONE.key))
    assert lease is not None
    yield lease
    lease.release()


def job(store: RunDirectory, *trials: Trial, **changes: Any) -> Trials:
    keys = tuple(trial.key for trial in trials)
    return Trials(directory=str(store.directory), keys=keys, worker="test", **changes)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def record_of(store: RunDirectory, trial: Trial) -> Record:
    record = store.record(trial.key)
    assert record is not None
    return record


class Killed(BaseException):
    """Ends an attack at once, as a kill would."""


def kill_at(iteration: int) -> Any:
    def watch(moment: Moment, total: int) -> None:
        if moment.iteration >= iteration:
            raise Killed

    return watch


# Working


def test_a_worker_leaves_a_record_and_pictures_of_every_trial_and_nothing_else(store: RunDirectory) -> None:
    serve(job(store, ONE, TWO))
    for trial in (ONE, TWO):
        assert names(store.folder(trial.key)) == ["pictures.safetensors", "record.json", "trial.json"]
        record = record_of(store, trial)
        assert (record.key, record.seed, record.status) == (trial.key, trial.seed, "completed")
        tensors, _ = read_tensors(store.folder(trial.key) / "pictures.safetensors", kind="pictures", error=DataError)
        assert tensors["originals"].shape == (2, 1, 8, 8)


def test_what_is_finished_is_not_done_again(store: RunDirectory) -> None:
    serve(job(store, ONE))
    before = (store.folder(ONE.key) / "record.json").stat()
    serve(job(store, ONE, TWO))
    after = (store.folder(ONE.key) / "record.json").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert record_of(store, TWO).status == "completed"


def test_what_somebody_else_works_on_is_left_alone(store: RunDirectory, lease: Lease) -> None:
    serve(job(store, ONE, TWO))
    assert store.unfinished([ONE.key, TWO.key]) == [ONE.key]
    lease.check()


def test_what_somebody_finishes_just_before_the_claim_is_not_done_again(
    store: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    acquire = Leases.acquire

    def overtaken(leases: Leases, folder: Path) -> Lease | None:
        (folder / "record.json").write_bytes(to_json(DONE))
        return acquire(leases, folder)

    monkeypatch.setattr(Leases, "acquire", overtaken)
    serve(job(store, ONE))
    assert store.record(ONE.key) == DONE
    assert names(store.folder(ONE.key)) == ["record.json", "trial.json"]


def test_a_record_that_is_written_just_when_it_is_looked_for_is_found_the_next_time(
    store: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = load_json

    def too_early(path: Path) -> Any:
        try:
            return load(path)
        finally:
            path.write_bytes(to_json(DONE))

    monkeypatch.setattr(store_module, "load_json", too_early)
    assert store.record(ONE.key) is None
    assert store.record(ONE.key) == DONE


def test_a_worker_sets_its_number_of_threads_and_goes_home(store: RunDirectory, tmp_path: Path) -> None:
    here = Path.cwd()
    try:
        serve(job(store, ONE, threads=2, home=str(tmp_path)))
        assert Path.cwd() == tmp_path
    finally:
        os.chdir(here)
        torch.set_num_threads(1)
    assert record_of(store, ONE).threads == 2


# Going on


def test_a_killed_trial_goes_on_from_its_checkpoint_to_the_same_images(store: RunDirectory, leases: Leases) -> None:
    for iteration in (10, 20):
        lease = leases.acquire(store.folder(ONE.key))
        assert lease is not None
        with pytest.raises(Killed):
            attempt(store, ONE, lease, checkpoint_seconds=0, watch=kill_at(iteration))
        lease.release()
        assert names(store.folder(ONE.key)) == ["checkpoint.pt", "trial.json"]
    seen: list[int] = []
    lease = leases.acquire(store.folder(ONE.key))
    assert lease is not None
    attempt(store, ONE, lease, watch=lambda moment, total: seen.append(moment.iteration))
    lease.release()
    assert seen == [20]  # the one that the kill cut off; those before it are not done again
    assert names(store.folder(ONE.key)) == ["pictures.safetensors", "record.json", "trial.json"]

    whole = RunDirectory(store.directory / "whole")
    whole.prepare("", [ONE], leases)
    serve(job(whole, ONE))
    assert (store.folder(ONE.key) / "pictures.safetensors").read_bytes() == (
        whole.folder(ONE.key) / "pictures.safetensors"
    ).read_bytes()
    assert record_of(store, ONE).mismatch == record_of(whole, ONE).mismatch
    assert record_of(store, ONE).images == record_of(whole, ONE).images


def test_a_trial_that_meets_a_full_disk_keeps_its_checkpoint_and_resumes_once_there_is_room(
    store: RunDirectory, leases: Leases, limit_files: Callable[[int | None], None]
) -> None:
    def fill(moment: Moment, total: int) -> None:
        if moment.iteration >= 10:
            limit_files(1000)

    lease = leases.acquire(store.folder(ONE.key))
    assert lease is not None
    with pytest.raises(NoRoom, match=r"cannot write .*checkpoint.pt"), lease:
        attempt(store, ONE, lease, checkpoint_seconds=0, watch=fill)
    assert names(store.folder(ONE.key)) == ["checkpoint.pt", "trial.json"]
    with pytest.raises(NoRoom):
        serve(job(store, ONE, TWO))
    assert store.unfinished([ONE.key, TWO.key]) == [ONE.key, TWO.key]
    limit_files(None)
    serve(job(store, ONE, TWO))
    assert [record_of(store, trial).status for trial in (ONE, TWO)] == ["completed", "completed"]
    whole = RunDirectory(store.directory / "whole")
    whole.prepare("", [ONE], leases)
    serve(job(whole, ONE))
    assert record_of(store, ONE).images == record_of(whole, ONE).images


def test_a_checkpoint_of_other_threads_is_not_mixed_in(store: RunDirectory, lease: Lease) -> None:
    with pytest.raises(Killed):
        attempt(store, ONE, lease, checkpoint_seconds=0, watch=kill_at(20))
    seen: list[int] = []
    torch.set_num_threads(2)
    try:
        attempt(store, ONE, lease, watch=lambda moment, total: seen.append(moment.iteration))
    finally:
        torch.set_num_threads(1)
    assert seen == [0, 10, 20]


def test_an_interrupted_trial_stays_unfinished_and_ends_the_worker(store: RunDirectory, monkeypatch: Any) -> None:
    def interrupt(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("undelta.attacker.descent.Descent.step", interrupt)
    with pytest.raises(KeyboardInterrupt):
        serve(job(store, ONE, TWO))
    assert store.unfinished([ONE.key, TWO.key]) == [ONE.key, TWO.key]
    assert "lease.json" not in names(store.folder(ONE.key))


def test_who_has_lost_its_claim_writes_nothing(store: RunDirectory, lease: Lease) -> None:
    def lose(moment: Moment, total: int) -> None:
        lease.path.unlink(missing_ok=True)

    assert attempt(store, ONE, lease, checkpoint_seconds=math.inf, watch=lose) is None
    assert names(store.folder(ONE.key)) == ["trial.json"]


def test_who_learns_of_its_loss_stops_at_once(store: RunDirectory, lease: Lease) -> None:
    seen: list[int] = []

    def lose(moment: Moment, total: int) -> None:
        seen.append(moment.iteration)
        lease.lost = moment.iteration == 10

    assert attempt(store, ONE, lease, checkpoint_seconds=math.inf, watch=lose) is None
    assert seen == [0, 10]


def test_the_record_comes_last_so_a_finished_trial_has_its_pictures(store: RunDirectory) -> None:
    calls: list[list[str]] = []

    def lose_after_pictures() -> None:
        calls.append(names(store.folder(ONE.key)))
        if len(calls) == 2:
            raise LeaseLost

    with pytest.raises(LeaseLost):
        store.finish(DONE, {"originals": torch.zeros(1)}, lose_after_pictures)
    assert calls == [["trial.json"], ["pictures.safetensors", "trial.json"]]
    assert store.status(ONE.key) is None


# Failing


def test_a_trial_that_fails_is_recorded_and_the_next_one_runs(
    store: RunDirectory, leases: Leases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_model.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(tmp_path)
    broken = replace(ONE, scenario=replace(SCENARIO, model="broken_model:build", model_arguments={}))
    store.prepare("", [broken, TWO], leases)
    serve(job(store, broken, TWO))
    record = record_of(store, broken)
    assert (record.status, record.error) == ("failed", "RuntimeError: shapes do not fit")
    assert record.psnr is None
    assert 'raise RuntimeError("shapes' in (store.folder(broken.key) / "error.txt").read_text()
    assert record_of(store, TWO).status == "completed"


def test_an_attack_that_lacks_knowledge_is_not_applicable_rather_than_failed(
    store: RunDirectory, leases: Leases
) -> None:
    granted = {**ONE.arguments, "labels": "disclosed"}
    blind = replace(ONE, attack="sme", arguments=granted, scenario=replace(SCENARIO, grant_labels=False))
    store.prepare("", [blind], leases)
    serve(job(store, blind))
    record = record_of(store, blind)
    assert record.status == "not applicable"
    assert "grant_labels" in (record.error or "")
    assert names(store.folder(blind.key)) == ["record.json", "trial.json"]


def test_failed_trials_are_forgotten_only_when_asked_and_others_never(store: RunDirectory, leases: Leases) -> None:
    serve(job(store, TWO))
    path = store.folder(ONE.key) / "record.json"
    path.write_bytes(to_json(ONE.unmeasured("failed", "it broke")))
    fresh = RunDirectory(store.directory)
    assert fresh.unfinished([ONE.key, TWO.key]) == []
    fresh.forget_failed([ONE.key, TWO.key], leases)
    assert fresh.unfinished([ONE.key, TWO.key]) == [ONE.key]
    assert names(store.folder(ONE.key)) == ["trial.json"]


def test_a_failed_trial_that_somebody_retries_already_is_left_to_them(store: RunDirectory, lease: Lease) -> None:
    (store.folder(ONE.key) / "record.json").write_bytes(to_json(ONE.unmeasured("failed", "it broke")))
    store.forget_failed([ONE.key], Leases(worker="other"))
    assert record_of(store, ONE).status == "failed"


def test_a_retry_that_has_just_succeeded_is_not_forgotten(store: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    path = store.folder(ONE.key) / "record.json"
    path.write_bytes(to_json(ONE.unmeasured("failed", "it broke")))
    acquire = Leases.acquire

    def overtaken(leases: Leases, folder: Path) -> Lease | None:
        path.write_bytes(to_json(DONE))
        return acquire(leases, folder)

    monkeypatch.setattr(Leases, "acquire", overtaken)
    store.forget_failed([ONE.key], Leases(worker="late"))
    assert record_of(store, ONE).status == "completed"
    assert store.status(ONE.key) == "completed"


# The directory


def test_the_directory_holds_the_configuration_and_the_trials(store: RunDirectory) -> None:
    assert (store.directory / "audit.toml").read_text() == "# text\n"
    assert names(store.directory / "trials") == sorted([ONE.key, TWO.key])
    values = json.loads((store.folder(ONE.key) / "trial.json").read_text())
    assert set(values) == {"name", "scenario", "attack", "arguments", "defense", "seed", "noise"}
    assert store.trial(ONE.key) == ONE


def test_trials_no_longer_asked_for_are_set_aside_and_come_back(store: RunDirectory, leases: Leases) -> None:
    serve(job(store, ONE, TWO))
    store.prepare("", [TWO], leases)
    assert names(store.directory / "trials") == [TWO.key]
    assert names(store.directory / "retired") == [ONE.key]
    again = RunDirectory(store.directory)
    again.prepare("", [ONE, TWO], leases)
    assert again.unfinished([ONE.key, TWO.key]) == []
    assert names(store.directory / "retired") == []


def test_another_configuration_is_refused_while_the_first_one_runs(store: RunDirectory, lease: Lease) -> None:
    with pytest.raises(ConfigError, match="another configuration"):
        store.prepare("# other\n", [TWO], Leases(worker="other"))
    assert (store.directory / "audit.toml").read_text() == "# text\n"
    assert store.folder(ONE.key).exists()


def test_a_record_that_cannot_be_read_is_refused_before_anything_is_changed(
    store: RunDirectory, leases: Leases
) -> None:
    (store.folder(ONE.key) / "record.json").write_text('{"status": "completed"}')
    before = {path: path.read_bytes() for path in store.directory.rglob("*") if path.is_file()}
    with pytest.raises(DataError, match="another version of undelta"):
        store.prepare("# other\n", [ONE], leases)
    assert {path: path.read_bytes() for path in store.directory.rglob("*") if path.is_file()} == before


def test_a_new_name_reaches_finished_records_without_running_again(store: RunDirectory, leases: Leases) -> None:
    serve(job(store, ONE))
    before = record_of(store, ONE)
    store.prepare("", [replace(ONE, name="new", defense="shield"), TWO], leases)
    assert record_of(store, ONE) == replace(before, name="new", defense="shield")


def test_a_trial_in_another_trials_folder_is_refused(store: RunDirectory) -> None:
    path = store.folder(ONE.key) / "trial.json"
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 5'))
    with pytest.raises(DataError, match="its folder is called"):
        store.trial(ONE.key)


def test_a_record_with_another_key_or_schema_however_long_is_one_short_complaint(store: RunDirectory) -> None:
    serve(job(store, ONE))
    path = store.folder(ONE.key) / "record.json"
    sound = path.read_text()
    for old, new, words in (
        (ONE.key, "x" * 5000, "its folder is called"),
        (f'"schema": {SCHEMA}', f'"schema": "{"x" * 5000}"', "expected a record of schema"),
    ):
        assert old in sound
        path.write_text(sound.replace(old, new))
        with pytest.raises(DataError, match=words) as complaint:
            store.record(ONE.key)
        assert len(str(complaint.value)) < 500


def test_contents_with_another_key_however_long_are_one_short_complaint() -> None:
    with pytest.raises(DataError, match="16 hex digits") as complaint:
        Contents(title="", keys=("x" * 5000,))
    assert len(str(complaint.value)) < 500


@pytest.mark.parametrize("content", ["", "{", "[]", '{"status": 3}', "[" * 100_000])
def test_a_damaged_record_is_named(store: RunDirectory, content: str) -> None:
    (store.folder(ONE.key) / "record.json").write_text(content)
    with pytest.raises(DataError, match=r"record\.json"):
        store.status(ONE.key)


def test_what_a_killed_worker_left_half_written_is_removed(store: RunDirectory) -> None:
    folder = store.folder(ONE.key)
    left = [f".{name}.{'0123456789abcdef'}" for name in ("record.json", "pictures.safetensors", "checkpoint.pt")]
    for name in (*left, "checkpoint.pt"):
        (folder / name).write_bytes(b"half")
    serve(job(store, ONE))
    assert names(folder) == ["pictures.safetensors", "record.json", "trial.json"]
