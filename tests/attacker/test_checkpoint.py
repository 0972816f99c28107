"""Checkpoints: an attack that is killed and run again ends as if nothing had happened, bit for bit."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from undelta.attacker.attack import Attack, Run, Watch
from undelta.attacker.attacks import (
    agic,
    awa,
    cpl,
    dlfa,
    dlg,
    geng_epoch,
    geng_gradient,
    geng_path,
    gradinversion,
    idlg,
    idlg_fedavg,
    ig,
    sapag,
    sme,
    strongest,
)
from undelta.attacker.checkpoint import Checkpoint
from undelta.attacker.combine import Phases
from undelta.attacker.method import GradientMatching
from undelta.attacker.optimizers import LBFGS
from undelta.attacker.reconstruction import Moment, Reconstruction
from undelta.attacker.replays import OneStep
from undelta.errors import ConfigError
from undelta.observation import Observation
from undelta.observation.file import save_observation

ATTACKS: dict[str, tuple[Attack, tuple[int, ...]]] = {
    "awa": (awa(steps=25), (0, 10, 20)),
    "strongest": (strongest(steps=15, rollout_steps=12, macro_steps=2), (10, 15, 25, 40)),
    "sme": (sme(steps=25), (10, 20)),
    "gradinversion": (gradinversion(steps=22, group=2), (10, 20)),
    "dlg": (dlg(steps=12), (10,)),
    "restarts": (awa(steps=12, restarts=2), (10, 12, 22)),
    "candidates": (Phases(phases=((awa(steps=11, restarts=2), awa(steps=12, form="linear")),)), (10, 11, 22, 32)),
    "cpl": (cpl(steps=11), (10,)),
    "idlg": (idlg(steps=11, labels="disclosed"), (10,)),
    "idlg_fedavg": (idlg_fedavg(steps=12), (10,)),
    "ig": (ig(steps=12), (10,)),
    "sapag": (sapag(steps=12), (10,)),
    "agic": (agic(steps=12), (10,)),
    "geng_epoch": (geng_epoch(steps=12, labels="disclosed"), (10,)),
    "geng_path": (geng_path(steps=12, labels="disclosed"), (10,)),
    "geng_gradient": (geng_gradient(steps=12, labels="disclosed"), (10,)),
    "dlfa": (dlfa(steps=12, labels="disclosed"), (10,)),
}
"""Attacks, and iterations at which they are killed."""


class Killed(BaseException):
    """Not even an interruption that an attack may answer."""


def raise_at(iteration: int, problem: type[BaseException]) -> Watch:
    def watch(moment: Moment, total: int) -> None:
        if moment.iteration >= iteration:
            raise problem

    return watch


def run_at(path: Path, watch: Watch | None = None) -> Run:
    return Run(watch=watch, checkpoint=checkpoint_at(path))


def checkpoint_at(path: Path, key: str = "run", seconds: float = 0.0) -> Checkpoint:
    return Checkpoint(path, key=key, seconds=seconds)


def check_equal(resumed: Reconstruction, whole: Reconstruction) -> None:
    assert torch.equal(resumed.images, whole.images)
    assert torch.equal(resumed.labels, whole.labels)
    assert resumed.mismatch == whole.mismatch
    assert resumed.iterations == whole.iterations
    assert resumed.status == whole.status == "completed"
    assert resumed.learned == whole.learned
    histories = [[moment._replace(seconds=0.0) for moment in result.history] for result in (resumed, whole)]
    assert histories[0] == histories[1]
    assert len(resumed.iterates) == len(whole.iterates) > 0
    for one, other in zip(resumed.iterates, whole.iterates, strict=True):
        assert one.iteration == other.iteration
        assert torch.equal(one.images, other.images)
    assert resumed.seconds > 0


@pytest.mark.parametrize("name", ATTACKS)
def test_a_killed_attack_goes_on_as_if_nothing_had_happened(
    name: str, observation: Observation, tmp_path: Path
) -> None:
    attack, moments = ATTACKS[name]
    whole = attack(observation, seed=4)
    for moment in moments:
        path = tmp_path / f"{moment}.checkpoint"
        with pytest.raises(Killed):
            attack(observation, seed=4, run=run_at(path, raise_at(moment, Killed)))
        assert path.exists() or moment == 0
        check_equal(attack(observation, seed=4, run=run_at(path)), whole)


def test_an_attack_may_be_killed_again_and_again(observation: Observation, tmp_path: Path) -> None:
    attack, moments = ATTACKS["strongest"]
    path = tmp_path / "checkpoint"
    for moment in moments:
        with pytest.raises(Killed):
            attack(observation, run=run_at(path, raise_at(moment, Killed)))
    check_equal(attack(observation, run=run_at(path)), attack(observation))


def test_a_checkpoint_does_not_change_the_result(observation: Observation, tmp_path: Path) -> None:
    for name in ("awa", "gradinversion"):
        attack = ATTACKS[name][0]
        check_equal(attack(observation, run=run_at(tmp_path / name)), attack(observation))


def test_a_resumed_attack_repeats_only_what_came_after_the_checkpoint(observation: Observation, tmp_path: Path) -> None:
    attack, seen = awa(steps=30), list[int]()
    with pytest.raises(Killed):
        attack(observation, run=run_at(tmp_path / "checkpoint", raise_at(20, Killed)))
    attack(observation, run=run_at(tmp_path / "checkpoint", lambda moment, _: seen.append(moment.iteration)))
    assert seen == [20]


def test_a_finished_attack_is_not_run_again(observation: Observation, tmp_path: Path) -> None:
    attack = awa(steps=12, restarts=2)
    whole = attack(observation, run=run_at(tmp_path / "checkpoint"))
    again = attack(observation, run=run_at(tmp_path / "checkpoint", raise_at(0, Killed)))
    check_equal(again, whole)


@pytest.mark.parametrize("name", ["awa", "strongest", "restarts"])
def test_an_interrupted_attack_can_be_resumed(name: str, observation: Observation, tmp_path: Path) -> None:
    attack, moments = ATTACKS[name]
    path = tmp_path / "checkpoint"
    part = attack(observation, run=run_at(path, raise_at(moments[-1], KeyboardInterrupt)))
    assert part.status == "interrupted"
    assert path.exists()
    check_equal(attack(observation, run=run_at(path)), attack(observation))


def test_a_run_that_recovered_is_resumed_with_its_best_point(observation: Observation, tmp_path: Path) -> None:
    method = GradientMatching(
        replay=OneStep(in_gradients=True), optimizer=LBFGS(learning_rate=1e30, inner=3), box=False, steps=15
    )
    with pytest.raises(Killed):
        method(observation, run=run_at(tmp_path / "checkpoint", raise_at(10, Killed)))
    resumed, whole = method(observation, run=run_at(tmp_path / "checkpoint")), method(observation)
    assert torch.equal(resumed.images, whole.images)
    assert (resumed.mismatch, resumed.iterations, resumed.status) == (whole.mismatch, whole.iterations, whole.status)


SCRIPT = """
import os, pathlib, signal, sys, torch
from undelta.attacker.attack import Run
from undelta.attacker.attacks import awa
from undelta.attacker.checkpoint import Checkpoint
from undelta.observation.file import load_observation

