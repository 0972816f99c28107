"""The command that tunes layer weights."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from undelta.cli import options
from undelta.cli.app import PRIVATE, app, exit_if_interrupted, resumable
from undelta.cli.console import print_table, print_tuned, print_verdicts
from undelta.cli.progress import Terminal, watching


@app.command()
def tune(
    source: Annotated[Path, typer.Argument(help="A scenario (.toml) to simulate, or a recorded update.")],
    out: options.Out,
    trials: Annotated[int, typer.Option(min=1, help="Points to evaluate, the random ones included.")] = 50,
    random: Annotated[int, typer.Option(min=1, help="How many of them are random, at the beginning.")] = 12,
    steps: Annotated[int, typer.Option(min=1, help="Attack iterations of each trial.")] = 1000,
    final_steps: Annotated[
        int | None,
        typer.Option(min=0, help="Iterations of a last run with the best; the attack's own; 0: no such run."),
    ] = None,
    space: Annotated[
        str, typer.Option(help="What is searched: paper, weights (ramps may fall) or wide (priors, too).")
    ] = "paper",
    objective: Annotated[
        str, typer.Option(help="mismatch, the paper's f(Q); or shadow, image quality on public images.")
    ] = "mismatch",
    public: Annotated[
        str | None, typer.Option(metavar="DATA", help="Images for --objective shadow. Never the client's own.")
    ] = None,
    shadow_draws: Annotated[int, typer.Option(min=1, help="Shadow clients to average over.")] = 2,
    prune: Annotated[bool, typer.Option(help="End trials early that are worse than the median.")] = True,
    kernel: Annotated[str, typer.Option(help="Of the Gaussian process: matern, or the paper's gaussian.")] = "matern",
    attack: Annotated[str, typer.Option(help="An attack that has layer weights.")] = "awa",
    settings: options.Settings = None,
    seed: options.Seed = 0,
    model: options.CustomModel = None,
    storage: Annotated[
        str | None, typer.Option(metavar="URL", help="A database such as postgresql://...; else a file in --out.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Trials at a time.")] = 1,
    backend: options.Backend = "processes",
    threads: Annotated[int | None, typer.Option(min=1, help="Threads per trial.")] = None,
    device: options.Device = "auto",
    memory: options.Memory = options.GIGABYTES,
    checkpoint_seconds: options.CheckpointSeconds = 30.0,
) -> None:
    """Tune an attack's layer weights by Bayesian optimization. Never looks at the private images.

    Those of a simulated scenario are kept for the score of the last run.
    """
    with resumable():
        from undelta.studies.tuning.jobs import TRUTH, final_job, tune_job
        from undelta.studies.tuning.plan import check_objective
        from undelta.trials.config import parse_settings
        from undelta.trials.judgment import judge_records
        from undelta.trials.pool import Workers

        tuned = tune_job(
            source,
            out=out,
            trials=trials,
            random=random,
            steps=steps,
            space=space,
            objective=check_objective(objective),
            public=public,
            shadow_draws=shadow_draws,
            prune=prune,
            kernel=kernel,
            attack=attack,
            arguments=parse_settings(settings or []),
            seed=seed,
            model=model,
            storage=storage,
            workers=Workers(backend=backend, count=workers, threads=threads or (None if workers == 1 else 1)),
            device=device,
            memory=int(memory * 2**30),
            checkpoint_seconds=checkpoint_seconds,
            screen=Terminal(),
        )
    print_tuned(tuned)
    observed, found = (shlex.quote(str(out / name)) for name in ("observation.safetensors", "weights.toml"))
    typer.echo(f"Weights: {found}\nTo use:  undelta attack {observed} --weights {found} --out RUN")
    if final_steps == 0:
        return
    with watching() as start:
        record = final_job(
            tuned,
            out=out,
            steps=final_steps,
            device=device,
            memory=int(memory * 2**30),
            checkpoint_seconds=checkpoint_seconds,
            watch=start("final run"),
        )
    if (truth := out / TRUTH).exists() and record.status != "interrupted":
        from undelta.studies.scoring import score_job

        (record,) = [one for one in score_job(out, truth_path=truth) if one.key == record.key]
    print_table([record])
    print_verdicts(judge_records([record]))
    where = shlex.quote(str(out))
    typer.echo(f"Pictures: {out / 'reconstruction.png'} {PRIVATE}\nView with: undelta report {where}")
    exit_if_interrupted([record])
