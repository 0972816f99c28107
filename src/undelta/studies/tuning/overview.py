"""A tuning in the terminal: one live line while it runs, silent where nobody watches, and what was found at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from optuna.trial import FrozenTrial, TrialState
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from undelta.attacker.attack import Watch
from undelta.attacker.reconstruction import Moment
from undelta.studies.tuning.outcome import Tuned, measured
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


def print_tuned(tuned: Tuned) -> None:
    """What was found, as a table."""
    counts = Counter(trial.state for trial in tuned.trials)
    ends = ", ".join(f"{counts[state]} {state}" for state in ("pruned", "diverged") if counts[state])
    words = f"Best of {len(tuned.trials)} trials{f' ({ends})' if ends else ''}"
    console = Console(highlight=False)
    console.print(f"{words}: {measured(tuned)}, in trial {tuned.best.number}.", soft_wrap=True)
    table = Table()
    for title in ("parameter", "best", "importance"):
        table.add_column(title, justify="left" if title == "parameter" else "right", no_wrap=True)
    for name, value in tuned.best.parameters.items():
        share = tuned.importance.get(name)
        table.add_row(name, f"{value:.5g}", "n/a" if share is None else f"{share:.0%}")
    console.print(table)
