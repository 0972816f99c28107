"""Commands for one update: demo, simulate, attack, observe, join, score, contains, floor."""

from __future__ import annotations

import os
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from undelta.cli import options
from undelta.cli.app import PRIVATE, app, exit_if_interrupted, parse_seeds, warn
from undelta.cli.console import print_containment, print_floors, print_table, print_verdicts
from undelta.cli.progress import watching


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where results go.")] = Path("undelta-demo"), seed: options.Seed = 0
) -> None:
    """Reconstruct eight photographs from one simulated update, with the paper's attack and with our strongest."""
    from undelta.report import write_report
    from undelta.studies.demo import demo_job
    from undelta.trials.judgment import judge_records

    with watching() as start:
        records = demo_job(out, seed=seed, watch=start)
    print_table(records)
    print_verdicts(judge_records(records))
    page = write_report(out)
    typer.echo(f"Pictures: {out / 'reconstruction.png'} {PRIVATE}\nRecords:  {out / 'trials'} {PRIVATE}")
    typer.echo(f"Report:   {page} {PRIVATE}")
    exit_if_interrupted(records)


@app.command()
def simulate(
    scenario: options.Scenario,
    observation: Annotated[Path, typer.Option(help="Where to write what the server sees.")],
    truth: Annotated[Path, typer.Option(help="Where to write the private images, for scoring.")],
    seed: options.Seed = 0,
    initial: options.Initial = None,
) -> None:
    """Train one federated client and record its update."""
    from undelta.studies.single import simulate_job

    done = simulate_job(scenario, observation_path=observation, truth_path=truth, seed=seed, initial=initial)
    typer.echo(
        f"One client of {done.model} trained on {done.num_samples} images of {done.data} "
        f"(E={done.epochs}, B={done.batches}, learning rate {done.learning_rate:g}).\n"
        f"The server sees {observation}; the truth is in {truth} {PRIVATE}."
    )


@app.command()
def attack(
    observation: options.Observation,
    out: Annotated[Path, typer.Option(help="Where results go.")],
    attack: Annotated[
        str | None,
        typer.Option(help="The attack; `undelta list` names all. By default, strongest, or what --weights is for."),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Attack iterations.")] = None,
    seed: options.Seed = 0,
    settings: options.Settings = None,
    weights: Annotated[
        Path | None, typer.Option(help="Layer weights, as `undelta tune` wrote them; --set wins over them.")
    ] = None,
    model: options.CustomModel = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Run it again if it is finished in --out.")] = False,
    checkpoint_seconds: options.CheckpointSeconds = 30.0,
    device: options.Device = "auto",
    memory: options.Memory = options.GIGABYTES,
) -> None:
    """Reconstruct images from a recorded update. Never reads the truth.

    The paper's whole algorithm, its layer weights tuned on this update: --attack awa --set q=tune (see undelta tune).
    To share the work among processes or GPUs: torchrun --nproc-per-node 2 -m undelta attack ...
    """
    from undelta.errors import ConfigError
    from undelta.studies.single import attack_job
    from undelta.trials.config import load_weights, parse_settings
    from undelta.trials.judgment import judge_records

    if "q=tune" in (settings or []):
        if weights is not None or overwrite:
            raise ConfigError("--set q=tune makes weights of its own, and resumes: leave --weights and --overwrite out")
        from undelta.cli.tuning import tune

        tune(
            observation,
            attack=attack or "awa",
            settings=[word for word in settings or [] if word != "q=tune"],
            final_steps=steps,
            out=out,
            seed=seed,
            model=model,
            device=device,
            memory=memory,
            checkpoint_seconds=checkpoint_seconds,
        )
        return
    first = os.environ.get("RANK", "0") == "0"  # under torchrun one process speaks for all
    tuned: dict[str, Any] = {}
    if weights is not None:
        attack, tuned = load_weights(weights, attack=attack)
    attack = attack or "strongest"
    arguments: dict[str, Any] = {**tuned, **parse_settings(settings or [])}
    if steps is not None:
        arguments["steps"] = steps
    with watching() as start:
        record = attack_job(
            observation,
            attack=attack,
            arguments=arguments,
            out=out,
            seed=seed,
            model=model,
            overwrite=overwrite,
            checkpoint_seconds=checkpoint_seconds,
            device=device,
            memory=int(memory * 2**30),
            watch=start(attack) if first else None,
        )
    if not first:
        return
    print_table([record])
    print_verdicts(judge_records([record]))
    where = shlex.quote(str(out))
    typer.echo(f"Pictures: {out / 'reconstruction.png'} {PRIVATE}\nScore with: undelta score {where} --truth TRUTH")
    exit_if_interrupted([record])


@app.command()
def observe(
    before: Annotated[Path, typer.Option(help="What the client was sent: .safetensors, .pt, .pth or .npz.")],
    after: Annotated[Path, typer.Option(help="What it returned.")],
    model: Annotated[
        str, typer.Option(metavar="NAME", help="A built-in model, or package.module:function, which is imported.")
    ],
    samples: Annotated[int, typer.Option(min=1, help="How many images the client trained on.")],
    shape: Annotated[str, typer.Option(metavar="C,H,W", help="Image shape, such as 3,32,32.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The observation file to write.")],
    model_argument: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="For the model's function; repeatable.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Local epochs; unknown by default.")] = None,
    batches: Annotated[int | None, typer.Option(min=1, help="Mini-batches per epoch; unknown by default.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Instead of --batches.")] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="The client's first learning rate; unknown by default.")
    ] = None,
    training: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="How else it trained, as in a scenario: optimizer=adamw, momentum=0.9 and so on; repeatable.",
        ),
    ] = None,
    classes: Annotated[int | None, typer.Option(min=1, help="Needed for built-in models only.")] = None,
    mean: Annotated[str, typer.Option(metavar="NUMBERS", help="Per-channel mean that inputs are normalized by.")] = "0",
    std: Annotated[str, typer.Option(metavar="NUMBERS", help="Per-channel standard deviation.")] = "1",
    loss: Annotated[str, typer.Option(help="cross_entropy or l2.")] = "cross_entropy",
    norm_mode: Annotated[str, typer.Option(help="How the client's BatchNorm ran: train or eval.")] = "train",
    missing: Annotated[
        str | None,
        typer.Option(help="What parameters are that the client does not return: frozen, or withheld (trained too)."),
    ] = None,
    labels: Annotated[
        str | None, typer.Option(metavar="FILE or NUMBERS", help="The labels, if you grant them: 0,1,1 or a file.")
    ] = None,
) -> None:
    """Make an observation from two checkpoints of any framework: before and after a client's training."""
    from undelta.errors import ConfigError
    from undelta.schema import check_keys
    from undelta.studies.observe import observe_job
    from undelta.training import Recipe
    from undelta.trials.config import parse_settings

    recipe = parse_settings(training or [])
    check_keys(recipe, [field.name for field in fields(Recipe)], where="--training", error=ConfigError)
    notes = observe_job(
        before,
        after,
        model=model,
        model_arguments=parse_settings(model_argument or []),
        num_samples=samples,
        shape=shape,
        classes=classes,
        mean=mean,
        std=std,
        training={
            "epochs": epochs,
            "batches": batches,
            "batch_size": batch_size,
            "learning_rate": learning_rate,
            "loss": loss,
            "norm_mode": norm_mode,
            **recipe,
        },
        labels=labels,
        out=out,
        missing=missing,
    )
    for note in notes:
        warn(f"Note: {note}{'' if note.endswith('?') else '.'}")
    named = f" --model {shlex.quote(model)}" if ":" in model else ""
    typer.echo(f"Observation: {out}\nAttack with: undelta attack {shlex.quote(str(out))}{named} --out run")


