"""``bound.json``: what updates determine, whatever the attack, for verdicts and reports to read.

    DIR/bound.json                          what `undelta bound --out DIR` found
    DIR/bounds/<key>/bound.json             of one scenario and seed of an audit, or why there is none
    DIR/bounds/<key>/pictures.safetensors   originals, and the best linear reconstruction

The pictures are written first, so a bound that is there has them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from undelta.evaluation.read_off import ReadOff
from undelta.schema import read_json
from undelta.trials.record import ENDED, Record

SCHEMA: Literal[1] = 1
BOUND = "bound.json"
BOUNDS = "bounds"
WIDE = 1.0  # dB: a gap above which the bound is an interval
CEILING = (
    "the mean PSNR in dB that no attack is expected to exceed under the assumptions of docs/bound.md, of the seed with "
    "the highest; < where more products would lower it, ? where an assumption does not hold. Headroom: what the "
    "strongest attack on that update left of it."
)


@dataclass(frozen=True, kw_only=True)
class Bounded:
    """One client's update at one size of the noise; PSNR in dB."""

    seed: int
    sigma: float
    """The noise: its deviation on an entry of the update, root mean square."""
    update_rms: float
    """That of the update's own entries."""
    least_mse: float
    """PSNR of the least mean squared error, the mean over images."""
    bound: float
    """The mean PSNR that no attack is expected to exceed, under the assumptions."""
    error: float
    """The standard error of an image's value."""
    gap: float
    """What more products would lower the bound by, about."""
    images: tuple[float, ...]
    """The bound of each image."""
    linear: tuple[float, ...]
    """What the best linear estimate scores on each image, with one draw of the noise."""
    fixed: float
    """The share of directions in pixel space that are known to within 0.1."""
    products: int
    attack: str | None = None
    """The strongest attack on the same update, where some were named."""
    reached: float | None = None
    """Its mean PSNR."""

    @property
    def mean_linear(self) -> float:
        return sum(self.linear) / len(self.linear)

    @property
    def ceiling(self) -> float:
        """The bound, or what the linear estimate scores on these very images where that is more."""
        return max(self.bound, self.mean_linear)

    @property
    def headroom(self) -> float | None:
        """What attackers have not reached yet, in dB below the ceiling."""
        return None if self.reached is None else self.ceiling - self.reached

    @property
    def loose(self) -> bool:
        """Whether more products would lower it by much; as a ceiling it holds all the same."""
        return self.gap > WIDE

    @property
    def place(self) -> str:
        """Which update this is, in words."""
        return f"seed {self.seed}, " + (f"noise {self.sigma:.3g}" if self.sigma else "nothing of the update is sent")

    @property
    def text(self) -> str:
        """What the numbers say."""
        return f"{self.place.capitalize()}: {self.said}."

    @property
    def said(self) -> str:
        """The same without the update's name."""
        if self.loose:
            said = (
                f"the bound is between about {self.bound - self.gap:.1f} and {self.bound:.1f} dB (more products tell)"
            )
        else:
            said = f"under the assumptions, no attack is expected to exceed about {self.bound:.1f} dB"
        if self.mean_linear > self.bound + 2 * self.error:
            said += f" on such images, and {self.mean_linear:.1f} dB, the linear estimate's, on these very ones"
        if self.headroom is not None:
            left = f"{'up to ' if self.loose else ''}{self.headroom:.1f} dB are left to attackers"
            over = f"{-self.headroom:.1f} dB more than that"
            said += f"; the strongest attack here, {self.attack}, reached {self.reached:.1f}: "
            said += left if self.headroom >= 0 else over
        return said

    def against(self, records: Iterable[Record]) -> Bounded:
        """The same beside the strongest of these attacks on its update."""
        ended = [one for one in records if one.seed == self.seed and one.status in ENDED and one.psnr is not None]
        best = max(ended, key=lambda one: one.psnr or 0.0, default=None)
        return replace(self, attack=best.attack, reached=best.psnr) if best else self


