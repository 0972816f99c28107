"""Auditing recorded updates aside: in a process of its own, of low priority, one at a time, never waited for.

The process runs `main`. It holds a lock for as long as it lives, so that a killed one leaves nothing locked, works in a
hidden folder, and moves that to its place when all is done.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from undelta.errors import ConfigError, UndeltaError
from undelta.files import make_folder, refused
from undelta.schema import parse
from undelta.trials.config import make_attack

AUDITS = "audits"
LOCK = ".lock"
NICENESS = 19
PROGRAM = f"import os; os.nice({NICENESS}); from {__name__} import main; main()"  # nice before torch is loaded


@dataclass(frozen=True, kw_only=True)
class Aside:
    """What to do with a recorded update."""

    attack: str = "strongest"
    arguments: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    seconds: int = 3600
    """Of processor time, after which the system ends an audit."""

    def __post_init__(self) -> None:
        if self.seconds < 1:
            raise ConfigError(f"expected seconds >= 1, got seconds={self.seconds}")
        make_attack(self.attack, self.arguments)


class Audits:
    """Starts audits of a directory's updates; results are in ``audits/NAME``, and what they say in ``NAME.log``."""

    def __init__(self, into: Path, model: str, settings: Mapping[str, object], log: logging.Logger) -> None:
        self._folder, self._model, self._log = into / AUDITS, model, log
        self._aside = parse(Aside, settings, where="audit", error=ConfigError)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, update: Path) -> None:
        """Audit an update, unless another audit is under way."""
        if self.process is not None:
            self.process.poll()  # it may have ended; nobody else asks
        make_folder(self._folder)
        with refused(f"cannot write into {self._folder}", ConfigError):
            lock = os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._log.info(f"undelta: {update.stem} is not audited, since another audit is under way")
            else:
                self._run(update, lock)
            finally:
                os.close(lock)  # the process has it, too

    def _run(self, update: Path, lock: int) -> None:
        told = {
            "update": str(update.resolve()),
            "out": str((self._folder / update.stem).resolve()),
            "model": self._model if ":" in self._model else None,
            "seconds": self._aside.seconds,
            "attack": self._aside.attack,
            "arguments": dict(self._aside.arguments),
            "seed": self._aside.seed,
        }
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(word or str(Path.cwd()) for word in sys.path),  # for the model's function
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",  # training has it
        }
        with (self._folder / f"{update.stem}.log").open("wb") as log:
            self.process = subprocess.Popen(  # noqa: S603 - ourselves
                [sys.executable, "-c", PROGRAM, json.dumps(told)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                pass_fds=(lock,),
                start_new_session=True,  # a job that ends, or is interrupted, does not end it
            )


def main() -> None:
    """Audit one update; what to do is the only argument."""
    told = json.loads(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_CPU, (told["seconds"], told["seconds"]))
    from undelta.report.write import write_report
    from undelta.studies.scoring import score_job
    from undelta.studies.single import attack_job
    from undelta.trials.judgment import read_judgment

    update, out = Path(told["update"]), Path(told["out"])
    truth, hidden = update.with_name(f"truth-{update.name}"), out.with_name(f".{out.name}.new")
    for left in out.parent.glob(".*.new"):  # of processes that were killed; the lock says that none is working
        shutil.rmtree(left)
    say(f"auditing {update.name} with {told['attack']}, niceness {os.nice(0)}, {told['seconds']} s at most")
    try:
        how = {key: told[key] for key in ("attack", "arguments", "seed", "model")}
        attack_job(update, out=hidden, device="cpu", **how)
        if truth.is_file():
            score_job(hidden, truth_path=truth, model=told["model"])
        write_report(hidden)
    except UndeltaError as problem:
        shutil.rmtree(hidden, ignore_errors=True)
        sys.exit(f"undelta: {problem}")
    shutil.rmtree(out, ignore_errors=True)  # of an update that this one replaced
    hidden.rename(out)
    judgment = read_judgment(out)
    say(judgment.headline if judgment else "no verdict")


def say(text: str) -> None:
    """A line of the log."""
    print(f"undelta: {text}", flush=True)  # noqa: T201
