"""Files: whole or not at all, with the rights that the user's umask leaves, and nothing left behind."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from undelta.client.private import Private, save_private
from undelta.errors import ConfigError, DataError, NoRoom, ObservationError
from undelta.files import DEEPEST, MOST_TEXT, kind_of, load_json, read_tensors, write_bytes, write_tensors
from undelta.observation import Observation
from undelta.observation.checkpoint import read_checkpoint
from undelta.observation.file import save_observation
from undelta.trials.config import read_toml
from undelta.trials.pictures import write_sheet
from undelta.trials.record import peak_memory_mb, reset_peak_memory

pytestmark = pytest.mark.usefixtures("bounded_memory")


@pytest.fixture(params=[0o022, 0o077, 0o027], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def rights(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_files_have_the_rights_that_the_umask_leaves_and_private_images_are_the_users_alone(
    tmp_path: Path, umask: int, observation: Observation, private: Private
) -> None:
    write_bytes(tmp_path / "text", b"")
    save_observation(observation, tmp_path / "seen")
    assert [rights(tmp_path / name) for name in ("text", "seen")] == [0o666 & ~umask] * 2
    save_private(private, tmp_path / "truth", {}, observation)
    write_sheet(tmp_path / "sheet.png", [("original", private.images)])
    assert [rights(tmp_path / name) for name in ("truth", "sheet.png")] == [0o600] * 2


def test_a_link_in_the_place_of_a_file_is_replaced_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "record.json").symlink_to(tmp_path / "precious")
    write_bytes(tmp_path / "record.json", b"new")
    assert (tmp_path / "precious").read_text() == "mine"
    assert (tmp_path / "record.json").read_text() == "new"
    assert not (tmp_path / "record.json").is_symlink()


def test_what_killed_processes_left_is_swept_by_the_next_who_writes_the_file(tmp_path: Path) -> None:
    old, young, other = (tmp_path / f".{name}.{'0' * 15}{digit}" for name, digit in (("a", 1), ("a", 2), ("b", 3)))
    for path in (old, young, other):
        path.write_bytes(b"half")
    for path in (old, other):
        os.utime(path, (time.time() - 7200,) * 2)
    write_bytes(tmp_path / "a", b"whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([young.name, other.name, "a"])


def test_a_full_disk_is_said_and_leaves_the_old_file(tmp_path: Path, limit_files: Callable[[int | None], None]) -> None:
    write_bytes(tmp_path / "a", b"old")
    limit_files(100)
    with pytest.raises(NoRoom, match=r"cannot write .*: File too large"):
        write_bytes(tmp_path / "a", bytes(1000))
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"


TOWER = "[" * (DEEPEST + 1) + "]" * (DEEPEST + 1)
HUGE = hex(10**5000)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (TOWER, "64 brackets"),
        ("[" * 100_000, "not valid JSON"),
        ("1" * 5000, "not valid JSON"),
        ("1" * 50, "too large .163 bits"),
        ("NaN", "expected a finite number, got nan"),
        ('{"a": [1, {"b": -Infinity}]}', "b: expected a finite number, got -inf"),
    ],
)
def test_json_that_no_file_of_ours_holds_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(DataError, match=complaint):
        load_json(tmp_path / "a.json")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (f"a = {TOWER}", "64 brackets"),
        (f"a = {'[' * 100_000}", "not valid TOML"),
        (f"a = {HUGE}", "a: expected a number, got one too large .16610 bits"),
        (f"a = {'1' * 5000}", "not valid TOML"),
        ("a = 2026-01-01", "a: expected text or a number, got a date"),
        ("a = [{ b = 07:30:00 }]", "b: expected text or a number, got a time"),
        ("a = nan", "a: expected a finite number, got nan"),
    ],
)
def test_toml_that_no_file_of_ours_holds_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        read_toml(tmp_path / "a.toml")


def test_a_pipe_where_a_file_belongs_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "record.json")
    with pytest.raises(DataError, match="it is not a file"):
        load_json(tmp_path / "record.json")


def test_text_that_would_take_much_memory_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(2**24 + 1)
    with pytest.raises(DataError, match="16,777,217 bytes"):
        load_json(tmp_path / "large.json")
    write_tensors(tmp_path / "large", {}, {"kind": "truth", "format": 1, "x": " " * MOST_TEXT})
    with pytest.raises(DataError, match="its metadata has 16,777,"):
        read_tensors(tmp_path / "large", kind="truth", error=DataError)
    assert kind_of(tmp_path / "large") is None


EMPTY = "[" + "[]," * (MOST_TEXT // 3 - 1) + "[]]"  # as many values as fit, each of which takes 30 times its text


def test_values_are_counted_before_they_take_memory(tmp_path: Path) -> None:
    (tmp_path / "many.json").write_text(EMPTY)
    reset_peak_memory()
    before = peak_memory_mb()
    with pytest.raises(DataError, match=r"it may hold 11,184,\d+ values, and at most 500,000 are read"):
        load_json(tmp_path / "many.json")
    (tmp_path / "many.toml").write_text("a=1\n" + "\n".join(f"b{i}.c.d=0" for i in range(2**18)))
    with pytest.raises(ConfigError, match="at most 500,000 are read"):
        read_toml(tmp_path / "many.toml")
    (tmp_path / "long.toml").write_text("#" * (MOST_TEXT + 1))
    with pytest.raises(ConfigError, match="at most 16,777,216 are read"):
        read_toml(tmp_path / "long.toml")
    assert peak_memory_mb() - before < 100


def test_a_header_that_would_take_much_memory_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "long.safetensors"
    path.write_bytes((90 * 10**6).to_bytes(8, "little"))
    with path.open("r+b") as file:
        file.truncate(90 * 10**6 + 8)
    for read in (lambda: read_tensors(path, kind="truth", error=DataError), lambda: read_checkpoint(path)):
        with pytest.raises((DataError, ObservationError), match="its header has 90,000,000 bytes"):
            read()
    many = {f"{i}": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for i in range(100_001)}
    header = json.dumps(many).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(DataError, match="it has 100,001 tensors, and at most 100,000 are read"):
        read_tensors(path, kind="truth", error=DataError)
    assert kind_of(path) is None


def test_a_leftover_that_cannot_be_removed_does_not_make_a_write_fail(tmp_path: Path) -> None:
    leftover = tmp_path / f".text.{'0' * 16}"
    leftover.mkdir()  # which unlink refuses, as it does another user's file
    os.utime(leftover, (0, 0))
    write_bytes(tmp_path / "text", b"new")
    assert (tmp_path / "text").read_bytes() == b"new"