@app.command()
def join(
    rounds: Annotated[list[Path], typer.Argument(help="Observations of one client, round by round.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The observation file to write.")],
    model: options.CustomModel = None,
) -> None:
    """Put several rounds of one client into one observation, to be attacked together.

    One set of images has to explain all of the updates, so the client's data must be the same in every round.
    """
    from undelta.studies.observe import join_job

    count = join_job(rounds, out=out, model=model)
    named = f" --model {shlex.quote(model)}" if model else ""
    typer.echo(
        f"Observation of {count} rounds: {out}\nAttack with: undelta attack {shlex.quote(str(out))}{named} --out run"
    )


@app.command()
def score(
    directory: Annotated[Path, typer.Argument(help="What `undelta attack --out` wrote.")],
    truth: Annotated[
        Path, typer.Option(help="The private images, as `undelta simulate` wrote them, or a folder of pictures.")
    ],
    observation: Annotated[
        Path | None, typer.Option(help="The recorded update, if it is no longer where it was attacked.")
    ] = None,
    model: options.CustomModel = None,
) -> None:
    """Compare a reconstruction with the truth, and its loss with that of the truth."""
    from undelta.studies.scoring import score_job
    from undelta.trials.judgment import judge_records

    records = score_job(directory, truth_path=truth, observation_path=observation, model=model)
    print_table(records)
    print_verdicts(judge_records(records))
    where = shlex.quote(str(directory))
    typer.echo(f"Pictures: {directory / 'reconstruction.png'} {PRIVATE}\nView with: undelta report {where}")


@app.command()
def contains(
    observation: options.Observation,
    images: Annotated[Path, typer.Option(help="A picture, or a folder of pictures, to look for.")],
    reference: Annotated[
        str, typer.Option(metavar="DATA", help="Images that took no part, to compare with: a source or a folder.")
    ] = "patches",
    model: options.CustomModel = None,
    out: Annotated[Path | None, typer.Option(help="A JSON file for the results.")] = None,
) -> None:
    """Test whether given pictures took part in an update. Needs no labels, learning rate or epochs."""
    from undelta.studies.containment import contains_job

    print_containment(contains_job(observation, images, reference=reference, model=model, out=out))


@app.command()
def floor(
    scenario: options.Scenario,
    seeds: options.Seeds = "0",
    initial: options.Initial = None,
) -> None:
    """How well each replay explains the update when it is given the private images themselves.

    An attack cannot tell right from wrong below its replay's floor: choose one whose floor is low.
    """
    from undelta.studies.single import floor_job

    print_floors(floor_job(scenario, seeds=parse_seeds(seeds) or (0,), initial=initial))
