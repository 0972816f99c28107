"""The same study in a real PostgreSQL server, started for these tests alone."""

from __future__ import annotations

import getpass
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import optuna
import pytest

from undelta.errors import DatabaseAway
from undelta.studies.tuning import storage as storage_module
from undelta.studies.tuning.jobs import tune_job
from undelta.studies.tuning.objective import OpenRun, Report
from undelta.studies.tuning.storage import open_storage
from undelta.studies.tuning.worker import evaluate

from .bowl import Bowl, OpenSlots

TOML = """
data = "digits"
num_samples = 2
model = "cnn"
model_arguments = { width = 4, hidden = 8 }
epochs = 2
batches = 1
"""


def binaries() -> Path | None:
    """Where the server's programs are: Debian keeps them out of the way, others do not."""
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    found = str(versions[-1]) if versions else shutil.which("initdb")
    return Path(found).parent if found else None


def user() -> str | None:
    """Who runs the server: not root, which it refuses."""
    if os.geteuid() != 0:
        return getpass.getuser()
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        return None


class Server(NamedTuple):
    """A database, and what ends and restarts it."""

    url: str
    stop: Callable[[], None]
    start: Callable[[], None]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Server]:
    """A database on a socket in a directory of its own; nobody else can reach it."""
    programs, name = binaries(), user()
    if programs is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    if name is None:
        pytest.skip("PostgreSQL refuses to run as root, and there is no user postgres")
    account = pwd.getpwnam(name)
    as_user = ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]

    def run(program: str, *words: str) -> None:
        command = [str(programs / program), *words]
        done = subprocess.run(
            command if os.geteuid() else [*as_user, *command], capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stdout + done.stderr

    # A socket's path may hold some hundred characters only, so not in pytest's directory.
    with tempfile.TemporaryDirectory(prefix="undelta-pg-", dir="/tmp") as place:
        folder = Path(place)
        os.chown(folder, account.pw_uid, account.pw_gid)
        data = str(folder / "data")
        run("initdb", "--pgdata", data, "--auth", "trust", "--username", "undelta", "--no-sync")
        options = f"-c listen_addresses='' -c unix_socket_directories={folder} -c fsync=off"

        def start() -> None:
            run("pg_ctl", "--pgdata", data, "--log", str(folder / "log"), "--options", options, "--wait", "start")

        def stop() -> None:
            run("pg_ctl", "--pgdata", data, "--mode", "immediate", "--wait", "stop")

        start()
        try:
            yield Server(f"postgresql://undelta@/postgres?host={folder}", stop, start)
        finally:
            stop()


@pytest.fixture
def server(cluster: Server) -> str:
    """The URL of the database."""
    return cluster.url


def test_a_server_gives_the_same_points_as_a_file(server: str, open_slots: OpenSlots, tmp_path: Path) -> None:
    bowl, file = Bowl(), Bowl()
    slots = open_slots(total=6, storage=server, prune=True)
    evaluate(slots, bowl, tmp_path)
    evaluate(open_slots(total=6, prune=True), file, tmp_path)
    assert bowl.seen == file.seen
    assert len(slots.finished()) == 6


def test_two_machines_with_directories_of_their_own_share_a_study(server: str, tmp_path: Path) -> None:
    """Two commands at once, nothing in common but the database and the scenario."""
    (tmp_path / "scenario.toml").write_text(TOML)
    options = ["--trials", "6", "--random", "4", "--steps", "40", "--final-steps", "0", "--storage", server]
    commands = [
        subprocess.Popen(
            [sys.executable, "-m", "undelta", "tune", str(tmp_path / "scenario.toml"), "--out", str(out), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for out in (tmp_path / "here", tmp_path / "there")
    ]
    for command in commands:
        printed = command.communicate(timeout=300)[0].decode()
        assert command.returncode == 0, printed
    found = [(tmp_path / place / "tuning.json").read_bytes() for place in ("here", "there")]
    assert found[0] == found[1]
    storage = open_storage(server, tmp_path)
    name = next(name for name in optuna.get_all_study_names(storage) if name.startswith("undelta "))
    study = optuna.load_study(study_name=name, storage=storage)
    states = Counter(trial.state.name for trial in study.trials)
    assert states["COMPLETE"] + states["PRUNED"] == 6
    owners = {trial.user_attrs["owner"]["pid"] for trial in study.trials if "owner" in trial.user_attrs}
    assert len(owners) == 2
    assert not (tmp_path / "here" / "study.db").exists()


def test_the_databases_address_is_written_nowhere(server: str, tmp_path: Path) -> None:
    (tmp_path / "scenario.toml").write_text(TOML)
    secret = server.replace("undelta@", "undelta:tops3cret@")
    tune_job(tmp_path / "scenario.toml", out=tmp_path / "out", trials=1, steps=3, storage=secret)
    for path in (tmp_path / "out").iterdir():
        assert b"tops3cret" not in path.read_bytes(), path


class Stopping(Bowl):
    """Stops the server in its third evaluation."""

    def __init__(self, stop: Callable[[], None]) -> None:
        super().__init__()
        self.stop = stop

    def __call__(self, settings: Mapping[str, Any], *, report: Report, open_run: OpenRun) -> float:
        if len(self.seen) == 2:
            self.stop()
        return super().__call__(settings, report=report, open_run=open_run)


def test_a_server_that_restarts_is_waited_for(cluster: Server, open_slots: OpenSlots, tmp_path: Path) -> None:
    def restart() -> None:
        cluster.stop()
        threading.Timer(1.0, cluster.start).start()

    bowl, undisturbed = Stopping(restart), Bowl()
    evaluate(open_slots(total=5, storage=cluster.url, name="restarted"), bowl, tmp_path)
    evaluate(open_slots(total=5, name="restarted"), undisturbed, tmp_path)
    assert bowl.seen == undisturbed.seen


def test_a_server_that_stays_away_ends_a_tuning_in_one_line_and_it_resumes(
    cluster: Server, open_slots: OpenSlots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_module, "PATIENCE_SECONDS", 0.5)
    bowl, later, undisturbed = Stopping(cluster.stop), Bowl(), Bowl()
    try:
        with pytest.raises(DatabaseAway, match=r"does not answer \(.*\); nothing is lost"):
            evaluate(open_slots(total=4, storage=cluster.url, name="away"), bowl, tmp_path)
    finally:
        cluster.start()
    evaluate(open_slots(total=4, storage=cluster.url, name="away"), later, tmp_path)
    evaluate(open_slots(total=4, name="away"), undisturbed, tmp_path)
    assert [*bowl.seen[:2], *later.seen] == undisturbed.seen
