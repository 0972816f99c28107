"""Commands for many trials: audit, defend, reproduce."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from undelta.cli import options
from undelta.cli.app import OFFENDED, app, exit_if_failed, parse_seeds, resumable
from undelta.cli.console import Terminal, print_tradeoff, print_verdicts


@app.command()
def audit(
    configuration: Annotated[Path, typer.Argument(help="A TOML file of scenarios, attacks, defenses and seeds.")],
    out: options.Out,
    workers: options.Workers = None,
    backend: options.Backend = "processes",
    threads: options.Threads = 1,
    fail_above: Annotated[
        list[str] | None,
        typer.Option(metavar="METRIC=VALUE", help="Exit with 1 if ssim, psnr or fraction_recovered is above."),
    ] = None,
    fail_below: Annotated[
        list[str] | None, typer.Option(metavar="METRIC=VALUE", help="Exit with 1 if lpips or mse is below.")
    ] = None,
    retry_failed: options.RetryFailed = False,
    checkpoint_seconds: options.CheckpointSeconds = 30.0,
) -> None:
    """Run scenarios x attacks x defenses x seeds, and say what leaks.

    Exit codes: 0 done; 1 a gate was not passed; 2 wrong input; 3 a trial failed; 130 interrupted.
    """
    with resumable():
        from undelta.studies.audit import run_plan
        from undelta.trials.config import parse_settings
        from undelta.trials.plan import load_plan
        from undelta.trials.pool import Workers
        from undelta.trials.verdict import parse_gates

        done = run_plan(
            load_plan(configuration),
            out=out,
            workers=Workers(backend=backend, count=workers, threads=threads),
            checkpoint_seconds=checkpoint_seconds,
            retry_failed=retry_failed,
            gates=parse_gates(parse_settings(fail_above or []), parse_settings(fail_below or [])),
            say=partial(typer.echo, err=True),
            screen=Terminal(),
        )
    print_verdicts(done.verdicts)
    typer.echo(f"Records: {out / 'trials'}\nVerdict: {out / 'verdict.json'}\nView with: undelta report {out}")
    for line in done.offenses:
        typer.echo(f"Gate not passed: {line}", err=True)
    exit_if_failed(done.failed)
    if done.offenses:
        raise typer.Exit(OFFENDED)


@app.command()
def defend(
    scenario: Annotated[
        Path, typer.Argument(help="A scenario as TOML, or a [scenario] with [[attacks]], [[defenses]].")
    ],
    out: options.Out,
    attack: Annotated[list[str] | None, typer.Option(help="An attack; repeatable. By default, strongest.")] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Rounds of the federation whose accuracy is measured; by default, 20.")
    ] = None,
    seeds: options.Seeds = None,
    workers: options.Workers = None,
    backend: options.Backend = "processes",
    threads: options.Threads = 1,
    retry_failed: options.RetryFailed = False,
) -> None:
    """Weigh defenses: what each leaks, and what it costs in accuracy.

    Exit codes: 0 done; 2 wrong input; 3 a trial failed; 130 interrupted.
    """
    with resumable():
        from undelta.studies.defend import defend_job
        from undelta.trials.pool import Workers

        done = defend_job(
            scenario,
            out=out,
            attacks=attack or (),
            rounds=rounds,
            seeds=parse_seeds(seeds) or (),
            workers=Workers(backend=backend, count=workers, threads=threads),
            retry_failed=retry_failed,
            say=partial(typer.echo, err=True),
            screen=Terminal(),
        )
    print_tradeoff(done.tradeoff)
    typer.echo(f"Numbers: {out / 'defend.json'}\nView with: undelta report {out}")
    exit_if_failed(done.audited.failed)


@app.command()
def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="A table or figure of the paper, or all; --list names them.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where results go; the same command resumes there.")] = None,
    scale: Annotated[str | None, typer.Option(help="smoke, cpu or paper; by default, what --out has.")] = None,
    data: Annotated[str | None, typer.Option(help="A source of images; the paper scale needs ImageNet's.")] = None,
    seeds: options.Seeds = None,
    workers: options.Workers = None,
    backend: options.Backend = "processes",
    threads: options.Threads = 1,
    retry_failed: options.RetryFailed = False,
    checkpoint_seconds: options.CheckpointSeconds = 30.0,
    render_only: Annotated[bool, typer.Option("--render-only", help="Tables and figures of what is there.")] = False,
    list_all: Annotated[bool, typer.Option("--list", help="Name them, with what they show and cost.")] = False,
) -> None:
    """Run the paper's tables and figures, and put ours beside them.

    Exit codes: 0 done; 2 wrong input; 3 a trial failed; 130 interrupted.
    """
    with resumable():
        from undelta.errors import ConfigError
        from undelta.studies.reproduce.job import listing, reproduce_job
        from undelta.trials.pool import Workers

        if list_all:
            typer.echo("\n".join(listing()))
            return
        if name is None or out is None:
            raise ConfigError(
                "expected NAME and --out DIR, as in: undelta reproduce ablation --scale cpu --out ablation"
            )
        done = reproduce_job(
            name,
            out=out,
            scale=scale,
            data=data,
            seeds=parse_seeds(seeds),
            workers=Workers(backend=backend, count=workers, threads=threads),
            checkpoint_seconds=checkpoint_seconds,
            retry_failed=retry_failed,
            render_only=render_only,
            say=partial(typer.echo, err=True),
            screen=Terminal(),
        )
    for one, findings in done.findings.items():
        typer.echo(f"{one}: {out / one}.md")
        for finding in findings:
            typer.echo(f"  {finding.outcome}: {finding.says}. {finding.numbers}")
    exit_if_failed(done.failed)
