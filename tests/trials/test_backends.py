"""Backends: processes, Ray and submitit's local jobs give the same results; dying workers are noticed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from undelta.client.scenario import Scenario
from undelta.errors import ConfigError
from undelta.files import to_json
from undelta.trials.backends import Ended, Processes, Slurm, check_backend, open_backend
from undelta.trials.directory import RunDirectory
from undelta.trials.leases import Leases, process_started, scan
from undelta.trials.pool import Pool, PoolError
from undelta.trials.tasks import Progress, Tasks, serve
from undelta.trials.trial import Trial
from undelta.trials.worker import Trials

SCENARIO = Scenario(
    data="faces",
    image_size=8,
    num_samples=2,
    model="cnn",
    model_arguments={"width": 2, "hidden": 4},
    epochs=2,
    batches=1,
    learning_rate=0.05,
)
TRIALS = [
    Trial(scenario=SCENARIO, attack=attack, arguments=arguments, seed=seed)
    for attack, arguments in (("awa", {"steps": 15}), ("strongest", {"steps": 8, "rollout_steps": 5}))
    for seed in (0, 1)
]
KEYS = tuple(trial.key for trial in TRIALS)
CLOCK = ("seconds", "peak_memory_mb", "date")

# Models that break their worker, always or once.
DEADLY = """
import os, signal
from pathlib import Path
from torch import nn
HERE = Path(__file__).parent
class Model(nn.Sequential):
    fatal = False
    def forward(self, images):
        if self.fatal:
            with (HERE / "deaths").open("a") as file:
                file.write("died ")
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(images)
def plain():
    return Model(nn.Flatten(), nn.Linear(64, 2))
def always():
    model = plain()
    model.fatal = True
    return model
def once():
    model = plain()
    model.fatal = not (HERE / "deaths").exists()
    return model
"""


@pytest.fixture(autouse=True)
def no_lpips_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNDELTA_LPIPS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """The trials' results as one worker in this process has them."""
    store = RunDirectory(tmp_path_factory.mktemp("here"))
    store.prepare("", TRIALS, Leases(worker="test"))
    with pytest.MonkeyPatch.context() as patch:  # made before any test hides the weights of LPIPS
        patch.delenv("UNDELTA_LPIPS", raising=False)
        patch.setenv("XDG_CACHE_HOME", os.devnull)
        serve(job(store))
    return store


@pytest.fixture
def store(tmp_path: Path) -> RunDirectory:
    made = RunDirectory(tmp_path / "audit")
    made.prepare("", TRIALS, Leases(worker="test"))
    return made


def job(store: RunDirectory, *trials: Trial) -> Trials:
    keys = tuple(trial.key for trial in trials or TRIALS)
    home = str(store.directory.parent)
    return Trials(directory=str(store.directory), keys=keys, worker="test", checkpoint_seconds=0.0, home=home)


def results(store: RunDirectory) -> dict[str, Any]:
    found = {}
    for key in KEYS:
        record = json.loads((store.folder(key) / "record.json").read_text())
        for name in CLOCK:
            del record[name]
        for moment in record["history"] + record["curve"]:
            del moment["seconds"]
        found[key] = (record, (store.folder(key) / "pictures.safetensors").read_bytes())
    return found


def deadly(tmp_path: Path, function: str) -> Trial:
    (tmp_path / "deadly_model.py").write_text(DEADLY)
    scenario = replace(SCENARIO, model=f"deadly_model:{function}", model_arguments={})
    return Trial(scenario=scenario, attack="ig", arguments={"steps": 2})


# The same results everywhere


@pytest.mark.parametrize("name", ["processes", "ray", "slurm"])
def test_every_backend_gives_the_same_bits_with_two_workers(here: RunDirectory, store: RunDirectory, name: str) -> None:
    backend = open_backend(name, workers=2, threads=1, directory=store.directory, slurm={"cluster": "local"})
    seen: list[Progress] = []
    Pool(job(store), backend, workers=2).run(seen.append)
    assert results(store) == results(here)
    assert not list(store.directory.glob("trials/*/lease*.json"))
    last = seen[-1]
    assert (last.total, last.done, last.failed, last.not_applicable, last.left) == (4, 4, 0, 0, 0)
    workers = {owner.worker for progress in seen for owner in progress.running.values()}
    assert 1 <= len(workers) <= 2
    assert all(len(progress.running) <= 2 for progress in seen)


