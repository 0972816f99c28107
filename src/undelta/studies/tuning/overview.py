"""A tuning in the terminal: one live line while it runs, silent where nobody watches."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from optuna.trial import FrozenTrial, TrialState
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from undelta.attacker.attack import Watch
from undelta.attacker.reconstruction import Moment
from undelta.studies.tuning.plan import Plan


class Line:
    """Trials done, the best value so far, and how far the trial under way is."""

    def __init__(self, plan: Plan, total: int) -> None:
        console = Console(stderr=True)
        self.better = min if plan.direction == "minimize" else max
        self.bars = Progress(
            TextColumn("trials"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = self.bars.add_task("", total=total)
        self.best = ""

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bars.stop()

    def update(self, finished: Sequence[FrozenTrial]) -> None:
        """Show how far the tuning is."""
        values = [trial.value for trial in finished if trial.state == TrialState.COMPLETE and trial.value is not None]
        self.best = f"best {self.better(values):.5g}" if values else ""
        self.bars.update(self.task, completed=len(finished), description=self.best)

    def watch(self, slot: int) -> Watch:
        """Something that shows how far a trial is."""

        def watch(moment: Moment, total: int) -> None:
            now = f"trial {slot}: {moment.iteration + 1}/{total}, mismatch {moment.mismatch:.4f}"
            self.bars.update(self.task, description=f"{self.best}  {now}".strip())

        return watch
