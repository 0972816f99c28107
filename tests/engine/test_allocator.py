"""What tensors free stays with the process, unless the user has settings of their own for the allocator."""

import ctypes
import os
import subprocess
import sys

import pytest

from undelta.engine.allocator import USERS, keep_freed_memory

KEPT = """
import os, torch
from undelta.engine.allocator import keep_freed_memory
assert keep_freed_memory()
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
before = resident()
tensors = [torch.ones(2**22) for _ in range(8)]
assert resident() - before > 2**26
tensors.clear()
print(resident() - before)
"""
SETTINGS = ("GLIBC_TUNABLES", *USERS)

glibc = pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="another C library"
)


@glibc
def test_what_tensors_free_stays_with_the_process() -> None:
    environment = {key: value for key, value in os.environ.items() if key not in SETTINGS}
    command = [sys.executable, "-c", KEPT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert int(done.stdout) > 2**26


@glibc
def test_it_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    assert keep_freed_memory.__wrapped__()


@pytest.mark.parametrize(
    ("name", "value"), [("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=1000"), *((name, "1000") for name in USERS)]
)
def test_the_users_own_settings_stay(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    assert not keep_freed_memory.__wrapped__()


class Other:
    """Another C library."""


@pytest.mark.parametrize("failure", [OSError, None], ids=["no handle", "not glibc"])
def test_with_another_c_library_nothing_happens(
    monkeypatch: pytest.MonkeyPatch, failure: type[Exception] | None
) -> None:
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)

    def load(name: str | None) -> Other:
        if failure:
            raise failure("no such library")
        return Other()

    monkeypatch.setattr(ctypes, "CDLL", load)
    assert not keep_freed_memory.__wrapped__()
