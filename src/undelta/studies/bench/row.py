"""A row of the leaderboard: one attack on all cases, with its settings, times and checks."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from undelta.errors import DataError
from undelta.files import load_json, to_json, write_bytes
from undelta.schema import parse, read_json
from undelta.studies.bench.cases import Benchmark
from undelta.trials.record import NOT_APPLICABLE

LEADERBOARD = Path(__file__).with_name("leaderboard.json")
OVER = 1.2  # of the budget: what a noisy clock is forgiven
SECRET_DRAWS = 2
KNOWN = 6.0  # dB: so much worse on secret draws, an attack knows the public ones


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One attacked update; without metrics, the attack cannot be used there, or failed."""

    case: str
    seed: int
    status: str
    """completed, interrupted (out of time), diverged, not applicable, or failed."""
    error: str = ""
    psnr: float | None = None
    ssim: float | None = None
    lpips: float | None = None
    color: float | None = None
    """PSNR of each image's mean color."""
    mismatch: float | None = None
    iterations: int | None = None
    client_steps: float | None = None
    """The attack's time in steps of the client's training."""
    seconds: float | None = None
    exact: bool = True
    """Whether the observation came out as it was frozen, bit for bit."""

    @property
    def gain(self) -> float:
        """Decibels above each image's mean color; what is worse than that is worth nothing."""
        return 0.0 if self.psnr is None or self.color is None else max(0.0, self.psnr - self.color)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One attack on the benchmark."""

    benchmark: int
    name: str
    attack: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    date: str
    versions: Mapping[str, str]
    code: str = ""
    """A digest of the code: of the package's for a built-in attack, else of the module that the attack is in."""
    entries: tuple[Entry, ...] = ()
    repeats: bool | None = None
    """Whether the first case gave the same images again, bit for bit; None if it gave none, or was not reached."""
    secret: tuple[Entry, ...] = ()
    """The first case with seeds that nobody knew before, in disguise."""

    def of(self, case: str) -> list[Entry]:
        return [entry for entry in self.entries if entry.case == case]

    def psnr(self, case: str) -> float | None:
        """The mean over seeds; None if one has none."""
        values = [entry.psnr for entry in self.of(case)]
        known = [value for value in values if value is not None]
        return statistics.fmean(known) if known and len(known) == len(values) else None

    def complete(self, benchmark: Benchmark) -> bool:
        """Whether all cases were run, with all seeds."""
        done = {(entry.case, entry.seed) for entry in self.entries}
        return all((case.name, seed) in done for case in benchmark.cases.values() for seed in case.seeds)

    def score(self, benchmark: Benchmark) -> float:
        """The mean gain over all cases, each of which counts the same."""
        means = [statistics.fmean(entry.gain for entry in self.of(case)) for case in benchmark.cases if self.of(case)]
        return statistics.fmean(means) if means else 0.0

    def client_steps(self) -> float | None:
        """The most that a case took, as the mean over its seeds."""
        cases = dict.fromkeys(entry.case for entry in self.entries)
        known = [[entry.client_steps for entry in self.of(case) if entry.client_steps is not None] for case in cases]
        return max((statistics.fmean(values) for values in known if values), default=None)

    def doubts(self, benchmark: Benchmark) -> list[str]:
        """Reasons not to rank it."""
        found = []
        if not self.complete(benchmark):
            found.append("not all cases were run")
        if self.entries and all(entry.status == NOT_APPLICABLE for entry in self.entries):
            found.append("it can be used in no case")
        steps = self.client_steps()
        if steps is not None and steps > OVER * benchmark.budget:
            found.append(f"over the budget: {steps:,.0f} client steps, {benchmark.budget:,.0f} allowed")
        failed = [entry for entry in (*self.entries, *self.secret) if entry.status == "failed"]
        if failed:
            found.append(f"it failed {len(failed)} times, first in {failed[0].case}: {failed[0].error}")
        if self.repeats is False:
            found.append("equal seeds gave other images")
        if not self.checked:
            found.append("whether it knows the truth was not checked")
        if self.knows_the_truth:
            found.append("far worse on secret draws than on public ones: it knows the truth")
        return found

    @property
    def checked(self) -> bool:
        """Whether the checks were run, as far as the attack can be used in the first case."""
        first = self.entries[0] if self.entries else None
        usable = first is not None and first.psnr is not None
        return len(self.secret) >= SECRET_DRAWS and (self.repeats is not None or not usable)

    @property
    def knows_the_truth(self) -> bool:
        """Whether it does far better on the public draws than on any secret one of the same case."""
        secret = [entry.gain for entry in self.secret]
        public = [entry.gain for entry in self.of(self.secret[0].case)] if secret else []
        return bool(secret and public) and statistics.fmean(public) > max(secret) + KNOWN


def read_row(path: Path, benchmark: Benchmark) -> Row:
    """A row that `undelta bench` wrote."""
    row = read_json(Row, path)
    if row.benchmark != benchmark.version:
        raise DataError(f"{path} is of version {row.benchmark} of the benchmark, this is version {benchmark.version}")
    return row


def write_row(row: Row, path: Path) -> None:
    """Write what `read_row` reads."""
    write_bytes(path, to_json(asdict(row)))


def leaderboard() -> list[Row]:
    """The rows of the built-in attacks that come with the package."""
    if not LEADERBOARD.exists():
        return []
    rows = load_json(LEADERBOARD)
    return [parse(Row, row, where=str(LEADERBOARD), error=DataError) for row in rows]


def ranked(rows: Sequence[Row], benchmark: Benchmark) -> list[Row]:
    """The best first; those with doubts come last."""
    return sorted(rows, key=lambda row: (bool(row.doubts(benchmark)), -row.score(benchmark), row.name))


def ranks(rows: Sequence[Row], benchmark: Benchmark) -> list[str]:
    """Each row's rank as it is shown; equal scores share one, and a row with doubts has none."""
    scores = [None if row.doubts(benchmark) else round(row.score(benchmark), 2) for row in rows]
    sound = [score for score in scores if score is not None]
    return ["-" if score is None else str(1 + sum(other > score for other in sound)) for score in scores]
