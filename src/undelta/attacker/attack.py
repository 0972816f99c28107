"""What an attack is, and `Run`: one call of it as its caller sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

from undelta.attacker.checkpoint import Checkpoint
from undelta.attacker.reconstruction import Moment, Reconstruction
from undelta.engine import MEMORY
from undelta.errors import ConfigError
from undelta.observation import Observation

Watch: TypeAlias = Callable[[Moment, int], None]
"""Called with every point of the history and the number of iterations in all; 0 while that is open."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What watches an attack, where it checkpoints, and how much memory it has."""

    watch: Watch | None = None
    checkpoint: Checkpoint | None = None
    memory: int = MEMORY
    """Bytes that may be kept in order to save time; an attack never takes less than one sample needs."""
    part: str = "attack"
    """Which part of the whole attack this is; a checkpoint knows it by this name."""

    def __post_init__(self) -> None:
        if self.memory < 1:
            raise ConfigError(f"expected a memory limit of at least one byte, got {self.memory}")

    def within(self, part: str, *, done: int, total: int) -> Run:
        """The run of one part; whoever watches hears of its iterations as of those after ``done``, of ``total``."""

        def counting(moment: Moment, _: int) -> None:
            self.tell(moment._replace(iteration=moment.iteration + done), total)

        return replace(self, watch=counting, part=f"{self.part}, {part}")

    def tell(self, moment: Moment, total: int) -> None:
        """A new point of the history."""
        if self.watch:
            self.watch(moment, total)

    def finished(self) -> Reconstruction | None:
        """The result of this part, if it was done before."""
        return self.checkpoint.finished(self.part) if self.checkpoint else None

    def state(self) -> dict[str, Any] | None:
        """Where this part was when it was last saved, if it was under way."""
        return self.checkpoint.current(self.part) if self.checkpoint else None

    def save(self, state: Callable[[], dict[str, Any]]) -> None:
        """Checkpoint this part's state, if it is time to."""
        if self.checkpoint and self.checkpoint.due:
            self.checkpoint.save(self.part, state())

    def finish(self, result: Reconstruction) -> None:
        """Remember that this part is done."""
        if self.checkpoint:
            self.checkpoint.finish(self.part, result)


UNWATCHED = Run()


class Attack(Protocol):
    """Any callable that reconstructs images from an observation alone."""

    def __call__(self, observation: Observation, *, seed: int = 0, run: Run = UNWATCHED) -> Reconstruction:
        """The reconstruction; equal seeds give equal results on one machine."""
