"""What rich draws while something runs; where nobody watches, a plain line now and then."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer
from rich import progress
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from undelta.cli.app import printable

if TYPE_CHECKING:  # torch takes seconds to import, and --help does not need it
    from undelta.attacker.attack import Watch
    from undelta.attacker.reconstruction import Moment
    from undelta.trials.tasks import Progress
    from undelta.trials.trial import Trial

MOST_LINES = 12  # of trials that run, in an overview
LINE_SECONDS = 60.0  # between plain lines where there is no terminal


def _bars(title: progress.ProgressColumn, *after: progress.ProgressColumn) -> progress.Progress:
    console = Console(stderr=True)
    counts = (progress.BarColumn(), progress.MofNCompleteColumn())
    return progress.Progress(title, *counts, *after, console=console, disable=not console.is_terminal)


class Plain:
    """Where nobody watches: a plain line now and then, since silent jobs are taken for dead."""

    def __init__(self) -> None:
        self.began = self.last = time.monotonic()

    def say(self, line: Callable[[], str]) -> None:
        if (now := time.monotonic()) - self.last >= LINE_SECONDS:
            self.last = now
            typer.echo(f"{_duration(now - self.began)} {line()}", err=True)


@contextmanager
def watching() -> Iterator[Callable[[str], Watch]]:
    """Something that begins a live line for an attack: iterations, speed, mismatch, time left."""
    bars = _bars(
        progress.TextColumn("{task.description}", markup=False),
        progress.TextColumn("{task.fields[speed]:.1f} it/s  mismatch {task.fields[mismatch]:.4f}  left"),
        progress.TimeRemainingColumn(),
    )
    plain = Plain() if bars.disable else None

    def start(name: str) -> Watch:
        task = None

        def watch(moment: Moment, total: int) -> None:
            nonlocal task
            if plain:
                of = f" of {total}" if total else ""
                plain.say(lambda: f"{name}: iteration {moment.iteration + 1}{of}, mismatch {moment.mismatch:.4f}")
                return
            if task is None:
                task = bars.add_task(name, total=total or None, speed=0.0, mismatch=1.0)
            speed = bars.tasks[task].speed or 0.0
            bars.update(task, completed=moment.iteration + 1, speed=speed, mismatch=moment.mismatch)

        return watch

    with bars:
        yield start


@contextmanager
def counting(name: str) -> Iterator[Callable[[int, int], None]]:
    """Something that is told how much is done, of how much at most."""
    bars = _bars(progress.TextColumn("{task.description}", markup=False), progress.TimeRemainingColumn())
    plain = Plain() if bars.disable else None
    task = bars.add_task(name, total=None)

    def count(done: int, total: int) -> None:
        bars.update(task, completed=done, total=total)
        if plain:
            plain.say(lambda: f"{name}: {done} of {total}")

    with bars:
        yield count


class Terminal:
    """A screen for studies (`undelta.studies.screen`), on stderr."""

    @contextmanager
    def trials(self, trials: Mapping[str, Trial], *, noun: str = "trial") -> Iterator[Callable[[Progress], None]]:
        """An overview of an audit's trials, or of other work on their updates."""
        console, pace = Console(stderr=True), Pace()
        if not console.is_terminal:
            plain = Plain()

            def show(progress: Progress) -> None:
                # Also where it is not said: time passes.
                line = ", ".join((*_counts(progress, noun), *pace.left(progress)))
                plain.say(lambda: line)

            yield show
            return
        with Live(console=console, transient=True, auto_refresh=False) as live:
            yield lambda progress: live.update(_page(progress, trials, pace, noun), refresh=True)

    @contextmanager
    def tuning(self, total: int) -> Iterator[TuningLine]:
        """Trials done, the best value so far, and how far the trial under way is."""
        columns = (progress.TextColumn("{task.description}"), progress.TimeElapsedColumn())
        with _bars(progress.TextColumn("trials"), *columns) as bars:
            yield TuningLine(bars, bars.add_task("", total=total))


class Pace:
    """How long trials take, seen from how many were done since somebody looked first."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.first: int | None = None

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def left(self, progress: Progress) -> list[str]:
        """The time left, in words; nothing before the first trial is done."""
        ended = progress.done + progress.failed + progress.not_applicable
        self.first = ended if self.first is None else self.first
        if ended == self.first:
            return []
        return [f"about {_duration(self.seconds / (ended - self.first) * (progress.total - ended))} left"]


class TuningLine:
    """One live line for a whole tuning."""

    def __init__(self, bars: progress.Progress, task: progress.TaskID) -> None:
        self.bars, self.task, self.best = bars, task, ""
        self.plain = Plain() if bars.disable else None

    def update(self, done: int, best: float | None) -> None:
        self.best = "" if best is None else f"best {best:.5g}"
        self.bars.update(self.task, completed=done, description=self.best)
        if self.plain:
            self.plain.say(lambda: f"{done} trial{'s' * (done != 1)} done  {self.best}".strip())

    def watch(self, slot: int) -> Watch:
        def watch(moment: Moment, total: int) -> None:
            now = f"trial {slot}: {moment.iteration + 1}/{total or '?'}, mismatch {moment.mismatch:.4f}"
            self.bars.update(self.task, description=f"{self.best}  {now}".strip())
            if self.plain:
                self.plain.say(lambda: f"{now}  {self.best}".strip())

        return watch


def _counts(progress: Progress, noun: str) -> list[str]:
    counts = [f"{progress.done} of {progress.total} {noun}{'s' * (progress.total != 1)} done"]
    if progress.not_applicable:
        counts.append(f"{progress.not_applicable} not applicable")
    return [*counts, f"{progress.failed} failed", f"{len(progress.running)} running"]


def _page(progress: Progress, trials: Mapping[str, Trial], pace: Pace, noun: str) -> Table:
    page = Table.grid(padding=(0, 2))
    words = ", ".join((*_counts(progress, noun), *pace.left(progress)))
    page.add_row(Text(words), Text(_duration(pace.seconds)))
    running = list(progress.running.items())
    for key, owner in running[:MOST_LINES]:
        page.add_row(
            Text(printable(f"  {_describe(trials[key], noun)}")),
            Text(printable(f"{_since(owner.since)} on {owner.host}")),
        )
    if len(running) > MOST_LINES:
        page.add_row(Text(f"  and {len(running) - MOST_LINES} more"), Text(""))
    return page


def _describe(trial: Trial, noun: str) -> str:
    from undelta.trials.record import UNDEFENDED

    task = trial.attack if noun == "trial" else noun
    parts = [trial.name, *([trial.defense] if trial.defense != UNDEFENDED else []), task, f"seed {trial.seed}"]
    return " | ".join(parts)


def _since(moment: str) -> str:
    try:
        passed = datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(moment)
    except (TypeError, ValueError):  # another version wrote it
        return "?"
    return _duration(passed.total_seconds())


def _duration(seconds: float) -> str:
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
