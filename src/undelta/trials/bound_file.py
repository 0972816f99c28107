"""``bound.json``: what updates determine, whatever the attack. Written by `studies.bound`; reports read it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from undelta.schema import read_json

SCHEMA: Literal[1] = 1
BOUND = "bound.json"
WIDE = 1.0  # dB: a gap above which the bound is an interval


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
    def text(self) -> str:
        """What the numbers say."""
        if self.gap > WIDE:
            said = f"the bound is between about {self.bound - self.gap:.1f} and {self.bound:.1f} dB; more products tell"
        else:
            said = f"under the assumptions, no attack is expected to exceed about {self.bound:.1f} dB"
        if self.mean_linear > self.bound + 2 * self.error:
            said += f" on such images, and {self.mean_linear:.1f} dB, the linear estimate's, on these very ones"
        if self.headroom is not None:
            left = f"{self.headroom:.1f} dB are left to attackers"
            over = f"{-self.headroom:.1f} dB more than that"
            said += f"; the strongest attack here, {self.attack}, reached {self.reached:.1f}: "
            said += left if self.headroom >= 0 else over
        return f"Seed {self.seed}, noise {self.sigma:.3g}: {said}."


@dataclass(frozen=True, kw_only=True)
class BoundFile:
    """The whole file."""

    schema: Literal[1] = SCHEMA
    scenario: dict[str, Any]
    noise: str
    """Where the noise is from."""
    prior: str
    """What the prior was fitted to."""
    prior_psnr: float
    """Of the prior's mean: what is known without any update."""
    assumptions: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """Where they do not hold."""
    rows: tuple[Bounded, ...]
    spectra: tuple[dict[str, Any], ...] = ()
    """Of each seed: the singular values of J, and how unlike the prior each image is."""
    date: str = ""
    versions: dict[str, str] = field(default_factory=dict)


def read_bound(directory: Path) -> BoundFile | None:
    """The bound in a directory; None if there is none."""
    path = directory / BOUND
    return read_json(BoundFile, path) if path.is_file() else None
