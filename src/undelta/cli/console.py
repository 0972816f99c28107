"""What rich draws of results: tables, and the sentences below them."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import typer
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from undelta.cli.app import printable

if TYPE_CHECKING:  # torch takes seconds to import, and --help does not need it
    from undelta.studies.comparison import Compared
    from undelta.studies.containment import Found
    from undelta.studies.tuning.outcome import Tuned
    from undelta.trials.bound_file import Bounded, Limit
    from undelta.trials.judgment import Judgment
    from undelta.trials.record import Record
    from undelta.trials.tradeoff import Tradeoff
    from undelta.trials.verdict import Verdict

MISSING = "n/a"
FOLDED = 9  # columns that a name has at least


# What came of it


def _print_table(
    titles: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    words: Collection[str],
    fold: Collection[str] = (),
    spare: Sequence[str] = (),
    least: int | None = None,
    **form: Any,
) -> None:
    """Columns of words to the left, of numbers to the right; those that may be folded are at least so wide.

    Where a terminal is narrow, the columns that can be spared are left out, one after the other.
    """
    console, lines = Console(), [*rows]
    gone: set[str] = set()
    for title in (None, *spare):
        gone |= {title} if title else set()
        table = Table(**form)
        kept = [index for index, one in enumerate(titles) if one not in gone]
        for index in kept:
            side: Literal["left", "right"] = "left" if titles[index] in words else "right"
            if titles[index] in fold:
                table.add_column(titles[index], justify=side, overflow="fold", min_width=least or FOLDED)
            else:
                cells = [titles[index], *(printable(row[index]) for row in lines)]
                table.add_column(titles[index], justify=side, no_wrap=True, min_width=max(map(cell_len, cells)))
        for row in lines:
            table.add_row(*(Text(printable(row[index])) for index in kept))
        whole = console.options.update(max_width=1000)  # or it would say what it is cut to
        if Measurement.get(console, whole, table).minimum <= console.width:
            break
    console.print(table)


def print_table(records: Sequence[Record]) -> None:
    """A row for each record."""
    from undelta.evaluation.measures import METRICS

    keys = ("psnr", "gain", "ssim", "lpips", "mismatch", "floor", "iterations", "seconds")
    metrics = [METRICS[key] for key in keys]

    def value(record: Record, key: str) -> float | None:
        return getattr(record.floor, "mismatch", None) if key == "floor" else getattr(record, key)

    _print_table(
        ("attack", *(metric.title for metric in metrics), "status"),
        [(one.attack, *(metric.show(value(one, metric.key)) for metric in metrics), one.status) for one in records],
        words=("attack", "status"),
        spare=("Iterations", "LPIPS", "Seconds", "Floor", "Gain"),
        box=box.SIMPLE_HEAD,
        padding=0,  # so that 80 columns hold it
    )
    for record in records:
        for note in record.notes:
            typer.echo(printable(f"{record.attack}: {note}."))
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
    _print_table(("replay", "mismatch at the truth", "spread"), rows, words=("replay",), fold=("replay",))


def print_bounds(rows: Sequence[Bounded]) -> None:
    """A row for each seed and noise."""
    columns = {
        "seed": [str(row.seed) for row in rows],
        "noise": [f"{row.sigma:.3g}" for row in rows],
        "of update": [f"{row.sigma / row.update_rms:.2g}" if row.update_rms else MISSING for row in rows],
        "least MSE": [f"{row.least_mse:.1f}" for row in rows],
        "bound": [f"{row.bound:.1f}" for row in rows],
        "error": [f"{row.error:.1f}" for row in rows],
        "gap": [f"{row.gap:.1f}" for row in rows],
        "highest": [f"{max(row.images):.1f}" for row in rows],
        "linear": [f"{row.mean_linear:.1f}" for row in rows],
        "fixed": [f"{row.fixed:.0%}" for row in rows],
        "headroom": [_number(row.headroom, ".1f") for row in rows],
    }
    shown = {title: cells for title, cells in columns.items() if set(cells) != {MISSING}}
    cells = list(zip(*shown.values(), strict=True))
    spare = ("fixed", "least MSE", "highest", "linear")
    _print_table(tuple(shown), cells, words=(), spare=spare, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))


COLORS = {
    "leaks": "red",
    "not compared": "red",
    "attack failed": "yellow",
    "resisted": "green",
    "not measured": "yellow",
}


def print_judgment(judgment: Judgment) -> None:
    """All scenarios in one sentence, a table of them, and what it means, a paragraph each."""
    from undelta.evaluation.measures import METRICS

    verdicts = judgment.verdicts
    metrics = [METRICS[key] for key in ("ssim", "psnr", "lpips")]
    shown = [verdict.exposed for verdict in verdicts if verdict.exposed]
    metrics = [metric for metric in metrics if any(getattr(one, metric.key) is not None for one in shown)]
    bounded = any(verdict.bound for verdict in verdicts)
    console = Console()
    console.print(Text(printable(judgment.headline), "bold"))
    titles = ("scenario", "defense", "verdict", "recognizable", *(metric.title for metric in metrics))
    _print_table(
        (*titles, *(("ceiling", "headroom") if bounded else ()), "attack"),
        [
            (
                verdict.scenario,
                verdict.defense,
                verdict.level,
                MISSING if verdict.images is None else f"{verdict.recognizable} of {verdict.images}",
                *(metric.show(getattr(verdict.exposed, metric.key, None)) for metric in metrics),
                *(_limit(verdict.bound) if bounded else ()),
                verdict.exposed.attack if verdict.exposed else MISSING,
            )
            for verdict in verdicts
        ],
        words=("scenario", "defense", "verdict", "attack"),
        fold=("scenario", "defense"),
        spare=("LPIPS", "attack", "PSNR", *([] if any(one.defense != "none" for one in verdicts) else ["defense"])),
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    if shown:
        console.print(Text("Numbers are those of the most exposed image."))
    if bounded:
        from undelta.trials.bound_file import CEILING

        console.print(Text(f"Ceiling: {CEILING}"))
    print_verdicts(judgment)
    if judgment.gate:
        console.print(Text(printable(judgment.gate.text), "bold"))


def _limit(bound: Limit | None) -> tuple[str, str]:
    """The ceiling and the headroom."""
    return (bound and bound.ceiling) or MISSING, (bound and bound.headroom) or MISSING


def print_verdicts(judgment: Judgment) -> None:
    """What each scenario's numbers mean, a paragraph each."""
    for verdict in judgment.verdicts:
        level = (f"{verdict.level}. ", f"bold {COLORS[verdict.level]}")
        Console().print(Text.assemble((printable(f"{verdict.title}: "), "bold"), level, printable(verdict.text)))