# Dying workers


def test_a_trial_whose_worker_dies_once_is_done_by_another(store: RunDirectory, tmp_path: Path) -> None:
    trial = deadly(tmp_path, "once")
    store.prepare("", [trial], Leases(worker="test"))
    Pool(job(store, trial), Processes(), workers=1).run()
    record = store.record(trial.key)
    assert record is not None
    assert (record.status, record.error) == ("completed", None)
    assert (tmp_path / "deaths").read_text() == "died "


def test_a_trial_that_kills_its_workers_is_reported_and_the_others_are_done(
    store: RunDirectory, tmp_path: Path
) -> None:
    trial = deadly(tmp_path, "always")
    store.prepare("", [trial, TRIALS[0]], Leases(worker="test"))
    Pool(job(store, trial, TRIALS[0]), Processes(), workers=1).run()
    record = store.record(trial.key)
    assert record is not None
    assert record.status == "failed"
    assert record.error == "the worker died 2 times on it: killed by SIGKILL (out of memory?)"
    assert record.psnr is None
    assert (tmp_path / "deaths").read_text() == "died died "
    assert store.status(TRIALS[0].key) == "completed"
    assert not list(store.directory.glob("trials/*/lease*.json"))


def test_workers_that_meet_a_full_disk_end_the_pool_and_no_trial_has_failed(
    store: RunDirectory, limit_files: Callable[[int | None], None]
) -> None:
    limit_files(1000)
    with pytest.raises(PoolError, match="no room to write; make some, and the same command resumes"):
        Pool(job(store), Processes(), workers=1).run()
    limit_files(None)
    assert store.unfinished(KEYS) == list(KEYS)


def test_workers_that_cannot_begin_end_the_pool_with_their_reason(store: RunDirectory, capfd: Any) -> None:
    (store.folder(KEYS[0]) / "trial.json").write_text("{}")
    with pytest.raises(PoolError, match="3 workers in a row died before they got anywhere: ended with exit code 1"):
        Pool(replace(job(store), keys=KEYS[:1]), Processes(), workers=1).run()
    assert "trial.json: missing scenario, attack" in capfd.readouterr().err


def test_a_slurm_job_that_fails_or_dies_says_so(store: RunDirectory, tmp_path: Path) -> None:
    trial = deadly(tmp_path, "always")
    store.prepare("", [*TRIALS, trial], Leases(worker="test"))
    (store.folder(KEYS[0]) / "trial.json").write_text("{}")
    backend = Slurm(tmp_path / "slurm", threads=1, settings={"cluster": "local"})
    backend.start(replace(job(store, TRIALS[0]), worker="failing"))
    backend.start(replace(job(store, trial), worker="dying"))
    ended: dict[str, str] = {}
    deadline = time.monotonic() + 300
    while len(ended) < 2 and time.monotonic() < deadline:
        ended |= {end.worker: end.problem or "" for end in backend.ended()}
        time.sleep(0.1)
    backend.stop()
    assert ended["failing"].endswith("trial.json: missing scenario, attack")
    assert ended["dying"].endswith("it left no result")


class Ends:
    """A backend whose workers all end at once, in the ways they are told; what other machines do is not in our hand."""

    def __init__(self, *ends: Any) -> None:
        self.ends = list(ends)
        self.started: list[str] = []
        self.over: list[str] = []

    def start(self, tasks: Tasks) -> None:
        self.started.append(tasks.worker)
        self.over.append(tasks.worker)

    def ended(self) -> list[Ended]:
        done = [Ended(worker=worker, **(self.ends.pop(0) if self.ends else {})) for worker in self.over]
        self.over.clear()
        return done

    def stop(self) -> None:
        self.over.clear()


def test_preempted_workers_are_replaced_without_end(store: RunDirectory) -> None:
    backend = Ends(*[{"problem": "PREEMPTED", "blameless": True}] * 5)
    pool = Pool(replace(job(store), keys=KEYS[:1]), backend, workers=1)

    def finish_in_time(progress: Progress) -> None:
        if len(backend.started) == 5:
            (store.folder(KEYS[0]) / "record.json").write_bytes(to_json(TRIALS[0].unmeasured("completed")))

    pool.run(finish_in_time)
    assert len(backend.started) == 5


