"""What studies show while they run; `undelta.cli.progress` draws it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from undelta.attacker.attack import Watch
from undelta.trials.tasks import Progress
from undelta.trials.trial import Trial


class Line(Protocol):
    """How far a tuning is."""

    def update(self, done: int, best: float | None) -> None:
        """So many trials are done, and this is the best value."""

    def watch(self, slot: int) -> Watch:
        """Something that is told how far a trial is."""


class Screen(Protocol):
    """Where a study shows how far it is, for as long as a block lasts."""

    def trials(
        self, trials: Mapping[str, Trial], *, noun: str = "trial"
    ) -> AbstractContextManager[Callable[[Progress], None]]:
        """Something that is told how far these trials are, or other work on their updates."""

    def tuning(self, total: int) -> AbstractContextManager[Line]:
        """Something that is told how far a tuning of so many trials is."""


class Silent(Screen, Line):
    """Nobody watches."""

    def trials(
        self, trials: Mapping[str, Trial], *, noun: str = "trial"
    ) -> AbstractContextManager[Callable[[Progress], None]]:
        return nullcontext(lambda _: None)

    def tuning(self, total: int) -> AbstractContextManager[Line]:
        return nullcontext(self)

    def update(self, done: int, best: float | None) -> None:
        return

    def watch(self, slot: int) -> Watch:
        return lambda moment, total: None


SILENT = Silent()
