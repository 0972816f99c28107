"""Leases: of any number of workers, however they die, one at a time works on a trial, and somebody always can."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from undelta.errors import DataError
from undelta.trials.leases import Lease, LeaseLost, Leases, machine, process_started, scan

# A worker that leases a folder again and again. While it holds the lease it leaves its process number in a file;
# whoever finds the number of another living process there has caught two workers in one trial.
RIVAL = """
import os, random, sys, time
from pathlib import Path
from undelta.trials.leases import Leases, process_started
folder, inside, violations, hold = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4])
leases = Leases(worker=str(os.getpid()))
print("ready", flush=True)
sys.stdin.readline()
while True:
    lease = leases.acquire(folder)
    if lease is None:
        time.sleep(random.uniform(0, 0.002))
        continue
    if inside.exists():
        try:
            found = inside.read_text()
        except FileNotFoundError:
            violations.write_text(f"{os.getpid()} met one that was just leaving")
            break
        if found and int(found) != os.getpid() and process_started(int(found)):
            violations.write_text(f"{os.getpid()} met {found}")
    inside.write_text(str(os.getpid()))
    print("mine", flush=True)
    time.sleep(random.uniform(0, hold))
    inside.unlink(missing_ok=True)
    lease.release()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "trial"
    made.mkdir()
    return made


