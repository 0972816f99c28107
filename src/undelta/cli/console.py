"""What rich draws of results: tables, and the sentences below them."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import typer
from rich import box
from rich.console import Console
from rich.text import Text

from undelta.cli.app import printable
from undelta.cli.tables import MISSING, draw_table, number

if TYPE_CHECKING:  # torch takes seconds to import, and --help does not need it
    from undelta.studies.bench.cases import Benchmark
    from undelta.studies.bench.row import Row
    from undelta.studies.comparison import Compared
    from undelta.studies.containment import Found
    from undelta.studies.tuning.outcome import Tuned
    from undelta.trials.bound_file import Bounded, Limit
    from undelta.trials.judgment import Judgment
    from undelta.trials.record import Record
    from undelta.trials.tradeoff import Tradeoff
    from undelta.trials.verdict import Verdict


def print_table(records: Sequence[Record]) -> None:
    """A row for each record."""
    from undelta.evaluation.measures import METRICS

    keys = ("psnr", "gain", "ssim", "lpips", "mismatch", "floor", "iterations", "seconds")
    metrics = [METRICS[key] for key in keys]

    def value(record: Record, key: str) -> float | None:
        return getattr(record.floor, "mismatch", None) if key == "floor" else getattr(record, key)

    draw_table(
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
    draw_table(
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
    draw_table(("replay", "mismatch at the truth", "spread"), rows, words=("replay",), fold=("replay",))


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
        "headroom": [number(row.headroom, ".1f") for row in rows],
    }
    shown = {title: cells for title, cells in columns.items() if set(cells) != {MISSING}}
    cells = list(zip(*shown.values(), strict=True))
    spare = ("fixed", "least MSE", "highest", "linear")
    draw_table(tuple(shown), cells, words=(), spare=spare, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))


COLORS = {
    "leaks": "red",
    "not compared": "red",
    "attack failed": "yellow",
    "resisted": "green",
    "not measured": "yellow",
}


def print_leaderboard(rows: Sequence[Row], benchmark: Benchmark) -> None:
    """A row for each attack, the best first; below, why some have no rank."""
    from undelta.studies.bench.row import ranked, ranks

    cells, doubts, rows = [], [], ranked(rows, benchmark)
    for row, place in zip(rows, ranks(rows, benchmark), strict=True):
        steps = row.client_steps()
        each = [number(row.psnr(case), ".1f") for case in benchmark.cases]
        cells.append((place, row.name, f"{row.score(benchmark):.2f}", *each, number(steps, ",.0f")))
        doubts += [f"{row.name}: {words}." for words in row.doubts(benchmark)]
    titles = ("rank", "attack", "score", *benchmark.cases, "steps")
    draw_table(
        titles,
        cells,
        words=("attack",),
        spare=("steps", *reversed([*benchmark.cases])),
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for line in doubts:
        typer.echo(printable(line))
    typer.echo(
        f"Version {benchmark.version}. score: mean gain in dB over each image's mean color, cases weighed alike; where "
        "an attack is worse than that, cannot be used or failed (n/a), it gains nothing. Under the cases' names: PSNR "
        f"in dB. steps: the longest case, in training steps of the client; {benchmark.budget:,.0f} are allowed."
    )


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
    draw_table(
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

    def similarity(verdict: Verdict | None) -> str:
        return number(verdict.exposed.ssim if verdict and verdict.exposed else None, ".3f")

    draw_table(
        ("scenario", "change", "before", "after", "SSIM before", "SSIM after"),
        [
            (row.title, row.change, level(row.before), level(row.after), similarity(row.before), similarity(row.after))
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
        "accuracy": [number(point.accuracy, ".1%") for point in points],
        "PSNR": [number(point.psnr, ".1f") for point in points],
        "worst": [number(point.worst_psnr, ".1f") for point in points],
        "SSIM": [number(point.worst_ssim, ".2f") for point in points],
        "ceiling": [_limit(point.bound)[0] for point in points],
        "headroom": [_limit(point.bound)[1] for point in points],
        "found": [number(point.fraction_recovered, ".0%") for point in points],
        "epsilon": ["" if point.delta is None else number(point.epsilon, ".3g") for point in points],
        "in all": ["" if point.delta is None else number(point.epsilon_in_all, ".3g") for point in points],
        "": [f"{'P' if point.pareto else ' '}{'N' if point.at_noise_level else ' '}" for point in points],
    }
    shown = {title: cells for title, cells in columns.items() if any(cell not in ("", MISSING) for cell in cells)}
    draw_table(
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
    draw_table(
        ("parameter", "best", "importance"),
        [
            (name, f"{value:.5g}", number(tuned.importance.get(name), ".0%"))
            for name, value in tuned.best.parameters.items()
        ],
        words=("parameter",),
    )
