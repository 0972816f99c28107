"""What records are measured by: one table of titles, formats, directions and thresholds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from undelta.evaluation.metrics import RECOVERED_PSNR

MISSING = "n/a"


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One number of a record."""

    key: str
    title: str
    form: str
    hint: str
    rises: bool | None = None
    """Whether more of it is a better reconstruction, and so a worse leak; None: neither."""
    threshold: float | None = None
    """The value at which an image counts as recognizable, or recovered, by default."""

    @property
    def sign(self) -> int:
        """1 if more of it is a better reconstruction, -1 if less is."""
        return 1 if self.rises else -1

    def show(self, value: float | None) -> str:
        return MISSING if value is None else format(value, self.form)


_ALL = (
    Metric(
        key="psnr",
        title="PSNR",
        form=".2f",
        hint="decibels, mean over the images",
        rises=True,
        threshold=RECOVERED_PSNR,
    ),
    Metric(
        key="gain",
        title="Gain",
        form="+.1f",
        hint="decibels above the best guess without the update: mean color, public mean, or noise",
    ),
    Metric(
        key="ssim",
        title="SSIM",
        form=".3f",
        hint="structural similarity, mean over the images",
        rises=True,
        threshold=0.5,
    ),
    Metric(key="lpips", title="LPIPS", form=".3f", hint="learned perceptual distance", rises=False),
    Metric(key="mse", title="MSE", form=".4f", hint="mean squared error", rises=False),
    Metric(
        key="fraction_recovered",
        title="Recovered",
        form=".0%",
        hint=f"share of the images with a PSNR of {RECOVERED_PSNR:g} dB or more",
        rises=True,
    ),
    Metric(
        key="mismatch",
        title="Mismatch",
        form=".3g",
        hint="cosine distance of the update that its images would give, by the attack's own replay, from what it saw",
    ),
    Metric(
        key="floor",
        title="Floor",
        form=".3g",
        hint="the mismatch of the same replay at the private images themselves; the attack never sees it",
    ),
    Metric(key="iterations", title="Iterations", form=".0f", hint="of the attack"),
    Metric(key="seconds", title="Seconds", form=".1f", hint="the attack's own time on the machine that ran it"),
)

METRICS: Mapping[str, Metric] = {metric.key: metric for metric in _ALL}
QUALITIES = tuple(metric.key for metric in _ALL if metric.rises is not None)
"""Those that say how good a reconstruction is."""