@pytest.fixture
def rivals(tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


def start_rival(folder: Path, hold: float) -> subprocess.Popen[str]:
    paths = [str(folder), str(folder.parent / "inside"), str(folder.parent / "violations"), str(hold)]
    return subprocess.Popen(
        [sys.executable, "-c", RIVAL, *paths], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def let_go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def acquired(leases: Leases, folder: Path) -> Lease:
    lease = leases.acquire(folder)
    assert lease is not None
    return lease


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def rewrite(path: Path, **changes: Any) -> None:
    """Change what a lease says, in place, as if somebody else had made it."""
    values = {**json.loads(path.read_text()), **changes}
    with path.open("r+") as file:
        file.write(json.dumps(values))
        file.truncate()


# One at a time


def test_a_claimed_trial_is_nobody_elses_until_it_is_released(folder: Path) -> None:
    one, two = Leases(worker="one"), Leases(worker="two")
    lease = acquired(one, folder)
    assert names(folder) == ["lease.json"]
    assert two.acquire(folder) is None
    holder = two.holder(folder)
    assert holder is not None
    assert (holder.worker, holder.pid) == ("one", os.getpid())
    assert not two.is_free(folder)
    lease.release()
    assert names(folder) == []
    assert two.is_free(folder)
    acquired(two, folder).release()


def test_workers_that_race_for_one_trial_never_meet_in_it(
    folder: Path, rivals: list[subprocess.Popen[str]], tmp_path: Path
) -> None:
    rivals += [start_rival(folder, 0.004) for _ in range(4)]
    for rival in rivals:
        assert rival.stdout is not None
        assert rival.stdout.readline() == "ready\n"
    for rival in rivals:
        let_go(rival)
    time.sleep(1.5)
    turns = []
    for rival in rivals:
        rival.kill()
        turns.append(rival.communicate()[0].count("mine"))
    assert not (tmp_path / "violations").exists(), (tmp_path / "violations").read_text()
    assert sum(turns) > 20
    assert sum(count > 0 for count in turns) >= 2  # or it would be no race


def test_workers_killed_at_random_moments_neither_meet_nor_lose_the_trial(
    folder: Path, rivals: list[subprocess.Popen[str]], tmp_path: Path
) -> None:
    dice = random.Random(5)  # noqa: S311
    turns = kills = 0
    running: list[subprocess.Popen[str]] = []
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline or kills < 6:
        while len(running) < 3:
            rival = start_rival(folder, 0.02)
            rivals.append(rival)
            assert rival.stdout is not None
            assert rival.stdout.readline() == "ready\n"
            let_go(rival)
            running.append(rival)
        time.sleep(dice.uniform(0, 0.1))
        victim = running.pop(dice.randrange(3))
        victim.kill()  # SIGKILL: nothing is cleaned up
        turns += victim.communicate()[0].count("mine")
        kills += 1
    for rival in running:
        rival.kill()
        turns += rival.communicate()[0].count("mine")
    assert not (tmp_path / "violations").exists(), (tmp_path / "violations").read_text()
    assert turns > 20
    leases = Leases(worker="last", heartbeat_seconds=0.1)
    wait_until(lambda: leases.is_free(folder))  # one that was killed before its first word is dead after a heartbeat
    acquired(leases, folder).release()
    assert names(folder) == []


# Who is dead


def killed_holder(folder: Path, rivals: list[subprocess.Popen[str]]) -> subprocess.Popen[str]:
    rival = start_rival(folder, 60)
    rivals.append(rival)
    assert rival.stdout is not None
    assert rival.stdout.readline() == "ready\n"
    let_go(rival)
    assert rival.stdout.readline() == "mine\n"
    os.kill(rival.pid, signal.SIGKILL)
    return rival


def test_the_claim_of_a_killed_process_is_taken_over_at_once_and_removed(
    folder: Path, rivals: list[subprocess.Popen[str]]
) -> None:
    killed_holder(folder, rivals).wait()
    assert names(folder) == ["lease.json"]
    leases = Leases(worker="next")
    assert leases.holder(folder) is None
    lease = acquired(leases, folder)
    assert names(folder) == ["lease-1.json"]
    assert Leases(worker="late").acquire(folder) is None
    lease.release()
    assert names(folder) == []


def test_a_killed_process_that_nobody_has_waited_for_is_dead(folder: Path, rivals: list[subprocess.Popen[str]]) -> None:
    zombie = killed_holder(folder, rivals)
    wait_until(lambda: process_started(zombie.pid) is None)
    os.kill(zombie.pid, 0)  # it still has its number
    acquired(Leases(worker="next"), folder).release()


def test_a_process_that_got_a_dead_ones_number_does_not_keep_its_claim(folder: Path) -> None:
    lease = acquired(Leases(worker="one"), folder)
    parent = os.getppid()
    rewrite(lease.path, pid=parent, process_started=process_started(parent))
    assert Leases(worker="two").acquire(folder) is None  # the process lives
    rewrite(lease.path, pid=parent, process_started="1")
    acquired(Leases(worker="two"), folder).release()


def test_what_this_process_has_forgotten_is_dead(folder: Path) -> None:
    lease = acquired(Leases(worker="one"), folder)
    rewrite(lease.path, token="f" * 32)
    acquired(Leases(worker="two"), folder).release()


def test_another_machines_claim_is_dead_when_its_heartbeat_stops_for_long(folder: Path) -> None:
    lease = acquired(Leases(worker="one"), folder)
    rewrite(lease.path, machine="elsewhere")
    here = Leases(worker="two", stale_seconds=0.3)
    for _ in range(4):
        assert here.acquire(folder) is None
        time.sleep(0.15)
        os.utime(lease.path)
    time.sleep(0.1)
    assert here.acquire(folder) is None  # seen last with another heartbeat, so the wait begins anew
    time.sleep(0.35)
    taken = acquired(here, folder)
    with pytest.raises(LeaseLost):
        lease.check()
    lease.release()  # must not touch what is no longer its own
    taken.check()
    taken.release()
    assert names(folder) == []


def test_a_holders_heartbeat_renews_its_claim_and_notices_a_loss(folder: Path) -> None:
    lease = acquired(Leases(worker="one", heartbeat_seconds=0.05), folder)
    os.utime(lease.path, (0, 0))
    with lease:
        wait_until(lambda: lease.path.stat().st_mtime != 0)
        assert abs(time.time() - lease.path.stat().st_mtime) < 5
        losses = [lease.lost]
        lease.path.unlink()
        wait_until(lambda: lease.lost)
        assert [*losses, lease.lost] == [False, True]
    with pytest.raises(LeaseLost):
        lease.check()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"pid": 1}', b"\xff", b"[" * 9000])
def test_a_claim_that_says_nothing_is_dead_after_a_heartbeat(folder: Path, content: bytes) -> None:
    (folder / "lease.json").write_bytes(content)
    leases = Leases(worker="one", heartbeat_seconds=0.1)
    assert leases.acquire(folder) is None
    time.sleep(0.12)
    acquired(leases, folder).release()
    assert names(folder) == []


# Between two looks


def test_a_worker_that_finds_a_rival_at_its_second_look_withdraws(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    def late_rival(place: Path) -> list[Any]:
        looks.append(place)
        if len(looks) == 2:  # a worker with an old view of the folder creates another file in line
            source = (folder / "lease.json").read_text()
            (folder / "lease-3.json").write_text(source.replace('"one"', '"rival"').replace(machine(), "elsewhere"))
        return scan(place)

    monkeypatch.setattr("undelta.trials.leases.scan", late_rival)
    assert Leases(worker="one").acquire(folder) is None
    assert names(folder) == ["lease-3.json"]


def test_of_two_workers_that_saw_the_same_dead_claim_one_wins(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = acquired(Leases(worker="dead"), folder)
    rewrite(lease.path, process_started="1", pid=os.getppid())
    won = []

    def overtaken(place: Path) -> list[Any]:
        seen = scan(place)
        monkeypatch.undo()
        won.append(acquired(Leases(worker="faster"), folder))
        return seen

    monkeypatch.setattr("undelta.trials.leases.scan", overtaken)
    assert Leases(worker="slower").acquire(folder) is None
    won[0].check()
    won[0].release()
    assert names(folder) == []


def test_a_living_claim_below_a_dead_one_is_respected(folder: Path) -> None:
    lease = acquired(Leases(worker="living"), folder)
    (folder / "lease-7.json").write_text(lease.path.read_text())
    rewrite(folder / "lease-7.json", token="f" * 32, process_started="1")
    assert Leases(worker="next").acquire(folder) is None
    lease.check()
    lease.release()
    acquired(Leases(worker="next"), folder).release()
    assert names(folder) == []


def test_a_worker_that_wakes_up_leaves_a_later_claim_of_the_same_name_alone(folder: Path) -> None:
    frozen = acquired(Leases(worker="frozen"), folder)
    frozen.path.unlink()  # taken over by a worker that has come and gone
    later = acquired(Leases(worker="later"), folder)
    assert later.path == frozen.path
    with pytest.raises(LeaseLost):
        frozen.check()
    frozen.release()
    later.check()
    later.release()


def test_a_worker_whose_claim_was_removed_before_its_second_look_withdraws(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    def thief(place: Path) -> list[Any]:
        looks.append(place)
        if len(looks) == 2:
            (folder / "lease.json").unlink()
        return scan(place)

    monkeypatch.setattr("undelta.trials.leases.scan", thief)
    assert Leases(worker="one").acquire(folder) is None


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="absent"):
        Leases(worker="one").acquire(tmp_path / "absent")


def test_processes_are_told_apart_by_when_they_began() -> None:
    assert process_started(os.getpid()) == process_started(os.getpid())
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = process_started(child.pid)
    assert started
    assert started != process_started(os.getpid())
    child.communicate()
    assert process_started(child.pid) is None