def test_what_was_killed_right_after_its_record_is_cleaned_up(store: RunDirectory) -> None:
    folder = store.folder(KEYS[0])
    lease = Leases(worker="dead").acquire(folder)
    assert lease is not None
    lease.path.write_text(lease.path.read_text().replace(f'"pid": {os.getpid()}', f'"pid": {2**22 + 1}'))
    (folder / "checkpoint.pt").touch()
    (folder / "record.json").write_bytes(to_json(TRIALS[0].unmeasured("completed")))
    Pool(replace(job(store), keys=KEYS[:1]), Ends(), workers=1).run()
    assert sorted(path.name for path in folder.iterdir()) == ["record.json", "trial.json"]


def test_a_trial_that_another_machine_works_on_is_waited_for(store: RunDirectory) -> None:
    lease = Leases(worker="elsewhere").acquire(store.folder(KEYS[0]))
    assert lease is not None
    backend = Ends()
    looks = []

    def finish_elsewhere(progress: Progress) -> None:
        looks.append(progress)
        if len(looks) == 3:
            (store.folder(KEYS[0]) / "record.json").write_bytes(to_json(TRIALS[0].unmeasured("completed")))
            lease.release()

    Pool(replace(job(store), keys=KEYS[:1]), backend, workers=2).run(finish_elsewhere)
    assert backend.started == []
    assert [len(progress.running) for progress in looks] == [1, 1, 1, 0]


# The end of the one who started them


def wait_for_claims(directory: Path, count: int, process: subprocess.Popen[bytes]) -> list[int]:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and process.poll() is None:
        folders = list((directory / "trials").glob("*"))
        owners = [found.owner for folder in folders for found in scan(folder) if found.owner]
        if len(owners) >= count:
            return [owner.pid for owner in owners]
        time.sleep(0.05)
    raise AssertionError("the workers did not start")


@pytest.fixture
def endless(store: RunDirectory) -> Iterator[subprocess.Popen[bytes]]:
    """An audit with two workers that would take hours, in processes of its own."""
    trials = [replace(TRIALS[0], arguments={"steps": 10**7}, seed=seed) for seed in (0, 1)]
    store.prepare("", trials, Leases(worker="test"))
    code = (
        "import sys\n"
        "from undelta.trials.backends import Processes\n"
        "from undelta.trials.pool import Pool\n"
        "from undelta.trials.worker import Trials\n"
        "if __name__ == '__main__':\n"
        "    keys = tuple(sys.argv[2:])\n"
        "    trials = Trials(directory=sys.argv[1], keys=keys, worker='w')\n"
        "    Pool(trials, Processes(), workers=2).run()\n"
    )
    words = [str(store.directory), *(trial.key for trial in trials)]
    process = subprocess.Popen([sys.executable, "-c", code, *words], start_new_session=True)
    yield process
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_workers_end_with_the_process_that_started_them(store: RunDirectory, endless: subprocess.Popen[bytes]) -> None:
    workers = wait_for_claims(store.directory, 2, endless)
    os.kill(endless.pid, signal.SIGKILL)  # it alone: it cannot tell its workers
    endless.wait()
    deadline = time.monotonic() + 60
    while any(map(process_started, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [process_started(pid) for pid in workers] == [None, None]


# What they refuse


def test_an_unknown_backend_is_named_with_the_choices() -> None:
    with pytest.raises(
        ConfigError, match="unknown backend 'rey'; did you mean 'ray'\\? choose from processes, ray, slurm"
    ):
        check_backend("rey")


@pytest.mark.parametrize(("name", "module"), [("ray", "ray"), ("slurm", "submitit")])
def test_a_missing_extra_is_named(name: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"--backend {name} needs {module}: pip install \"undelta\[{name}\]\""):
        check_backend(name)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"cluster": "mars"}, "unknown cluster 'mars'"),
        ({"cluster": "local", "color": "x"}, "color"),
        ({"cluster": "local", "timeout_min": "long"}, "timeout_min"),
    ],
)
def test_slurm_settings_that_submitit_does_not_know_are_refused(
    tmp_path: Path, settings: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=r"\[slurm\]") as caught:
        Slurm(tmp_path / "slurm", threads=1, settings=settings)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)
