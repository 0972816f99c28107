"""All built-in attacks on the frozen benchmark: the rows that `undelta bench` shows.

    python benchmarks/leaderboard.py --rows docs/results/bench

Writes a row per attack, skips what is there, and puts all of them into the package. May be stopped and resumed.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from undelta.attacker.attacks import ATTACKS
from undelta.files import to_json, write_bytes
from undelta.studies.bench.cases import load_benchmark
from undelta.studies.bench.job import bench_job, contestant
from undelta.studies.bench.row import LEADERBOARD, ranked, read_row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=ATTACKS, default=[*ATTACKS])
    given = parser.parse_args()
    benchmark = load_benchmark()
    for name in given.only:
        row = bench_job(contestant(name), out=given.rows / f"{name}.json")
        print(f"{name}: {row.score(benchmark):.2f} {'; '.join(row.doubts(benchmark))}", flush=True)
    rows = [read_row(path, benchmark) for path in sorted(given.rows.glob("*.json"))]
    whole = [asdict(row) for row in ranked(rows, benchmark) if row.complete(benchmark)]
    write_bytes(LEADERBOARD, to_json(whole))


if __name__ == "__main__":
    main()
