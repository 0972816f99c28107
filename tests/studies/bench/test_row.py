"""Rows of the leaderboard: what counts, and what casts doubt on one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from undelta.attacker.attacks import ATTACKS
from undelta.errors import DataError
from undelta.studies.bench.cases import Benchmark, load_benchmark
from undelta.studies.bench.row import Entry, Row, leaderboard, ranked, ranks, read_row, write_row
from undelta.trials.record import NOT_APPLICABLE


@pytest.fixture
def benchmark() -> Benchmark:
    whole = load_benchmark()
    return replace(whole, cases={name: whole.cases[name] for name in ("short", "noise")}, budget=100.0)


def entry(case: str, seed: int, psnr: float | None, *, steps: float = 50.0) -> Entry:
    return Entry(case=case, seed=seed, status="completed", psnr=psnr, color=15.0, client_steps=steps)


def row(name: str = "mine", noise: float | None = 17.0, **fields: object) -> Row:
    entries = tuple(entry("short", seed, 20.0) for seed in (0, 1)) + tuple(
        entry("noise", seed, noise) for seed in (0, 1)
    )
    secret = tuple(entry("short", seed, 19.0) for seed in (77, 78))
    made = Row(
        benchmark=1,
        name=name,
        attack=name,
        date="2026-11-17",
        versions={},
        entries=entries,
        repeats=True,
        secret=secret,
    )
    return replace(made, **fields)  # type: ignore[arg-type]


def test_a_score_is_the_mean_gain_over_mean_color(benchmark: Benchmark) -> None:
    assert row().score(benchmark) == pytest.approx((5 + 2) / 2)
    assert row(noise=3.0).score(benchmark) == pytest.approx(5 / 2)  # worse than mean color is worth nothing, not less
    assert row(noise=None).score(benchmark) == pytest.approx(5 / 2)  # and so is what cannot be used


def test_a_sound_row_has_no_doubts(benchmark: Benchmark) -> None:
    assert row().doubts(benchmark) == []


def test_doubts_are_named(benchmark: Benchmark) -> None:
    assert "not all cases" in row(entries=row().entries[:3]).doubts(benchmark)[0]
    slow = tuple(replace(one, client_steps=121.0) for one in row().entries)
    assert "over the budget: 121 client steps, 100 allowed" in row(entries=slow).doubts(benchmark)[0]
    assert "other images" in row(repeats=False).doubts(benchmark)[0]
    assert "was not checked" in row(repeats=None).doubts(benchmark)[0]
    assert "was not checked" in row(secret=row().secret[:1]).doubts(benchmark)[0]
    broken = replace(row().entries[1], status="failed", psnr=None, error="NameError: x")
    assert (
        "failed 1 times, first in short: NameError"
        in row(entries=(row().entries[0], broken, *row().entries[2:])).doubts(benchmark)[0]
    )
    assert (
        "knows the truth"
        in row(
            secret=(entry("short", 77, 10.0), entry("short", 78, 12.0)),
            entries=(*(entry("short", seed, 90.0) for seed in (0, 1)), *row().entries[2:]),
        ).doubts(benchmark)[0]
    )


def test_an_attack_that_does_as_well_on_secret_draws_knows_nothing(benchmark: Benchmark) -> None:
    assert row(secret=(entry("short", 77, 18.0), entry("short", 78, 12.0))).doubts(benchmark) == []


def test_rows_with_doubts_come_last(benchmark: Benchmark) -> None:
    best, doubted = row("best", noise=30.0), row("doubted", noise=60.0, repeats=False)
    assert [one.name for one in ranked([doubted, row(), best], benchmark)] == ["best", "mine", "doubted"]


def test_equal_scores_share_a_rank(benchmark: Benchmark) -> None:
    rows = [row("worst", noise=16.0), row("best", noise=30.0), row("other"), row(), row("doubted", repeats=False)]
    assert ranks(rows, benchmark) == ["4", "1", "2", "2", "-"]


def test_an_attack_that_can_be_used_nowhere_has_no_rank(benchmark: Benchmark) -> None:
    unused = tuple(replace(one, status=NOT_APPLICABLE, psnr=None) for one in row().entries)
    assert row(entries=unused).doubts(benchmark) == ["it can be used in no case"]
    assert row(entries=(*unused[1:], row().entries[0])).doubts(benchmark) == []


def test_a_row_is_read_as_it_was_written(tmp_path: Path, benchmark: Benchmark) -> None:
    write_row(row(), tmp_path / "row.json")
    assert read_row(tmp_path / "row.json", benchmark) == row()
    with pytest.raises(DataError, match="version 1 of the benchmark, this is version 2"):
        read_row(tmp_path / "row.json", replace(benchmark, version=2))


def test_the_leaderboard_holds_sound_rows_of_this_version() -> None:
    whole = load_benchmark()
    rows = leaderboard()
    assert all(one.benchmark == whole.version and one.complete(whole) for one in rows)
    assert sorted(one.name for one in rows) == sorted(ATTACKS)
    assert {one.name for one in rows if one.doubts(whole)} == {"analytic", "idlg"}  # which need what no case has
