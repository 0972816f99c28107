"""Two audits side by side: what got better or worse."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from undelta.errors import DataError
from undelta.trials.diagnosis import Level
from undelta.trials.judgment import Judgment, read_judgment
from undelta.trials.verdict import Verdict

GRAVITY: dict[Level, int] = {"leaks": 2, "not compared": 2, "attack failed": 1, "not measured": 1, "resisted": 0}
MARGIN = 0.05  # of SSIM: what other seeds and processors move the most exposed image by; a convention
MARGIN_DB = 1.0  # of PSNR, where there is no SSIM

Change = Literal["worse", "better", "unclear", "same", "new", "gone"]
ALARMING: tuple[Change, ...] = ("worse", "unclear", "gone")
"""What may hide a leak."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One scenario with one defense in two audits."""

    title: str
    before: Verdict | None
    after: Verdict | None
    change: Change


def compare_jobs(before: Path, after: Path) -> list[Compared]:
    """Every scenario and defense of two directories, as the second one orders them; those that are gone come last."""
    old, new = (_by_name(_read(directory)) for directory in (before, after))
    for name in old.keys() & new.keys():
        first, second = old[name].thresholds, new[name].thresholds
        if first != second:
            raise DataError(
                f"{new[name].title}: expected the same thresholds in both audits, got {first} and {second}; "
                "judge one again with the other's [verdict], which repeats no trial"
            )
    return [
        Compared(
            title=(second or old[name]).title, before=old.get(name), after=second, change=_change(old.get(name), second)
        )
        for name, second in (*new.items(), *((name, None) for name in old if name not in new))
    ]


def _read(directory: Path) -> Judgment:
    judgment = read_judgment(directory) if directory.is_dir() else None
    if judgment is None:
        raise DataError(f"{directory}: no verdict.json in it; expected what `undelta audit --out` left when it ended")
    return judgment


def _by_name(judgment: Judgment) -> dict[tuple[str, str], Verdict]:
    return {(verdict.scenario, verdict.defense): verdict for verdict in judgment.verdicts}


def _change(before: Verdict | None, after: Verdict | None) -> Change:
    """Worse is more recognizable images, or a graver level.

    An attack that fails where one worked tells nothing, nor do images that nobody compared beside some that were.
    """
    if before is None or after is None:
        return "gone" if after is None else "new"
    old, new = GRAVITY[before.level], GRAVITY[after.level]
    if (old == 2 and new == 1) or {before.level, after.level} == {"leaks", "not compared"}:
        return "unclear"
    if old != new:
        return "worse" if new > old else "better"
    shares = [(one.recognizable or 0) / (one.images or 1) for one in (before, after)]
    if shares[0] != shares[1]:
        return "worse" if shares[1] > shares[0] else "better"
    if old == 1:
        return "same"  # two failures cannot be ranked
    for metric, margin in (("ssim", MARGIN), ("psnr", MARGIN_DB)):
        first, second = before.worst.get(metric), after.worst.get(metric)
        if first is not None and second is not None:
            return "same" if abs(second - first) <= margin else "worse" if second > first else "better"
    return "same"
