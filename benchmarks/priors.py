"""How much of a prior, and of which kind, ``strongest`` wants on a CNN: lightness and color weighed apart.

    python benchmarks/priors.py --out docs/results/priors.json
    python benchmarks/priors.py --data cifar10-1000.npz --seeds 100 --out docs/results/priors-cifar.json

Draws of the benchmark's scenarios, by default none that is in the benchmark; with ``--data``, sixteen of the even rows
of a file.
PI-SME gets the same prior, too, to tell what the prior gives from what else differs.
A run that was interrupted resumes.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from attacks import CASES
from halves import rows_of
from rivals import compare

from undelta import Scenario, pi_sme, strongest
from undelta.attacker.attacks.strongest import Composite
from undelta.attacker.priors import ColorVariation, Prior, TotalVariation
from undelta.studies.bench.cases import load_benchmark

PLAIN, CHOSEN = "total variation", "lightness 0.5, color 1.5"
PRIORS: dict[str, Prior] = {
    PLAIN: TotalVariation(weight=0.01),
    "lightness 1, color 3": ColorVariation(weight=0.01, lightness=1.0, chroma=3.0),
    CHOSEN: ColorVariation(weight=0.01, lightness=0.5, chroma=1.5),
    "lightness 0.5, color 2.5": ColorVariation(weight=0.01, lightness=0.5, chroma=2.5),
    "lightness 0.3, color 0.9": ColorVariation(weight=0.01, lightness=0.3, chroma=0.9),
    "lightness 0.3, color 3": ColorVariation(weight=0.01, lightness=0.3, chroma=3.0),
}
BENCH = ("short", "noise", "pruned")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="a .npz of color images, in place of the benchmark's scenarios")
    parser.add_argument("--cases", nargs="+", choices=load_benchmark().cases, default=BENCH)
    parser.add_argument("--seeds", type=int, nargs="+", default=[11, 12, 13])
    parser.add_argument("--only", nargs="+", choices=PRIORS, default=list(PRIORS))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--table", action="store_true", help="only print what is there")
    given = parser.parse_args()
    if given.data:
        cases = {"sixteen": Scenario(data=rows_of(given.data, "even"), **CASES["short"])}
        composite, rival = strongest(), pi_sme(steps=333)
    else:
        cases = {name: load_benchmark().cases[name].scenario for name in given.cases}
        composite, rival = strongest(steps=50, rollout_steps=60), pi_sme(steps=135)
    attacks: dict[str, Any] = {f"strongest, {name}": with_prior(composite, PRIORS[name]) for name in given.only}
    attacks |= {"pi_sme": rival, f"pi_sme, {CHOSEN}": replace(rival, priors=(PRIORS[CHOSEN],))}
    print(table(compare(cases, attacks, () if given.table else given.seeds, given.out)))


def with_prior(attack: Composite, prior: Prior) -> Composite:
    """The same with another variation in its flat candidate."""
    flat, *others = attack.candidates
    return replace(attack, candidates=(replace(flat, priors=(prior, *flat.priors[1:])), *others))


def table(cells: list[dict[str, Any]]) -> str:
    cases = list(dict.fromkeys(cell["case"] for cell in cells))
    lines = [f"| attack, prior | {' | '.join(cases)} | mean |", "|---" * (len(cases) + 2) + "|"]
    for name in dict.fromkeys(cell["attack"] for cell in cells):
        own = [cell for cell in cells if cell["attack"] == name]
        means = [statistics.fmean(cell["psnr"] for cell in own if cell["case"] == case) for case in cases]
        shown = " | ".join(f"{value:.1f}" for value in (*means, statistics.fmean(means)))
        lines.append(f"| {name} | {shown} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
