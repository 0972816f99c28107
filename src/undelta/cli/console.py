"""All that rich draws: attacks under way, silent where nobody watches, and tables of what came of them."""

from __future__ import annotations

import datetime
import statistics
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import typer
from rich import box, progress
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:  # torch takes seconds to import, and --help does not need it
    from undelta.attacker.attack import Watch
    from undelta.attacker.reconstruction import Moment
    from undelta.studies.containment import Found
    from undelta.studies.tuning.outcome import Tuned
    from undelta.trials.record import Record
    from undelta.trials.tasks import Progress
    from undelta.trials.tradeoff import Tradeoff
    from undelta.trials.trial import Trial
    from undelta.trials.verdict import Verdict

MOST_LINES = 12  # of trials that run, in an overview
MISSING = "n/a"


# While something runs


def _bars(title: progress.ProgressColumn, *after: progress.ProgressColumn) -> progress.Progress:
    console = Console(stderr=True)
    counts = (progress.BarColumn(), progress.MofNCompleteColumn())
    return progress.Progress(title, *counts, *after, console=console, disable=not console.is_terminal)


@contextmanager
def watching() -> Iterator[Callable[[str], Watch]]:
    """Something that begins a live line for an attack: iterations, speed, mismatch, time left."""
    bars = _bars(
        progress.TextColumn("{task.description}"),
        progress.TextColumn("{task.fields[speed]:.1f} it/s  mismatch {task.fields[mismatch]:.4f}  left"),
        progress.TimeRemainingColumn(),
    )

    def start(name: str) -> Watch:
        task = None

        def watch(moment: Moment, total: int) -> None:
            nonlocal task
            if task is None:
                task = bars.add_task(name, total=total, speed=0.0, mismatch=1.0)
            speed = bars.tasks[task].speed or 0.0
            bars.update(task, completed=moment.iteration + 1, speed=speed, mismatch=moment.mismatch)

        return watch

    with bars:
        yield start


class Terminal:
    """A screen for studies (`undelta.studies.screen`), on stderr."""

    @contextmanager
    def trials(self, trials: Mapping[str, Trial]) -> Iterator[Callable[[Progress], None]]:
        """An overview of an audit."""
        console = Console(stderr=True)
        if not console.is_terminal:
            yield lambda _: None
            return
        began = time.monotonic()
        with Live(console=console, transient=True, auto_refresh=False) as live:
            yield lambda progress: live.update(_page(progress, trials, time.monotonic() - began), refresh=True)

    @contextmanager
    def tuning(self, total: int) -> Iterator[TuningLine]:
        """Trials done, the best value so far, and how far the trial under way is."""
        columns = (progress.TextColumn("{task.description}"), progress.TimeElapsedColumn())
        with _bars(progress.TextColumn("trials"), *columns) as bars:
            yield TuningLine(bars, bars.add_task("", total=total))


class TuningLine:
    """One live line for a whole tuning."""

    def __init__(self, bars: progress.Progress, task: progress.TaskID) -> None:
        self.bars, self.task, self.best = bars, task, ""

    def update(self, done: int, best: float | None) -> None:
        self.best = "" if best is None else f"best {best:.5g}"
        self.bars.update(self.task, completed=done, description=self.best)

    def watch(self, slot: int) -> Watch:
        def watch(moment: Moment, total: int) -> None:
            now = f"trial {slot}: {moment.iteration + 1}/{total}, mismatch {moment.mismatch:.4f}"
            self.bars.update(self.task, description=f"{self.best}  {now}".strip())

        return watch


def _page(progress: Progress, trials: Mapping[str, Trial], seconds: float) -> Table:
    page = Table.grid(padding=(0, 2))
    counts = [f"{progress.done} of {progress.total} trials done"]
    if progress.not_applicable:
        counts.append(f"{progress.not_applicable} not applicable")
    counts += [f"{progress.failed} failed", f"{len(progress.running)} running", f"{progress.left} left"]
    page.add_row(Text(", ".join(counts)), Text(_duration(seconds)))
    running = list(progress.running.items())
    for key, owner in running[:MOST_LINES]:
        page.add_row(Text(f"  {_describe(trials[key])}"), Text(f"{_since(owner.since)} on {owner.host}"))
    if len(running) > MOST_LINES:
        page.add_row(Text(f"  and {len(running) - MOST_LINES} more"), Text(""))
    return page


def _describe(trial: Trial) -> str:
    from undelta.trials.record import UNDEFENDED

    parts = [trial.name, *([trial.defense] if trial.defense != UNDEFENDED else []), trial.attack, f"seed {trial.seed}"]
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


# What came of it


def _print_table(
    titles: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    words: Collection[str],
    fold: Collection[str] = (),
    least: int | None = None,
    **form: Any,
) -> None:
    """Columns of words to the left, of numbers to the right; those that may be folded are at least so wide."""
    table = Table(**form)
    for title in titles:
        side: Literal["left", "right"] = "left" if title in words else "right"
        if title in fold:
            table.add_column(title, justify=side, overflow="fold", min_width=least)
        else:
            table.add_column(title, justify=side, no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)


