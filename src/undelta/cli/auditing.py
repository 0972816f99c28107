"""Commands for many trials: audit, defend, reproduce."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from undelta.cli import options
from undelta.cli.app import OFFENDED, PRIVATE, app, exit_if_failed, parse_seeds, resumable, warn
from undelta.cli.console import print_judgment, print_tradeoff
from undelta.cli.progress import Terminal


@app.command()
def audit(
    sources: Annotated[
        list[Path],
        typer.Argument(help="A TOML file of scenarios, attacks, defenses and seeds; or recorded updates, and folders."),
    ],
    out: options.Out,
    attack: Annotated[
        list[str] | None, typer.Option(help="Of recorded updates: an attack; repeatable. By default, strongest.")
    ] = None,
    settings: options.Settings = None,
    seeds: options.Seeds = None,
    truth: Annotated[
        list[Path] | None, typer.Option(help="Of recorded updates: their private images, as simulate wrote them.")
    ] = None,
    images: Annotated[
        Path | None, typer.Option(help="The same as a folder of pictures; of several updates, a folder for each.")
    ] = None,
    model: options.CustomModel = None,
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
    fail_closed: Annotated[
        bool, typer.Option("--fail-closed", help="Exit with 1 also where no attack worked; alone, on all but resisted.")
    ] = False,
    auditor: Annotated[str | None, typer.Option(metavar="NAME", help="Who runs this, for the report.")] = None,
    junit: Annotated[Path | None, typer.Option(help="Write the verdicts as JUnit XML.")] = None,
    sarif: Annotated[Path | None, typer.Option(help="Write the verdicts as SARIF.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print verdict.json instead of tables.")] = False,
    bound: options.Bound = False,
    retry_failed: options.RetryFailed = False,
    checkpoint_seconds: options.CheckpointSeconds = 30.0,
) -> None:
    """Run scenarios x attacks x defenses x seeds, or attack recorded updates, and say what leaks.

    Exit codes: 0 done; 1 a gate was not passed; 2 wrong input; 3 a trial failed; 130 interrupted.
    """
    with resumable():
        from undelta.errors import ConfigError
        from undelta.files import make_way, refused, write_bytes
        from undelta.report.ci import junit as to_junit
        from undelta.report.ci import sarif as to_sarif
        from undelta.report.ci import step_summary
        from undelta.studies.audit import plan_recorded, run_plan
        from undelta.trials.config import parse_settings
        from undelta.trials.gates import parse_gates
        from undelta.trials.plan import load_plan
        from undelta.trials.pool import Workers

        recorded = (attack, settings, seeds, truth, images, model)
        if [path.suffix for path in sources] == [".toml"]:
            if any(recorded):
                raise ConfigError(
                    "--attack, --set, --seeds, --truth, --images and --model are for recorded updates; "
                    f"{sources[0]} says these itself"
                )
            plan = load_plan(sources[0])
        else:
            plan = plan_recorded(
                sources,
                attacks=attack or (),
                arguments=parse_settings(settings or []),
                seeds=parse_seeds(seeds) or (0,),
                truths=truth or (),
                images=images,
                model=model,
            )
        plan = replace(plan, auditor=auditor or plan.auditor)
        page = os.environ.get("GITHUB_STEP_SUMMARY")
        for path in (junit, sarif, page):
            if path:
                make_way(Path(path))
        done = run_plan(
            plan,
            out=out,
            workers=Workers(backend=backend, count=workers, threads=threads),
            checkpoint_seconds=checkpoint_seconds,
            retry_failed=retry_failed,
            gates=parse_gates(parse_settings(fail_above or []), parse_settings(fail_below or [])),
            closed=fail_closed,
            bound=bound,
            say=warn,
            screen=Terminal(),
        )
    judgment = done.judgment
    if junit:
        write_bytes(junit, to_junit(judgment).encode())
    if sarif:
        write_bytes(sarif, to_sarif(judgment, sources[0].as_posix()).encode())
    if page:
        with refused(f"cannot write {page}", ConfigError), Path(page).open("a", encoding="utf-8") as file:
            file.write(step_summary(judgment))
    if as_json:
        typer.echo((out / "verdict.json").read_text(encoding="utf-8"))
    else:
        print_judgment(judgment)
        hint = shlex.quote(str(out))
        typer.echo(f"Records: {out / 'trials'} {PRIVATE}\nVerdict: {out / 'verdict.json'}")
        typer.echo(f"View with: undelta report {hint}")
    for line in judgment.gate.offenses if judgment.gate else ():
        warn(f"Gate failed: {line}")
    exit_if_failed(done.failed)
    if judgment.gate and not judgment.gate.passed:
        raise typer.Exit(OFFENDED)


@app.command()
def defend(
    scenario: Annotated[
        Path, typer.Argument(help=r"A scenario as TOML, or a \[scenario] with \[\[attacks]], \[\[defenses]].")
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
    bound: options.Bound = False,
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
            bound=bound,
            say=warn,
            screen=Terminal(),
        )
    print_tradeoff(done.tradeoff)
    typer.echo(f"Numbers: {out / 'defend.json'}\nView with: undelta report {shlex.quote(str(out))}")
    exit_if_failed(done.audited.failed)


@app.command()
def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="A table or figure of the paper, or all; --list names them.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where results go; the same command resumes there.")] = None,
    scale: Annotated[
        str | None, typer.Option(help="smoke, cpu, resnet18 or paper; by default, what --out has.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="A source of images; resnet18 and paper need a folder.")] = None,
    seeds: options.Seeds = None,
    model: Annotated[str | None, typer.Option(help="Another network than the scale's.")] = None,
    initial: options.Initial = None,
    size: Annotated[int | None, typer.Option(help="The side of the images in pixels.")] = None,
    norm_mode: Annotated[str | None, typer.Option(help="How the client runs BatchNorm: train or eval.")] = None,
    kernel: Annotated[
        str | None, typer.Option(help="Of the Gaussian process that tunes Q: matern or gaussian.")
    ] = None,
    settings: options.Settings = None,
    case: Annotated[
        list[str] | None,
        typer.Option(metavar='"N=8, E=8, B=4"', help="Run this case only, as the column Ours names it; repeatable."),
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(metavar="AWA", help="Run this column of the table only; repeatable.")
    ] = None,
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
        from undelta.trials.config import parse_settings
        from undelta.trials.pool import Workers

        if list_all:
            typer.echo("\n".join(listing()))
            return
        if name is None or out is None:
            raise ConfigError(
                "expected NAME and --out DIR, as in: undelta reproduce ablation --scale cpu --out ablation"
            )
        fields: dict[str, Any] = {"model": model, "initial": initial, "image_size": size, "norm_mode": norm_mode}
        done = reproduce_job(
            name,
            out=out,
            scale=scale,
            data=data,
            seeds=parse_seeds(seeds),
            scenario={name: value for name, value in fields.items() if value is not None},
            settings=parse_settings(settings or []),
            kernel=kernel,
            cases=case or (),
            methods=method or (),
            workers=Workers(backend=backend, count=workers, threads=threads),
            checkpoint_seconds=checkpoint_seconds,
            retry_failed=retry_failed,
            render_only=render_only,
            say=warn,
            screen=Terminal(),
        )
    for one, findings in done.findings.items():
        typer.echo(f"{one}: {out / one}.md")
        for finding in findings:
            typer.echo(f"  {finding.outcome}: {finding.says}. {finding.numbers}")
    if done.scale == "smoke":
        typer.echo("Nothing follows from the smoke scale: its numbers mean nothing, and only show the form.")
    exit_if_failed(done.failed)
