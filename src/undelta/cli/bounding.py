"""The command that asks what an update determines: bound."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from undelta.cli import options
from undelta.cli.app import PRIVATE, app, parse_seeds, printable, resumable
from undelta.cli.console import print_bounds
from undelta.cli.progress import counting

if TYPE_CHECKING:
    from undelta.evaluation.determined import Ceiling
    from undelta.studies.bound import Bounded


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
        bool, typer.Option(help="Grant attackers the power spectrum of each private image, or that of public ones.")
    ] = True,
    products: Annotated[int, typer.Option(min=20, help="Products with the Jacobian; more close the gap.")] = 200,
    run: Annotated[
        Path | None, typer.Option(help="Results of attacks on the same updates, to compare with the bound.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="A directory for numbers and pictures; the same command resumes there.")
    ] = None,
    initial: options.Initial = None,
    device: options.Device = "auto",
    memory: options.Memory = 1.0,
) -> None:
    """What the update determines of the private images, whatever the attack: a bound on every reconstruction.

    A local Bayesian Cramer-Rao bound at the private images, with a Gaussian prior of images; docs/bound.md says what it
    assumes.
    """
    from undelta.schema import numbers
    from undelta.studies.bound import bound_job

    with resumable(), counting("products") as told:
        found = bound_job(
            scenario,
            seeds=parse_seeds(seeds) or (0,),
            sigmas=() if sigma is None else numbers("--sigma", sigma, float),
            public=public,
            own_spectra=own_spectra,
            products=products,
            initial=initial,
            run=run,
            out=out,
            device=device,
            memory=int(memory * 2**30),
            told=told,
        )
    print_bounds(found)
    for line in _sentences(found):
        typer.echo(printable(line))
    if out is not None:
        sheets = ", ".join(str(out / f"bound-seed-{one.seed}.png") for one in found)
        typer.echo(f"Pictures: {sheets} {PRIVATE}\nNumbers:  {out / 'bound.json'}")


def _sentences(found: Sequence[Bounded]) -> Iterator[str]:
    """What the table means."""
    from undelta.evaluation.determined import ASSUMPTIONS

    first = found[0]
    yield (
        "PSNR in dB. least MSE: of the least mean squared error. bound: what no attack's mean PSNR can be expected "
        "to exceed, with its statistical error and the gap that more --products might close. highest: that of one "
        "image. linear: what the best linear estimate scores, with one draw of the noise. fixed: the share of "
        "directions in pixel space that are known to within 0.1."
    )
    yield f"Noise: {first.noise}; in the table, its deviation, and that over the update's root mean square."
    yield f"Prior: {first.prior}. Its mean alone scores {first.prior_psnr:.1f} dB."
    for one in found:
        for ceiling, linear in zip(one.ceilings, one.linear, strict=True):
            yield _claim(one, ceiling, statistics.fmean(linear))
    yield "Assumptions:"
    yield from (f"- {words}." for words in ASSUMPTIONS)
    yield from (f"Note: {note}." for note in dict.fromkeys(note for one in found for note in one.notes))


def _claim(one: Bounded, ceiling: Ceiling, linear: float) -> str:
    noise = "" if len(one.ceilings) == 1 else f", noise {ceiling.scale:.3g}"
    if ceiling.gap > 1:
        low, high = ceiling.mean_typical - ceiling.gap, ceiling.mean_typical
        said = f"the bound is between about {low:.1f} and {high:.1f} dB; more --products tell"
    else:
        said = f"no attack can be expected to exceed about {ceiling.mean_typical:.1f} dB"
    if linear > ceiling.mean_typical + 2 * ceiling.error:
        said = f"{said} on such images, and {linear:.1f} dB on these very ones, which the linear estimate scores"
    headroom = one.headroom(ceiling)
    if one.reached is not None and headroom is not None:
        reached = f"the strongest attack here, {one.reached.attack}, reached {one.reached.psnr:.1f}"
        left = (
            f"{headroom:.1f} dB are left to attackers" if headroom >= 0 else f"{-headroom:.1f} dB more than the bound"
        )
        said = f"{said}; {reached}: {left}"
    return f"Seed {one.seed}{noise}: {said}."
