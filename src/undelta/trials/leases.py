"""Leases: who works on a trial, so that no two workers do the same one at the same time and none is lost.

A lease is a file ``lease.json`` in the trial's folder that names its owner (machine, process, a random token). While it
is held, a thread renews its modification time every few seconds. No lock server, no file locks: creating a file
that must not exist yet (O_EXCL) and listing a folder are all it takes.

**Acquiring.** Read all leases of the folder; unless each of them is dead, leave. Create the next file in line
(``lease.json``; over dead ones ``lease-1.json`` and so on) with O_EXCL, so of several workers that saw the same dead
lease one wins. Then read the folder again: if there is a lease other than mine and those I found dead, withdraw.
Only then is it mine, and the dead ones are removed.

**Why two workers never both hold a trial.** Say both do, and A's file was created first. B read the folder again after
creating its own, saw A's file there, and kept its lease only if it had found A dead before. A lives, so B did not.
A worker that dies at any point leaves a dead lease at worst, which the next one takes over; so no trial is lost.

**Who is dead.** On the same machine (host name, boot and process namespace agree): a process that is gone, or whose
number now belongs to one that began at another time. This is exact, so there the guarantee is absolute. On another
machine: one whose lease was not renewed for `STALE_SECONDS`, measured on the observer's own clock, so that clocks need
not agree. A worker that was frozen for longer and wakes up finds its lease gone when it looks, which it does before
every checkpoint and before it writes pictures or a record, and it gives up. Even one that is frozen between that look
and the write does no harm: files appear whole or not at all, and equal trials give equal content on equal software.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from undelta.errors import DataError, UndeltaError
from undelta.files import refused
from undelta.schema import parse

HEARTBEAT_SECONDS = 5.0
STALE_SECONDS = 120.0

_NAME = re.compile(r"lease(?:-(\d{1,9}))?\.json")
_held: set[str] = set()
"""Tokens of the leases that this process holds; any other lease in its name is a leftover."""


class LeaseLost(Exception):
    """Another worker has taken the trial over; whoever held it must leave it alone."""


@dataclass(frozen=True, kw_only=True)
class Owner:
    """What a lease's file says."""

    host: str
    machine: str
    pid: int
    process_started: str
    worker: str
    since: str
    token: str


@dataclass(frozen=True, kw_only=True)
class Found:
    """A lease as it lies in a folder; without an owner it is just being written, or was never finished."""

    path: Path
    number: int
    renewed: int
    owner: Owner | None

    @property
    def identity(self) -> tuple[str, str]:
        return self.path.name, self.owner.token if self.owner else ""


class Lease:
    """A trial that is ours; use it as a context, which renews it and gives it back at the end."""

    def __init__(self, path: Path, token: str, handle: int, heartbeat_seconds: float) -> None:
        self.path, self.token = path, token
        self.lost = False
        self._handle, self._seconds = handle, heartbeat_seconds
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        self.release()

    def _renew(self) -> None:
        while not self._done.wait(self._seconds):
            # By handle, not by name: under the name may be somebody else's lease by now.
            with contextlib.suppress(OSError):
                os.utime(self._handle)
            with contextlib.suppress(DataError):  # cannot tell now; whoever writes next asks again
                self.lost = self.lost or not self._mine()

    def _mine(self) -> bool:
        found = _read(self.path, 0)
        return found is not None and found.owner is not None and found.owner.token == self.token

    def check(self) -> None:
        """Raise `LeaseLost` unless the trial is still ours."""
        if self.lost or not self._mine():
            self.lost = True
            raise LeaseLost(f"{self.path} was taken over")

    def release(self) -> None:
        if self._mine():
            self.path.unlink(missing_ok=True)
        _held.discard(self.token)
        os.close(self._handle)


