"""The command that tunes layer weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from undelta.cli.app import (
    Backend,
    CheckpointSeconds,
    CustomModel,
    Device,
    Memory,
    Seed,
    Settings,
    app,
    exit_if_interrupted,
    resumable,
)
from undelta.cli.progress import print_table, watching


@app.command()
def tune(
    source: Annotated[Path, typer.Argument(help="A scenario (.toml) to simulate, or a recorded update.")],
    out: Annotated[Path, typer.Option(help="Where results go; the same command resumes there.")],
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
    attack: Annotated[str, typer.Option(help="An attack that has layer weights.")] = "awa",
    settings: Settings = None,
    seed: Seed = 0,
    model: CustomModel = None,
    storage: Annotated[
        str | None, typer.Option(metavar="URL", help="A database such as postgresql://...; else a file in --out.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Trials at a time.")] = 1,
    backend: Backend = "processes",
    threads: Annotated[int | None, typer.Option(min=1, help="Threads per trial.")] = None,
    device: Device = "auto",
    memory: Memory = 1.0,
    checkpoint_seconds: CheckpointSeconds = 30.0,
) -> None:
    """Tune an attack's layer weights by Bayesian optimization. Never looks at the private images."""
    with resumable():
        from undelta.studies.tuning.jobs import final_job, tune_job
        from undelta.studies.tuning.overview import print_tuned
        from undelta.studies.tuning.plan import check_objective
        from undelta.trials.config import parse_settings
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
            attack=attack,
            arguments=parse_settings(settings or []),
            seed=seed,
            model=model,
            storage=storage,
            workers=Workers(backend=backend, count=workers, threads=threads or (None if workers == 1 else 1)),
            device=device,
            memory=int(memory * 2**30),
            checkpoint_seconds=checkpoint_seconds,
        )
    print_tuned(tuned)
    observed, found = out / "observation.safetensors", out / "weights.toml"
    typer.echo(f"Weights: {found}\nTo use:  undelta attack {observed} --weights {found} --out RUN")
    if final_steps == 0:
        return
    with watching() as progress:
        record = final_job(
            tuned,
            out=out,
            steps=final_steps,
            device=device,
            memory=int(memory * 2**30),
            checkpoint_seconds=checkpoint_seconds,
            watch=progress.start("final run"),
        )
    print_table([record])
    typer.echo(f"Pictures: {out / 'reconstruction.png'}\nView with: undelta report {out}")
    exit_if_interrupted([record])
