"""The command that asks what an update determines: bound."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from undelta.cli import options
from undelta.cli.app import PRIVATE, app, parse_seeds, printable, resumable
from undelta.cli.console import print_bounds
from undelta.cli.progress import counting

MEANING = (
    "PSNR in dB. least MSE: of the least mean squared error. bound: the mean PSNR that no attack is expected to "
    "exceed, with its statistical error and the gap that more --products might close. highest: the bound of one image. "
    "linear: what the best linear estimate scores, with one draw of the noise. fixed: the share of directions in pixel "
    "space that are known to within 0.1. Noise is a deviation, also over the root mean square of the update."
)


@app.command()
def bound(
    scenario: options.Scenario,
    seeds: options.Seeds = "0",
    sigma: Annotated[
        str | None,
        typer.Option(metavar="NUMBERS", help="Noise on every entry of the update; by default, the scenario's own."),
    ] = None,
    public: Annotated[
        str | None,
        typer.Option(metavar="DATA", help="Public images for the prior; by default, held-out images of the source."),
    ] = None,
    own_spectra: Annotated[
        bool,
        typer.Option(help="Whether attackers know each private image's power spectrum, or only that of public ones."),
    ] = True,
    products: Annotated[int, typer.Option(min=20, help="Products with the Jacobian; more close the gap.")] = 200,
    directions: Annotated[
        int, typer.Option(min=0, help="Products more for each image's own singular values and directions, such as 20.")
    ] = 0,
    run: Annotated[
        Path | None, typer.Option(help="Results of attacks on the same updates, to compare with the bound.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="A directory for numbers and pictures; the same command resumes there.")
    ] = None,
    initial: options.Initial = None,
    device: options.Device = "auto",
    memory: options.Memory = options.GIGABYTES,
) -> None:
    """What the update determines of the private images, whatever the attack: a bound on every reconstruction.

    A local Bayesian Cramer-Rao bound at the private images, with a Gaussian prior of images; docs/bound.md says what it
    assumes.
    """
    from undelta.schema import numbers
    from undelta.studies.bound import bound_job
    from undelta.studies.bound_case import Question

    with resumable(), counting("products") as told:
        found = bound_job(
            scenario,
            seeds=parse_seeds(seeds) or (0,),
            question=Question(
                sigmas=() if sigma is None else tuple(numbers("--sigma", sigma, float)),
                public=public,
                own_spectra=own_spectra,
                products=products,
                directions=directions,
            ),
            initial=initial,
            run=run,
            out=out,
            device=device,
            memory=int(memory * 2**30),
            told=told,
        )
    print_bounds(found.rows)
    typer.echo(MEANING)
    lines = [found.about, *(row.text for row in found.rows)]
    lines += [f"Singular values of {words}." for seen in found.spectra for words in _of_each(seen)]
    lines += [f"Seed {seen['seed']}: {one.text}" for seen, one in zip(found.spectra, found.inputs, strict=True)]
    lines += ["Assumptions:", *(f"- {words}." for words in found.assumptions)]
    for line in (*lines, *(f"Note: {note}." for note in (*found.notes, *found.doubts))):
        typer.echo(printable(line))
    if out is not None:
        kinds = ("bound", "directions") if directions else ("bound",)
        chosen = dict.fromkeys(row.seed for row in found.rows)
        sheets = ", ".join(str(out / f"{kind}-seed-{seed}.png") for seed in chosen for kind in kinds)
        typer.echo(f"Pictures: {sheets} {PRIVATE}\nNumbers:  {out / 'bound.json'}")


def _of_each(seen: dict[str, Any]) -> list[str]:
    """The largest and the smallest singular value of every image alone, in words."""
    return [
        f"image {number} alone, seed {seen['seed']}: from {one['leading'][0]:.2g} to {one['trailing_at_most'][0]:.2g} "
        "or less"
        for number, one in enumerate(seen.get("images", ()), 1)
    ]