class Leases:
    """One worker's way to leases; it remembers when it saw which heartbeat of others."""

    def __init__(
        self,
        *,
        worker: str,
        stale_seconds: float = STALE_SECONDS,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        self.worker, self.stale_seconds, self.heartbeat_seconds = worker, stale_seconds, heartbeat_seconds
        self._seen: dict[Path, tuple[tuple[str, str], int, float]] = {}

    def acquire(self, folder: Path) -> Lease | None:
        """The trial in this folder, or None if somebody else has it."""
        before = scan(folder)
        if not all(self.is_dead(found) for found in before):
            return None
        number = max((found.number for found in before), default=-1) + 1
        path = folder / ("lease.json" if number == 0 else f"lease-{number}.json")
        with refused(f"cannot lease the trial in {folder}", DataError):
            try:
                handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
            except FileExistsError:
                return None
        owner = myself(self.worker)
        lease = Lease(path, owner.token, handle, self.heartbeat_seconds)
        _held.add(owner.token)
        try:
            with refused(f"cannot write the lease {path}", DataError):
                os.write(handle, json.dumps(asdict(owner)).encode())
                os.fsync(handle)  # so that other machines see it while it stays open
        except UndeltaError:
            path.unlink(missing_ok=True)
            lease.release()
            raise
        after = {found.identity: found for found in scan(folder)}
        others = {identity: found for identity, found in after.items() if identity != (path.name, owner.token)}
        if len(others) == len(after) or not others.keys() <= {found.identity for found in before}:
            lease.release()  # withdraw: somebody was there between our two looks
            return None
        for found in others.values():
            found.path.unlink(missing_ok=True)
        return lease

    def holder(self, folder: Path) -> Owner | None:
        """Who works on the trial, as far as a look can tell."""
        living = [found.owner for found in scan(folder) if found.owner and not self.is_dead(found)]
        return living[0] if living else None

    def is_free(self, folder: Path) -> bool:
        """Whether nobody works on the trial; removes what dead workers left."""
        found = scan(folder)
        if not found:
            return True
        if not all(self.is_dead(lease) for lease in found):
            return False
        lease = self.acquire(folder)
        if lease:
            lease.release()
        return lease is not None

    def is_dead(self, found: Found) -> bool:
        """Whether this lease's owner will never come back to it."""
        owner = found.owner
        if owner is None:
            # Between creating a lease and writing to it lies an instant. Should its owner wake up after all, it
            # has not yet looked again, and will withdraw when it does.
            return self._silence(found) >= self.heartbeat_seconds
        if (gone := is_gone(owner, _held)) is not None:
            return gone
        return self._silence(found) >= self.stale_seconds

    def _silence(self, found: Found) -> float:
        """For how long we have seen this lease without a heartbeat."""
        now = time.monotonic()
        seen = self._seen.get(found.path)
        if seen is None or seen[:2] != (found.identity, found.renewed):
            self._seen[found.path] = (found.identity, found.renewed, now)
            return 0.0
        return now - seen[2]


def is_gone(owner: Owner, held: Collection[str]) -> bool | None:
    """Whether a process is no more, or no longer at its task; None if it is not for this machine to tell.

    Of what is in this process's own name, all but the tokens in ``held`` are leftovers.
    """
    if owner.machine != machine():
        return None
    started = process_started(owner.pid)
    if started is None:
        return True
    if owner.pid == os.getpid() and owner.process_started == started:
        return owner.token not in held
    if started and owner.process_started:
        return started != owner.process_started
    return None


def scan(folder: Path) -> list[Found]:
    """All leases in a folder, dead or alive, in the order in which they took over."""
    with refused(f"cannot read the trial's folder {folder}", DataError):
        names = [path.name for path in folder.iterdir()]
    matches = [match for match in map(_NAME.fullmatch, names) if match]
    leases = [_read(folder / match.group(), int(match.group(1) or 0)) for match in matches]
    return sorted((lease for lease in leases if lease), key=lambda lease: lease.number)


def _read(path: Path, number: int) -> Found | None:
    owner = None
    with refused(f"cannot read the lease {path}", DataError):
        try:
            with path.open("rb") as file:  # opening also makes a network file system look again
                renewed, text = os.fstat(file.fileno()).st_mtime_ns, file.read(10_000)
        except FileNotFoundError:
            return None
    with contextlib.suppress(ValueError, RecursionError, DataError):  # half written, or not ours: heartbeats decide
        owner = parse(Owner, json.loads(text), where=str(path), error=DataError)
    return Found(path=path, number=number, renewed=renewed, owner=owner if owner and owner.pid > 0 else None)


def myself(worker: str) -> Owner:
    """This process, as others will know it; every call has a token of its own."""
    return Owner(
        host=socket.gethostname(),
        machine=machine(),
        pid=os.getpid(),
        process_started=process_started(os.getpid()) or "",
        worker=worker,
        since=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        token=secrets.token_hex(16),
    )


@functools.cache
def machine() -> str:
    """Names what a process number is unique in: the host, its boot, and the process namespace where there are some."""
    words = [socket.gethostname()]
    with contextlib.suppress(OSError):
        words.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    with contextlib.suppress(OSError):
        words.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(words)


def process_started(pid: int) -> str | None:
    """When a process began, as its system counts; empty if the system does not tell; None if there is no such one."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # no such process, or no such file system, or it is hidden from us
        try:
            os.kill(pid, 0)  # asks only
        except ProcessLookupError:
            return None
        except (PermissionError, OverflowError):
            return ""
        return ""
    state, *fields = text.rpartition(")")[2].split()  # the name before it may hold anything
    return None if state in "ZX" else fields[18]