@dataclass(frozen=True, kw_only=True)
class BoundFile:
    """The whole file."""

    schema: Literal[1] = SCHEMA
    scenario: dict[str, Any]
    error: str | None = None
    """Why there is no bound; then nothing below is known."""
    noise: str = ""
    """Where the noise is from."""
    prior: str = ""
    """What the prior was fitted to."""
    prior_psnr: float | None = None
    """Of the prior's mean: what is known without any update."""
    assumptions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What is only nearly so."""
    doubts: tuple[str, ...] = ()
    """Where the assumptions do not hold, so that attackers may exceed the bound."""
    rows: tuple[Bounded, ...] = ()
    spectra: tuple[dict[str, Any], ...] = ()
    """Of each seed: the singular values of J, and how unlike the prior each image is."""
    inputs: tuple[ReadOff, ...] = ()
    """Of each seed: the last layer's inputs, read off without any optimization."""
    date: str = ""
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def about(self) -> str:
        """What the rows rest on."""
        mean = "" if self.prior_psnr is None else f"; its mean alone scores {self.prior_psnr:.1f} dB"
        return f"Noise: {self.noise}. Prior: {self.prior}{mean}."


def read_bound(directory: Path) -> BoundFile | None:
    """The bound in a directory; None if there is none."""
    path = directory / BOUND
    return read_json(BoundFile, path) if path.is_file() else None


NONE: Mapping[str, BoundFile] = {}
"""Where no bound was asked for."""


@dataclass(frozen=True, kw_only=True)
class Limit:
    """The bound of one scenario with one defense: of the seed where the ceiling is highest, or why there is none."""

    row: Bounded | None = None
    reason: str | None = None
    doubts: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """A sentence for a verdict."""
        if self.row is None:
            return f"No bound: {self.reason}."
        doubts = "".join(f" But {doubt}." for doubt in self.doubts)
        return f"Whatever the attack: {self.row.said} (mean PSNR, {self.row.place}).{doubts}"

    @property
    def ceiling(self) -> str | None:
        """As tables show it; what more products would lower is marked, and what there are doubts about."""
        marks = "<" if self.row and self.row.loose else "", "?" if self.doubts else ""
        return f"{marks[0]}{self.row.ceiling:.1f}{marks[1]}" if self.row else None

    @property
    def headroom(self) -> str | None:
        left = self.row.headroom if self.row else None
        return f"{'<' if self.row and self.row.loose else ''}{left:.1f}" if left is not None else None


def bound_key(record: Record) -> str:
    """Names an update by what was simulated, whatever attacks it."""
    content = {"scenario": record.scenario, "file": record.observation_file, "seed": record.seed}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def read_bounds(directory: Path, records: Iterable[Record]) -> dict[str, BoundFile]:
    """The bounds in an audit's directory, by the keys of the trials that attack their updates."""
    read: dict[str, BoundFile | None] = {}
    found = {}
    for record in records if (directory / BOUNDS).is_dir() else ():
        key = bound_key(record)
        if key not in read:
            read[key] = read_bound(directory / BOUNDS / key)
        if there := read[key]:
            found[record.key] = there
    return found


def highest(bounds: Mapping[str, BoundFile], records: Iterable[Record]) -> Limit | None:
    """What is said of some trials of one scenario, by their keys, and of their results; None if nothing was asked."""
    if not bounds:
        return None
    known = list(records)
    rows = [row.against(known) for one in bounds.values() for row in one.rows]
    if not rows:
        return Limit(reason=next((one.error for one in bounds.values() if one.error), "not known"))
    doubts = [doubt for one in bounds.values() for doubt in one.doubts]
    errors = dict.fromkeys(one.error for one in bounds.values() if one.error)
    doubts += [f"other seeds have no bound ({'; '.join(errors)})"] if errors else []
    return Limit(row=max(rows, key=lambda row: row.ceiling), doubts=tuple(dict.fromkeys(doubts)))
