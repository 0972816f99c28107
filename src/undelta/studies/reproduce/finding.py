"""One finding: a sentence of the paper, how comparisons judge it, and on how many images and seeds it rests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from undelta.report.templates import escape
from undelta.studies.reproduce.published import PRINTED
from undelta.studies.reproduce.results import LEAST_SEEDS, Advantage, Cell, Results, advantage
from undelta.trials.verdict import times

Outcome = Literal["holds", "holds in part", "does not hold", "not decided", "not measured"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A sentence of the paper, and what was measured here."""

    says: str
    outcome: Outcome = "not measured"
    numbers: str = "No trials with numbers for it yet."

    @property
    def markdown(self) -> str:
        return f"- **{self.outcome}**: {escape(self.says)}. {escape(self.numbers)}"


def gains_of(
    results: Results, rows: Sequence[str], better: str, worse: str, metrics: Sequence[str] = PRINTED
) -> list[Advantage]:
    """How much better one method is than another in these cases, as far as both have numbers."""
    found = [advantage(results.at(row, better), results.at(row, worse), metric) for row in rows for metric in metrics]
    return [gain for gain in found if gain]


def counting(results: Results, rows: list[str], methods: Sequence[str]) -> tuple[list[str], str]:
    """The cases in which these methods share enough seeds for a difference to count, and a sentence on the others.

    All of the cases if there are no such, so that a finding shows what there is so far.
    """
    shared = {row: _shared(results, row, methods) for row in rows}
    enough = [row for row in rows if shared[row] >= LEAST_SEEDS]
    few = [results.here(row) for row in rows if 0 < shared[row] < LEAST_SEEDS]
    if not enough:
        return rows, ""
    return enough, f" Left out, with fewer than {LEAST_SEEDS} seeds so far: {'; '.join(few)}." if few else ""


def _shared(results: Results, row: str, methods: Sequence[str]) -> int:
    """The number of seeds for which all of these methods have numbers."""
    return len(set.intersection(*({record.seed for record in results.at(row, method).scored} for method in methods)))


def judged(says: str, ahead: Sequence[bool], numbers: str, gains: Sequence[Advantage]) -> Finding:
    """A claim by the comparisons that it rests on: which of them came out as the paper says."""
    if not ahead or not gains:
        return Finding(says=says)
    seeds = min(gain.seeds for gain in gains)
    least, most = (pick(gain.images for gain in gains) for pick in (min, max))
    span = times(least, "image") if least == most else f"{least} to {most} images"
    numbers = f"{numbers} n = {span}, {times(seeds, 'seed')}."
    if seeds < LEAST_SEEDS:
        return Finding(
            says=says, numbers=f"{numbers} That is too few: a difference counts from {LEAST_SEEDS} seeds on."
        )
    part: Outcome = "holds in part" if 2 * sum(ahead) >= len(ahead) else "does not hold"
    return Finding(says=says, outcome="holds" if all(ahead) else part, numbers=numbers)


def comparisons(ahead: Sequence[bool]) -> str:
    """How many of them came out so, in words."""
    return f"{sum(ahead)} of {len(ahead)} comparisons (scenario x metric)"


def counted(cells: Sequence[Cell]) -> str:
    """How much a mean over cells rests on."""
    records = [record for cell in cells for record in cell.scored]
    seeds = len({record.seed for record in records})
    return f"n = {times(sum(len(record.images) or 1 for record in records), 'image')}, {times(seeds, 'seed')}"
