"""Checkpoints of a running attack: finished parts and the state of the current one, in one atomic file.

A kill costs at most the last interval, and the resumed attack ends with the same images, bit for bit.
"""

from __future__ import annotations

import hashlib
import io
import math
import time
from collections.abc import Callable
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from undelta.attacker.reconstruction import Iterate, Moment, Reconstruction
from undelta.engine import ranks
from undelta.errors import ConfigError
from undelta.files import write_bytes

DIGEST = 32  # bytes, before everything else


class Checkpoint:
    """Remembers an attack's progress under a key that says which attack it is."""

    def __init__(
        self,
        path: Path,
        *,
        key: str,
        seconds: float = 30.0,
        replace: bool = False,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Open or begin a checkpoint file.

        Args:
            path: The file.
            key: What is being run. To continue with something else would give a result that nobody can repeat.
            seconds: The least time between two checkpoints.
            replace: Whether the file of something else, or a damaged one, is begun anew rather than refused.
            check: Called before anything is written; raises if the run is no longer ours.
        """
        self.path, self.key, self.seconds, self._check = path, key, seconds, check
        self._finished: dict[str, Reconstruction] = {}
        self._label, self._state = "", dict[str, Any]()
        self._saved = -math.inf  # the first checkpoint is due at once, so that there is always one
        # One process reads and writes; where several share an attack, the others hear of it.
        there = ranks.rank() == 0 and path.exists()
        saved = ranks.same_bytes(b"." + path.read_bytes() if there else b"")
        try:
            if saved:
                self._read(saved[1:])
        except ConfigError:
            if not replace:
                raise
            self._finished, self._label, self._state = {}, "", {}

    def _read(self, saved: bytes) -> None:
        try:
            digest, saved = saved[:DIGEST], saved[DIGEST:]
            if hashlib.sha256(saved).digest() != digest:  # a flipped bit would change the images, and nobody would know
                raise ValueError("its content does not match its checksum")
            with torch.serialization.safe_globals([Iterate, Moment, Reconstruction]):  # no other code runs
                content = torch.load(io.BytesIO(saved), map_location="cpu", weights_only=True)
            if not isinstance(content, dict):
                raise TypeError(f"expected a dictionary, got {type(content).__name__}")
            key, self._finished = content["key"], dict[str, Reconstruction](content["finished"])
            self._label, self._state = str(content["label"]), dict[str, Any](content["state"])
            if not all(isinstance(result, Reconstruction) for result in self._finished.values()):
                raise TypeError("expected reconstructions")
        except (OSError, RuntimeError, LookupError, TypeError, ValueError, EOFError, UnpicklingError) as problem:
            reason = str(problem).partition("\n")[0]
            raise ConfigError(f"{self.path}: not a readable checkpoint ({reason}); delete it to start over") from None
        if key != self.key:
            raise ConfigError(
                f"{self.path} is the checkpoint of another run; attack, settings, seed, update or versions differ: "
                "repeat that command, choose another --out, or delete it"
            )

    def finished(self, label: str) -> Reconstruction | None:
        return self._finished.get(label)

    def finish(self, label: str, result: Reconstruction) -> None:
        """Remember that a part is done."""
        self._finished[label] = result
        self._label, self._state = "", {}
        self._write()

    def current(self, label: str) -> dict[str, Any] | None:
        """The state of a part that was under way."""
        return self._state if self._label == label else None

    @property
    def due(self) -> bool:
        return ranks.rank() == 0 and time.monotonic() - self._saved >= self.seconds

    def save(self, label: str, state: dict[str, Any]) -> None:
        self._label, self._state = label, state
        self._write()

    def _write(self) -> None:
        self._check()
        if ranks.rank() > 0:
            return
        content = io.BytesIO()
        values = {"key": self.key, "finished": self._finished, "label": self._label, "state": self._state}
        torch.save(values, content)
        saved = content.getvalue()
        write_bytes(self.path, hashlib.sha256(saved).digest() + saved, private=True)
        self._saved = time.monotonic()
