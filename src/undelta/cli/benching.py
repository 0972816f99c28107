"""The command that compares attacks on a frozen set of updates: bench."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from undelta.cli import options
from undelta.cli.app import app, printable, resumable
from undelta.cli.console import print_leaderboard
from undelta.cli.progress import counting


@app.command()
def bench(
    rows: Annotated[list[Path] | None, typer.Argument(help="Rows that --out wrote, to show in the table.")] = None,
    attack: Annotated[
        str | None, typer.Option(help="Run this attack on all cases: a built-in one, or package.module:function.")
    ] = None,
    settings: options.Settings = None,
    name: Annotated[str | None, typer.Option(help="What the table calls it; by default, the attack's name.")] = None,
    out: Annotated[Path | None, typer.Option(help="The row's file; the same command resumes there.")] = None,
    cases: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Only these cases, such as short,noise; such a row has no rank.")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Make all updates again and compare them with the frozen ones.")
    ] = False,
) -> None:
    """Compare attacks on a frozen set of updates, in equal time, out of the truth's reach.

    Without options, the leaderboard of the built-in attacks.
    """
    from undelta.errors import ConfigError
    from undelta.studies.bench.cases import load_benchmark
    from undelta.studies.bench.job import bench_job, contestant, verify_job
    from undelta.studies.bench.row import leaderboard, read_row
    from undelta.trials.config import parse_settings

    benchmark = load_benchmark()
    if verify:
        with counting("updates") as told:
            exact = verify_job(told)
        equal = sum(exact.values())
        typer.echo(f"{equal} of {len(exact)} updates came out bit for bit, the others up to rounding.")
        return
    if attack is None and (settings or name or out or cases):
        raise ConfigError("--set, --name, --out and --cases go with --attack, which says what to run")
    shown = [*leaderboard(), *(read_row(path, benchmark) for path in rows or [])]
    if attack is not None:
        if out is None:
            raise ConfigError("--attack needs --out, a file for the row")
        one = contestant(attack, parse_settings(settings or []), name)
        with resumable(), counting("updates") as told:
            row = bench_job(
                one, out=out, only=[word.strip() for word in (cases or "").split(",") if word.strip()], told=told
            )
        shown.append(row)
    if not shown:
        raise ConfigError("there is no row to show; run an attack with --attack and --out")
    print_leaderboard(shown, benchmark)
    for case in benchmark.cases.values():
        typer.echo(printable(f"{case.name}: {case.says}."))
