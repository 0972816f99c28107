"""Leakage against utility: one point per defense, from an audit's verdicts and from measured accuracies.

Nothing is measured here. ``defend.json`` holds what comes out.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from undelta.evaluation.metrics import RECOVERED_PSNR
from undelta.schema import read_json
from undelta.trials.bound_file import CEILING, Limit
from undelta.trials.directory import DEFEND
from undelta.trials.record import ENDED, UNDEFENDED, Record
from undelta.trials.trial import Trial
from undelta.trials.verdict import Verdict, times

SCHEMA: Literal[1] = 1
MARGIN_DB = 1.0
"""How far above the reference a defense may be and still count as at the level of noise; a convention."""


@dataclass(frozen=True, kw_only=True)
class Utility:
    """What a federation reaches; the accuracy is None, with the reason, where it could not be measured."""

    accuracy: float | None
    test_images: int = 0
    error: str | None = None
    epsilon: float | None = None
    delta: float | None = None
    rounds: int
    seed: int
    scenario: dict[str, Any]
    seconds: float | None = None
    versions: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Point:
    """One defense; None is what was not measured."""

    defense: str
    psnr: float | None
    """Mean over the images of the worst trial, over attacks and seeds: the leakage."""
    attack: str | None
    """Of that trial."""
    worst_psnr: float | None
    """Of any image in any trial."""
    worst_ssim: float | None
    fraction_recovered: float | None
    recognizable: int | None
    images: int | None
    accuracy: float | None
    """Mean over seeds, on held-out images."""
    accuracies: tuple[float, ...]
    epsilon: float | None
    """Up to the attacked round."""
    epsilon_in_all: float | None
    """After all rounds of the federation whose accuracy this is."""
    delta: float | None
    bound: Limit | None = None
    """What no attack is expected to exceed, where that was asked."""
    at_noise_level: bool | None = None
    pareto: bool = False

    @property
    def ceiling(self) -> float | None:
        return self.bound.row.ceiling if self.bound and self.bound.row else None

    @property
    def headroom(self) -> float | None:
        return self.bound.row.headroom if self.bound and self.bound.row else None


@dataclass(frozen=True, kw_only=True)
class Tradeoff:
    """All points, and what they rest on."""

    schema: Literal[1] = SCHEMA
    margin_db: float = MARGIN_DB
    name: str
    rounds: int
    seeds: tuple[int, ...]
    test_images: int
    reference: Point
    """An update without any information."""
    points: tuple[Point, ...]
    date: str
    """Of the last record."""
    versions: dict[str, str]
    """What that record was made with."""
    notes: tuple[str, ...] = ()

    @property
    def private(self) -> bool:
        return any(point.delta is not None for point in self.points)

    @property
    def bounded(self) -> bool:
        """Whether somebody asked what no attack is expected to exceed."""
        return any(point.bound for point in self.points)


def read_tradeoff(directory: Path) -> Tradeoff | None:
    """What `undelta defend` wrote; None if it did not."""
    path = directory / DEFEND
    return read_json(Tradeoff, path) if path.is_file() else None


def make_point(
    verdict: Verdict, trials: Sequence[Trial], records: Mapping[str, Record], utilities: Sequence[Utility]
) -> Point:
    """One defense, from its verdict, its records, and the utility of each seed."""
    own = [records[trial.key] for trial in trials if trial.key in records]
    scored = [record for record in own if record.status in ENDED and record.scored]
    worst = max(scored, key=lambda record: record.psnr or 0.0, default=None)
    known = [utility.accuracy for utility in utilities if utility.accuracy is not None]
    accuracies = tuple(known) if len(known) == len(utilities) else ()
    private = next((record for record in own if record.delta is not None), None)
    return Point(
        defense=verdict.defense,
        psnr=worst.psnr if worst else None,
        attack=worst.attack if worst else None,
        worst_psnr=verdict.worst["psnr"],
        worst_ssim=verdict.worst["ssim"],
        fraction_recovered=verdict.worst["fraction_recovered"],
        recognizable=verdict.recognizable,
        images=verdict.images,
        accuracy=statistics.fmean(accuracies) if accuracies else None,
        accuracies=accuracies,
        epsilon=private.epsilon if private else None,
        epsilon_in_all=utilities[0].epsilon if utilities else None,
        delta=private.delta if private else None,
        bound=verdict.bound,
    )


def compare(points: Sequence[Point], reference: Point) -> tuple[Point, ...]:
    """The points with two more answers each: is it at the level of noise, and is it on the Pareto front?"""
    return tuple(
        replace(point, at_noise_level=_at_noise(point, reference), pareto=_on_front(point, points)) for point in points
    )


def _at_noise(point: Point, reference: Point) -> bool | None:
    if point.psnr is None or reference.psnr is None:
        return None
    return point.psnr <= reference.psnr + MARGIN_DB


def _on_front(point: Point, points: Sequence[Point]) -> bool:
    """No other point is at least as good in both, and better in one."""
    if point.psnr is None or point.accuracy is None:
        return False
    return not any(
        other.psnr <= point.psnr
        and other.accuracy >= point.accuracy
        and (other.psnr, other.accuracy) != (point.psnr, point.accuracy)
        for other in points
        if other.psnr is not None and other.accuracy is not None
    )


def sentences(tradeoff: Tradeoff) -> list[str]:
    """What the table shows, and what its columns mean."""
    reference = tradeoff.reference
    measured = (
        f" Accuracy: after {times(tradeoff.rounds, 'round')} with the defense, on {tradeoff.test_images} images that "
        f"no client has, mean over {times(len(tradeoff.seeds), 'seed')}."
    )
    lines = [
        "PSNR in dB: mean over the images of the worst trial, over attacks and seeds; then the worst of any image, and "
        f"the share found, with {RECOVERED_PSNR:g} dB or more, in the worst trial."
        + (measured if tradeoff.test_images else "")
        + " Epsilon: up to the attacked round, and in all."
    ]
    undefended = next((point for point in tradeoff.points if point.defense == UNDEFENDED), None)
    if undefended and undefended.psnr is not None and reference.psnr is not None:
        lines.append(
            f"From the scenario's own update {undefended.psnr:.1f} dB, from pure noise of the same length "
            f"{reference.psnr:.1f} dB."
        )
    quiet = [point.defense for point in tradeoff.points if point.at_noise_level]
    if reference.psnr is not None:
        lines.append(
            f"N: at the level of noise, within {MARGIN_DB:g} dB: {'; '.join(quiet) or 'none'}. These attacks found "
            "no more there than in noise; others may."
        )
    front = [point.defense for point in tradeoff.points if point.pareto]
    if front:
        lines.append(f"P: on the Pareto front, where no other leaks less at the same accuracy: {'; '.join(front)}.")
    if tradeoff.bounded:
        lines.append(f"Ceiling: {CEILING}")
        reasons = [(point.defense, point.bound.reason) for point in tradeoff.points if point.bound]
        lines += [f"No bound for {defense}: {reason}." for defense, reason in reasons if reason]
        doubts = [(point.defense, doubt) for point in tradeoff.points if point.bound for doubt in point.bound.doubts]
        lines += [f"Doubt about {defense}: {doubt}." for defense, doubt in doubts]
    return [*lines, *(f"Note: {note}." for note in tradeoff.notes)]
