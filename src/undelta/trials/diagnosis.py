"""Did an attack succeed, fail, or say nothing? One value, which words, colors, gates and exit codes follow.

With the truth, recognizable images decide. Without it there is the attacker's own evidence: how much of the update the
found images explain, whether more iterations would help, and whether the update looks like the declared training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from undelta.errors import ConfigError
from undelta.evaluation.baselines import Guess, best_guess
from undelta.evaluation.measures import METRICS
from undelta.evaluation.score import ImageScore
from undelta.trials.record import INTERRUPTED, Record

Level = Literal["leaks", "not compared", "attack failed", "resisted", "not measured"]

MEANINGS: dict[Level, str] = {
    "leaks": "Private images can be recognized in what an attack made of the update.",
    "not compared": "The images that were found explain the update, but nobody has compared them with the originals.",
    "attack failed": "No attack worked here, and none is known to: this says nothing about safety.",
    "resisted": "An attack that works on the undefended twin failed here.",
    "not measured": "There is no result, so nothing is known.",
}
REASSURING: Level = "resisted"

# Conventions, from attacks whose outcome is known (docs/metrics.md).
UNEXPLAINED = 0.2  # a mismatch above which images have little to do with the update
EXPLAINED = 0.1  # one below which they explain it, whatever the replay could do
FAR = 3.0  # times the replay's own resolution
FALLING = 0.8  # of what it was after four fifths of the iterations: a mismatch that had not settled
SETTLED = 1e-3  # a mismatch that need not fall any further
STRETCH = 5.0  # times longer or shorter than the declared training makes it, from images that explain it
WILD = 30.0  # the same from images that do not, whose gradients may well be of another size


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What a result says, and in a sentence why."""

    level: Level
    text: str

    @property
    def reassuring(self) -> bool:
        return self.level == REASSURING


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """The values at which an image counts as recognizable, unless a guess without the update is as good.

    SSIM decides, since a flat grey already reaches a high PSNR on a picture of little contrast. PSNR takes its place
    where an image is too small to have an SSIM.
    """

    ssim: float = METRICS["ssim"].threshold or 0.0
    psnr: float = METRICS["psnr"].threshold or 0.0

    def __post_init__(self) -> None:
        if not 0 < self.ssim <= 1:
            raise ConfigError(f"expected 0 < ssim <= 1, got ssim={self.ssim}")
        if self.psnr <= 0:
            raise ConfigError(f"expected psnr > 0, got psnr={self.psnr}")

    def recognizes(self, image: ImageScore, guess: Guess) -> bool:
        if image.ssim is not None:
            return image.ssim >= self.ssim and (guess.ssim is None or image.ssim > guess.ssim)
        if image.psnr is None:
            return False
        return image.psnr >= self.psnr and (guess.psnr is None or image.psnr > guess.psnr)


DEFAULT = Thresholds()


def count_recognizable(record: Record, thresholds: Thresholds) -> int:
    """How many of a trial's images can be recognized."""
    return sum(
        thresholds.recognizes(image, best_guess(record.baselines, index)) for index, image in enumerate(record.images)
    )


def diagnose(record: Record, thresholds: Thresholds) -> Diagnosis:
    """What one trial says by itself; only a twin can make it reassuring."""
    if not record.measured:
        return Diagnosis(level="not measured", text=f"Nothing was measured: {record.error or record.status}.")
    if record.images:
        count = count_recognizable(record, thresholds)
        if count:
            although = f", although {reason}" if (reason := _cut_short(record)) else ""
            return Diagnosis(level="leaks", text=f"{count} of {len(record.images)} images can be recognized{although}.")
        return _failed(record)
    if not explains(record):
        return _failed(record)
    doubts = [reason for reason in (_cut_short(record), _falling(record), _strange(record)) if reason]
    words = "".join(f" Note: {reason}." for reason in doubts)
    return Diagnosis(
        level="not compared",
        text=f"The found images explain the update (mismatch {record.mismatch:.2g}): expect them to show private ones, "
        f"and compare them with the originals.{words}",
    )


def explains(record: Record) -> bool:
    """Whether the found images explain the update, as far as the attacker's own replay can tell."""
    if record.mismatch is None or record.status == "diverged" or record.mismatch > UNEXPLAINED:
        return False
    return record.mismatch <= max(EXPLAINED, FAR * (record.resolution or 0.0))


def troubles(record: Record) -> list[str]:
    """Why a result may be the attack's own fault, the most telling reason first."""
    found = [reason] if (reason := _cut_short(record)) else []
    if record.status == "diverged":
        found.append("its values became NaN or infinite")
    elif record.mismatch is not None and not explains(record):
        best = "" if record.resolution is None else f"; its replay resolves {record.resolution:.2g}"
        found.append(f"its images leave much of the update unexplained (mismatch {record.mismatch:.2g}{best})")
    if record.floor:
        found.append(record.floor.text)
    found += [reason for reason in (_falling(record), _strange(record)) if reason]
    return found


def _failed(record: Record) -> Diagnosis:
    reasons = "; ".join(troubles(record))
    text = "This says nothing about safety."
    why = f" {record.attack} came closest: {reasons}." if reasons else ""
    return Diagnosis(level="attack failed", text=text + why)


def _cut_short(record: Record) -> str | None:
    if record.status != INTERRUPTED:
        return None
    return f"the attack was interrupted after {record.iterations or 0} iterations; the same command resumes it"


def _falling(record: Record) -> str | None:
    steps = [(step.iteration, step.mismatch) for step in record.history if step.mismatch is not None]
    if not steps or record.status == INTERRUPTED or record.mismatch is None or record.mismatch <= SETTLED:
        return None
    late = [mismatch for iteration, mismatch in steps if iteration <= 0.8 * steps[-1][0]]
    if not late or record.mismatch > FALLING * late[-1]:
        return None
    return "its mismatch was still falling at the end, so more iterations would help"


def _strange(record: Record) -> str | None:
    close = record.mismatch is not None and record.mismatch <= EXPLAINED
    bound = STRETCH if close else WILD
    if record.stretch is None or 1 / bound <= record.stretch <= bound:
        return None
    factor, how = (record.stretch, "shorter") if record.stretch > 1 else (1 / (record.stretch or 1e-9), "longer")
    return (
        f"the update is {factor:.2g} times {how} than the declared training makes it from these images: check the "
        "learning rate, the epochs and the client's optimizer"
    )