torch.set_num_threads(1)
folder, mode = pathlib.Path(sys.argv[1]), sys.argv[2]
die = lambda: os.kill(os.getpid(), signal.SIGKILL)
written = 0

def fsync(handle):  # the new file is written, but does not have its name yet
    global written
    written += 1
    if written == 13:
        die()

if mode == "while writing":
    os.fsync = fsync
watch = lambda moment, total: moment.iteration >= 10 and mode == "between two steps" and die()
run = Run(watch=watch, checkpoint=Checkpoint(folder / "checkpoint", key="run", seconds=0))
awa(steps=25)(load_observation(folder / "observation"), run=run)
"""


@pytest.mark.parametrize("mode", ["between two steps", "while writing"])
def test_a_process_killed_by_the_system_can_be_resumed(mode: str, observation: Observation, tmp_path: Path) -> None:
    save_observation(observation, tmp_path / "observation")
    ended = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path), mode], check=False, timeout=300)
    assert ended.returncode == -9
    seen: list[int] = []
    resumed = awa(steps=25)(
        observation, run=run_at(tmp_path / "checkpoint", lambda moment, _: seen.append(moment.iteration))
    )
    assert seen[0] >= 10
    check_equal(resumed, awa(steps=25)(observation))


def begun(observation: Observation, path: Path, **settings: Any) -> None:
    with pytest.raises(Killed):
        awa(steps=25)(observation, run=Run(watch=raise_at(10, Killed), checkpoint=checkpoint_at(path, **settings)))


def test_the_checkpoint_of_another_run_is_refused(observation: Observation, tmp_path: Path) -> None:
    begun(observation, tmp_path / "checkpoint", key="one")
    with pytest.raises(ConfigError, match="another run"):
        checkpoint_at(tmp_path / "checkpoint", key="other")
    assert (tmp_path / "checkpoint").exists()


def test_the_checkpoint_of_another_run_is_begun_anew_where_asked(observation: Observation, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    begun(observation, path, key="one")
    other = Checkpoint(path, key="other", replace=True)
    assert other.current("attack") is None
    path.write_bytes(b"no checkpoint at all")
    check_equal(
        awa(steps=12)(observation, run=Run(checkpoint=Checkpoint(path, key="other", replace=True))),
        awa(steps=12)(observation),
    )
    assert checkpoint_at(path, key="other").finished("attack") is not None


def test_nothing_is_written_once_a_run_is_no_longer_ours(observation: Observation, tmp_path: Path) -> None:
    def check() -> None:
        raise Killed

    with pytest.raises(Killed):
        awa(steps=12)(observation, run=Run(checkpoint=Checkpoint(tmp_path / "checkpoint", key="run", check=check)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_truncated_checkpoint_is_refused(observation: Observation, tmp_path: Path, share: float) -> None:
    path = tmp_path / "checkpoint"
    begun(observation, path)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ConfigError, match="not a readable checkpoint"):
        checkpoint_at(path)


@pytest.mark.parametrize(
    "content",
    [b"no checkpoint at all", b"\x80\x02}q\x00.", b"\x00" * 100, b"PK\x03\x04"],
    ids=["text", "a pickle", "zeros", "the beginning of an archive"],
)
def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="not a readable checkpoint"):
        checkpoint_at(path)


@pytest.mark.parametrize(
    "content", [torch.zeros(3), [1, 2], {"key": "run"}, {}], ids=["a tensor", "a list", "a key only", "nothing"]
)
def test_a_saved_tensor_or_list_is_no_checkpoint(tmp_path: Path, content: object) -> None:
    torch.save(content, tmp_path / "checkpoint")
    with pytest.raises(ConfigError, match="not a readable checkpoint"):
        checkpoint_at(tmp_path / "checkpoint")


def test_a_checkpoint_never_runs_code(tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return mark.touch, ()

    torch.save({"key": "run", "finished": {}, "label": "", "state": Trap()}, tmp_path / "checkpoint")
    with pytest.raises(ConfigError, match="not a readable checkpoint"):
        checkpoint_at(tmp_path / "checkpoint")
    assert not mark.exists()


def test_the_first_checkpoint_comes_at_once_and_the_next_in_due_time(observation: Observation, tmp_path: Path) -> None:
    begun(observation, tmp_path / "checkpoint", seconds=3600.0)
    state = checkpoint_at(tmp_path / "checkpoint").current("attack")
    assert state is not None
    assert state["iteration"] == 1


def test_a_flipped_bit_never_changes_the_images(observation: Observation, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    with pytest.raises(Killed):
        awa(steps=25)(observation, run=run_at(path, raise_at(10, Killed)))
    whole = path.read_bytes()
    for place in range(0, len(whole), len(whole) // 40):
        content = bytearray(whole)
        content[place] ^= 1
        path.write_bytes(content)
        with pytest.raises(ConfigError, match="does not match its checksum"):
            checkpoint_at(path)


@pytest.mark.parametrize(
    "change",
    [
        {"finished": {"attack": 3}},
        {"finished": [1]},
        {"state": 7},
        {"state": {"descents": []}},
        {"state": {"descents": [{"variables": {"images": torch.zeros(1)}}]}},
        {"label": "attack", "state": {"descents": 1, "history": 2, "iterates": 3, "iteration": "x", "elapsed": None}},
    ],
)
def test_a_checkpoint_of_another_shape_is_refused_in_one_line(
    observation: Observation, tmp_path: Path, change: dict[str, Any]
) -> None:
    content = io.BytesIO()
    torch.save({"key": "run", "finished": {}, "label": "attack", "state": {"descents": []}, **change}, content)
    saved = content.getvalue()
    (tmp_path / "checkpoint.pt").write_bytes(hashlib.sha256(saved).digest() + saved)
    with pytest.raises(ConfigError, match="checkpoint"):
        awa(steps=1)(observation, run=run_at(tmp_path / "checkpoint.pt"))