def print_table(records: Sequence[Record]) -> None:
    """A row for each record."""
    from undelta.evaluation.measures import METRICS

    metrics = [METRICS[key] for key in ("psnr", "ssim", "lpips", "mismatch", "iterations", "seconds")]
    _print_table(
        ("attack", *(metric.title for metric in metrics), "status"),
        [(one.attack, *(metric.show(getattr(one, metric.key)) for metric in metrics), one.status) for one in records],
        words=("attack", "status"),
        box=box.SIMPLE_HEAD,
        padding=0,  # so that 80 columns hold it
    )
    for record in records:
        if record.floor:
            typer.echo(f"{record.attack}: mismatch {record.floor.mismatch:.4f} at the truth; {record.floor.text}.")
        for note in record.notes:
            typer.echo(f"{record.attack}: {note}.")
    if any(record.scored and record.lpips is None for record in records):
        from undelta.evaluation.lpips import HINT, find_weights

        if find_weights() is None:  # else it could not be computed for another reason, such as a diverged image
            typer.echo(HINT)


def print_containment(found: Sequence[Found]) -> None:
    """A row for each picture."""
    _print_table(
        ("picture", "outside of the update's span", "p-value"),
        [(name, f"{containment.outside:.2g}", f"{containment.p_value:.3f}") for name, containment in found],
        words=("picture",),
        fold=("picture",),
    )
    typer.echo("p-value: the share of reference images that look as contained as this one, at least one of them.")


def print_floors(columns: Mapping[str, Sequence[float | None]]) -> None:
    """A row for each replay: the mean over seeds, and the spread where there are several."""
    rows = []
    for name, values in columns.items():
        known = [value for value in values if value is not None]
        mean = f"{statistics.fmean(known):.5f}" if known else MISSING
        rows.append((name, mean, f"{min(known):.2g} to {max(known):.2g}" if len(known) > 1 else ""))
    _print_table(("replay", "mismatch at the truth", "spread"), rows, words=("replay",))


def print_verdicts(verdicts: Sequence[Verdict]) -> None:
    """A table of all scenarios, then what it means, a paragraph each."""
    from undelta.evaluation.measures import METRICS

    metrics = [METRICS[key] for key in ("ssim", "psnr", "lpips")]
    metrics = [metric for metric in metrics if any(verdict.worst[metric.key] is not None for verdict in verdicts)]
    _print_table(
        ("scenario", "defense", "recognizable", *(metric.title for metric in metrics), "attack"),
        [
            (
                verdict.scenario,
                verdict.defense,
                MISSING if verdict.images is None else f"{verdict.recognizable} of {verdict.images}",
                *(metric.show(verdict.worst[metric.key]) for metric in metrics),
                verdict.worst_trial["attack"] if verdict.worst_trial else MISSING,
            )
            for verdict in verdicts
        ],
        words=("scenario", "defense", "attack"),
        fold=("scenario", "defense"),
    )
    console = Console()
    console.print(Text("Numbers are those of the worst image in any trial."))
    for verdict in verdicts:
        console.print(Text.assemble((f"{verdict.title}: ", "bold"), verdict.text))


def print_tradeoff(tradeoff: Tradeoff) -> None:
    """A table, narrow enough for most terminals, and what it says in words."""
    from undelta.trials.tradeoff import sentences

    points = (*tradeoff.points, tradeoff.reference)
    columns = {
        "accuracy": [_number(point.accuracy, ".1%") for point in points],
        "PSNR": [_number(point.psnr, ".1f") for point in points],
        "worst": [_number(point.worst_psnr, ".1f") for point in points],
        "SSIM": [_number(point.worst_ssim, ".2f") for point in points],
        "found": [_number(point.fraction_recovered, ".0%") for point in points],
        "epsilon": ["" if point.delta is None else _number(point.epsilon, ".3g") for point in points],
        "in all": ["" if point.delta is None else _number(point.epsilon_in_all, ".3g") for point in points],
        "": [f"{'P' if point.pareto else ' '}{'N' if point.at_noise_level else ' '}" for point in points],
    }
    shown = {title: cells for title, cells in columns.items() if any(cell not in ("", MISSING) for cell in cells)}
    _print_table(
        ("defense", *shown),
        zip([point.defense for point in points], *shown.values(), strict=True),
        words=("defense",),
        fold=("defense",),
        least=20,
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    console = Console()
    for line in sentences(tradeoff):
        console.print(Text(line))


def print_tuned(tuned: Tuned) -> None:
    """What was found, as a table."""
    from undelta.studies.tuning.outcome import measured

    counts = Counter(trial.state for trial in tuned.trials)
    ends = ", ".join(f"{counts[state]} {state}" for state in ("pruned", "diverged") if counts[state])
    words = f"Best of {len(tuned.trials)} trials{f' ({ends})' if ends else ''}"
    typer.echo(f"{words}: {measured(tuned)}, in trial {tuned.best.number}.")
    _print_table(
        ("parameter", "best", "importance"),
        [
            (name, f"{value:.5g}", _number(tuned.importance.get(name), ".0%"))
            for name, value in tuned.best.parameters.items()
        ],
        words=("parameter",),
    )


def _number(value: float | None, form: str) -> str:
    return MISSING if value is None else f"{value:{form}}"