def print_compared(rows: Sequence[Compared]) -> None:
    """A row for each scenario and defense of two audits."""

    def level(verdict: Verdict | None) -> str:
        return verdict.level if verdict else "-"

    def number(verdict: Verdict | None) -> str:
        return _number(verdict.exposed.ssim if verdict and verdict.exposed else None, ".3f")

    _print_table(
        ("scenario", "change", "before", "after", "SSIM before", "SSIM after"),
        [
            (row.title, row.change, level(row.before), level(row.after), number(row.before), number(row.after))
            for row in rows
        ],
        words=("scenario", "change", "before", "after"),
        fold=("scenario",),
        spare=("SSIM before", "SSIM after"),
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    counts = Counter(row.change for row in rows)
    typer.echo(", ".join(f"{count} {change}" for change, count in counts.items()) + ".")
    if counts["unclear"]:
        typer.echo(
            "Unclear: one of the two leaks or probably does, and of the other nothing is known: no attack works now, "
            "or nothing was compared."
        )


def print_tradeoff(tradeoff: Tradeoff) -> None:
    """A table, narrow enough for most terminals, and what it says in words."""
    from undelta.trials.tradeoff import sentences

    points = (*tradeoff.points, tradeoff.reference)
    columns = {
        "accuracy": [_number(point.accuracy, ".1%") for point in points],
        "PSNR": [_number(point.psnr, ".1f") for point in points],
        "worst": [_number(point.worst_psnr, ".1f") for point in points],
        "SSIM": [_number(point.worst_ssim, ".2f") for point in points],
        "ceiling": [_limit(point.bound)[0] for point in points],
        "headroom": [_limit(point.bound)[1] for point in points],
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
        spare=("SSIM", "found", "in all") if tradeoff.bounded else (),
        least=20,
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    console = Console()
    for line in sentences(tradeoff):
        console.print(Text(printable(line)))


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
