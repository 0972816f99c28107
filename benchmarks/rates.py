"""Adam's rate in the rounds of ``strongest`` on a CNN, and when a round that ends with a larger mismatch is undone.

    python benchmarks/rates.py --out docs/results/rates.json --seeds 50 51 52 53 54 55 56 57
    python benchmarks/rates.py --out docs/results/rates-held-out.json --only before now --seeds 60 61 62 63 64 65 66 67
    python benchmarks/rates.py --data cifar10-1000.npz --out docs/results/rates-cifar.json --seeds 100 101 102 103

Draws of the benchmark's scenarios that are not in the benchmark; with ``--data``, sixteen of the even rows of a file.
``before`` is what ``strongest`` was: a rate of 0.7, and every such round undone. A run that was interrupted resumes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attacks import CASES
from halves import rows_of
from priors import table
from rivals import compare

from undelta import Observation, Reconstruction, Scenario, strongest
from undelta.attacker import combine
from undelta.studies.bench.cases import load_benchmark

BENCH = ("short", "noise", "pruned", "quantized", "aggregated")
RATES = {"rate 0.7": 0.7, "rate 0.35": 0.35, "now": 0.25, "rate 0.15": 0.15}


@dataclass(frozen=True)
class Undoing:
    """An attack whose rounds are all undone if they end with a larger mismatch, as they once were."""

    attack: Callable[..., Reconstruction]

    def __call__(self, observation: Observation, *, seed: int) -> Reconstruction:
        kept, combine.LOST = combine.LOST, 1.0
        try:
            return self.attack(observation, seed=seed)
        finally:
            combine.LOST = kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="a .npz of color images, in place of the benchmark's scenarios")
    parser.add_argument("--cases", nargs="+", choices=load_benchmark().cases, default=BENCH)
    parser.add_argument("--seeds", type=int, nargs="+", required=True)
    parser.add_argument("--only", nargs="+", choices=["before", *RATES], default=["before", *RATES])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--table", action="store_true", help="only print what is there")
    given = parser.parse_args()
    settings: dict[str, Any] = {} if given.data else {"steps": 50, "rollout_steps": 60}
    if given.data:
        cases = {"sixteen": Scenario(data=rows_of(given.data, "even"), **CASES["short"])}
    else:
        cases = {name: load_benchmark().cases[name].scenario for name in given.cases}
    attacks: dict[str, Any] = {name: strongest(**settings, rollout_rate=rate) for name, rate in RATES.items()}
    attacks["before"] = Undoing(strongest(**settings, rollout_rate=0.7))
    chosen = {name: attacks[name] for name in given.only}
    print(table(compare(cases, chosen, () if given.table else given.seeds, given.out)))


if __name__ == "__main__":
    main()
