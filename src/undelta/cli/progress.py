"""A running attack and its result on the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from undelta.attacker.attack import Watch
    from undelta.attacker.reconstruction import Moment
    from undelta.studies.containment import Found
    from undelta.trials.record import Record


class Progress:
    """A live line per attack: iterations, speed, mismatch, time left. Silent where nobody watches."""

    def __init__(self) -> None:
        from rich import progress
        from rich.console import Console

        self.console = Console(stderr=True)
        self.bars = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[speed]:.1f} it/s  mismatch {task.fields[mismatch]:.4f}  left"),
            progress.TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )

    def start(self, name: str) -> Watch:
        """A watch that feeds one line."""
        task = None

        def watch(moment: Moment, total: int) -> None:
            nonlocal task
            if task is None:
                task = self.bars.add_task(name, total=total, speed=0.0, mismatch=1.0)
            speed = self.bars.tasks[task].speed or 0.0
            self.bars.update(task, completed=moment.iteration + 1, speed=speed, mismatch=moment.mismatch)

        return watch


@contextmanager
def watching() -> Iterator[Progress]:
    """Lines for the attacks that run meanwhile."""
    progress = Progress()
    with progress.bars:
        yield progress


def print_table(records: Sequence[Record]) -> None:
    """A row for each record."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from undelta.evaluation.measures import METRICS

    table = Table(box=box.SIMPLE_HEAD, padding=0)  # so that 80 columns hold it
    metrics = [METRICS[key] for key in ("psnr", "ssim", "lpips", "mismatch", "iterations", "seconds")]
    for column in ("attack", *(metric.title for metric in metrics), "status"):
        table.add_column(column, justify="left" if column in ("attack", "status") else "right", no_wrap=True)
    for record in records:
        cells = [metric.show(getattr(record, metric.key)) for metric in metrics]
        table.add_row(record.attack, *cells, record.status)
    Console().print(table)
    for record in records:
        if record.floor:
            typer.echo(f"{record.attack}: mismatch {record.floor.mismatch:.4f} at the truth; {record.floor.text}.")
        for note in record.notes:
            typer.echo(f"{record.attack}: {note}.")
    if any(record.scored and record.lpips is None for record in records):
        from undelta.evaluation.lpips import HINT, find_weights

        if find_weights() is None:  # else it could not be computed for another reason, such as a diverged image
            typer.echo(HINT)


def print_containment(found: list[Found]) -> None:
    """A row for each picture."""
    from rich.console import Console
    from rich.table import Table

    table = Table()
    table.add_column("picture")
    table.add_column("outside of the update's span", justify="right")
    table.add_column("p-value", justify="right")
    for name, containment in found:
        table.add_row(name, f"{containment.outside:.2g}", f"{containment.p_value:.3f}")
    Console().print(table)
    typer.echo("p-value: the share of reference images that look as contained as this one, at least one of them.")


def print_floors(columns: dict[str, list[float | None]]) -> None:
    """A row for each replay, the lowest floors marked."""
    from rich.console import Console
    from rich.table import Table

    means = {
        name: sum(known) / len(known)
        for name, values in columns.items()
        if (known := [v for v in values if v is not None])
    }
    table = Table()
    table.add_column("replay")
    table.add_column("mismatch at the truth", justify="right")
    table.add_column("spread", justify="right")
    for name, values in columns.items():
        known = [value for value in values if value is not None]
        spread = f"{min(known):.2g} to {max(known):.2g}" if len(known) > 1 else ""
        table.add_row(name, _number(means.get(name), ".5f"), spread)
    Console().print(table)


def _number(value: float | None, form: str) -> str:
    return "n/a" if value is None else f"{value:{form}}"
