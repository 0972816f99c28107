"""An audit in the terminal: a live overview while it runs, silent where nobody watches, and verdicts at the end."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from undelta.evaluation.measures import METRICS
from undelta.trials.record import UNDEFENDED
from undelta.trials.tasks import Progress
from undelta.trials.trial import Trial
from undelta.trials.verdict import Verdict

MOST_LINES = 12


@contextmanager
def overview(trials: Mapping[str, Trial]) -> Iterator[Callable[[Progress], None]]:
    """Something to show progress with, for as long as the block lasts."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    began = time.monotonic()
    with Live(console=console, transient=True, auto_refresh=False) as live:
        yield lambda progress: live.update(_page(progress, trials, time.monotonic() - began), refresh=True)


def _page(progress: Progress, trials: Mapping[str, Trial], seconds: float) -> Table:
    page = Table.grid(padding=(0, 2))
    counts = [f"{progress.done} of {progress.total} trials done"]
    if progress.not_applicable:
        counts.append(f"{progress.not_applicable} not applicable")
    counts += [f"{progress.failed} failed", f"{len(progress.running)} running", f"{progress.left} left"]
    page.add_row(Text(", ".join(counts)), Text(_duration(seconds)))
    running = list(progress.running.items())
    for key, owner in running[:MOST_LINES]:
        page.add_row(Text(f"  {describe(trials[key])}"), Text(f"{_since(owner.since)} on {owner.host}"))
    if len(running) > MOST_LINES:
        page.add_row(Text(f"  and {len(running) - MOST_LINES} more"), Text(""))
    return page


def describe(trial: Trial) -> str:
    """A trial in one line."""
    defense = [] if trial.defense == UNDEFENDED else [trial.defense]
    return " | ".join([trial.name, *defense, trial.attack, f"seed {trial.seed}"])


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


def print_verdicts(verdicts: Sequence[Verdict]) -> None:
    """A table of all scenarios, then what it means, a paragraph each."""
    table = Table()
    for column in ("scenario", "defense"):
        table.add_column(column, overflow="fold")
    shown = [key for key in ("ssim", "psnr", "lpips") if any(verdict.worst[key] is not None for verdict in verdicts)]
    for column in ("recognizable", *(METRICS[key].title for key in shown)):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("attack", no_wrap=True)
    for verdict in verdicts:
        count = "n/a" if verdict.images is None else f"{verdict.recognizable} of {verdict.images}"
        cells = [METRICS[key].show(verdict.worst[key]) for key in shown]
        attack = verdict.worst_trial["attack"] if verdict.worst_trial else "n/a"
        table.add_row(*map(Text, (verdict.scenario, verdict.defense, count, *cells, attack)))
    console = Console()
    console.print(table)
    console.print(Text("Numbers are those of the worst image in any trial."))
    for verdict in verdicts:
        console.print(Text.assemble((f"{verdict.title}: ", "bold"), verdict.text))
