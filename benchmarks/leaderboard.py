"""All built-in attacks on the frozen benchmark: the rows that `undelta bench` shows.

    python benchmarks/leaderboard.py --rows docs/results/bench

Writes a row per attack, skips those that are complete, puts all of them into the package, and prints the table of
docs/bench.md. May be stopped and resumed.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import asdict
from pathlib import Path

from undelta.attacker.attacks import ATTACKS
from undelta.files import to_json, write_bytes
from undelta.studies.bench.cases import Benchmark, load_benchmark
from undelta.studies.bench.job import bench_job, contestant
from undelta.studies.bench.row import LEADERBOARD, Row, ranked, ranks, read_row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=ATTACKS, default=[*ATTACKS])
    given = parser.parse_args()
    benchmark = load_benchmark()
    for name in given.only:
        path = given.rows / f"{name}.json"
        if path.exists() and read_row(path, benchmark).complete(benchmark):
            continue
        row = bench_job(contestant(name), out=path)
        print(f"{name}: {row.score(benchmark):.2f} {'; '.join(row.doubts(benchmark))}", flush=True)
    rows = [read_row(path, benchmark) for path in sorted(given.rows.glob("*.json"))]
    whole = [asdict(row) for row in ranked(rows, benchmark) if row.complete(benchmark)]
    write_bytes(LEADERBOARD, to_json(whole))
    print(table(rows, benchmark))


def table(rows: list[Row], benchmark: Benchmark) -> str:
    """What `undelta bench` shows, in Markdown, with each image's mean color below."""
    titles = ["rank", "attack", "score", *[f"`{name}`" for name in benchmark.cases], "client steps"]
    rows = ranked(rows, benchmark)
    cells = [
        [
            place,
            f"`{row.name}`",
            f"{row.score(benchmark):.2f}",
            *[shown(row.psnr(name), ".1f") for name in benchmark.cases],
            shown(row.client_steps(), ",.0f"),
        ]
        for row, place in zip(rows, ranks(rows, benchmark), strict=True)
    ]
    colors = [statistics.fmean(entry.color or 0.0 for entry in rows[0].of(name)) for name in benchmark.cases]
    cells.append(["", "each image's mean color", "0", *[shown(color, ".1f") for color in colors], ""])
    return "\n".join(f"| {' | '.join(line)} |" for line in (titles, ["---"] * len(titles), *cells))


def shown(value: float | None, form: str) -> str:
    return "n/a" if value is None else format(value, form)


if __name__ == "__main__":
    main()
