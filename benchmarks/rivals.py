"""Surrogates on a learned curve (NL-SME, PI-SME) beside SME and ``strongest``, where a client's path bends.

    python benchmarks/rivals.py short long --out docs/results/rivals.json
    python benchmarks/rivals.py longest --out docs/results/rivals-longest.json --seeds 500 501 502 503 504 505 506 507

Four photographs of 16 x 16 pixels on a small CNN; ``long`` goes four times as far as ``short``. ``longest`` has patches
of 32 x 32 and goes so far that coarse rollouts overshoot. A run that was interrupted resumes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from workloads import write

from undelta import Scenario, disclose, nl_sme, pi_sme, score, sme, strongest

SHORT = Scenario(
    data="photos",
    image_size=16,
    num_samples=4,
    model="cnn",
    model_arguments={"width": 8, "hidden": 32},
    epochs=5,
    batches=2,
    learning_rate=0.01,
)
LONGEST = replace(
    SHORT,
    data="patches",
    image_size=32,
    model_arguments={"width": 16, "hidden": 100},
    epochs=20,
    learning_rate=0.02,
)
CASES = {"short": SHORT, "long": replace(SHORT, epochs=10, learning_rate=0.02), "longest": LONGEST}
ATTACKS = {
    "sme": sme(steps=600),
    "nl_sme": nl_sme(steps=600),
    "pi_sme": pi_sme(steps=200),  # three gradients each
    "strongest": strongest(rollout_steps=100),  # 200 gradients, then 500
    "strongest, no curve": strongest(rollout_steps=100, curve=False),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="+", choices=CASES)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--table", action="store_true", help="only print what is there")
    given = parser.parse_args()
    cases = {name: CASES[name] for name in given.cases}
    left_out = {(case, "strongest, no curve") for case in cases if case != "longest"}  # no overshooting, no curve
    cells = compare(cases, ATTACKS, () if given.table else given.seeds, given.out, left_out=left_out)
    print(table(cells))


def compare(
    cases: Mapping[str, Scenario],
    attacks: Mapping[str, Any],
    seeds: Sequence[int],
    out: Path,
    *,
    left_out: Container[tuple[str, str]] = (),
) -> list[dict[str, Any]]:
    """Every attack on every case and draw, on one thread; what the file has is not run again."""
    torch.set_num_threads(1)
    cells: list[dict[str, Any]] = json.loads(out.read_text())["cells"] if out.exists() else []
    done = {(cell["case"], cell["attack"], cell["seed"]) for cell in cells}
    told = {name: asdict(replace(case, data=Path(case.data).name)) for name, case in cases.items()}
    for case in told.values():  # where files lie on this machine is nobody's business
        case["initial"] = case["initial"] and Path(case["initial"]).name
    for label, scenario in cases.items():
        for seed in seeds:
            private = scenario.draw(seed)
            observation = disclose(private, scenario, seed=seed)
            for name, attack in attacks.items():
                if (label, name, seed) in done or (label, name) in left_out:
                    continue
                began = time.process_time()
                found = attack(observation, seed=seed)
                seconds, scored = time.process_time() - began, score(found, private)
                cell = {
                    "case": label,
                    "attack": name,
                    "seed": seed,
                    "psnr": scored.psnr,
                    "ssim": scored.ssim,
                    "mismatch": found.mismatch,
                    "iterations": found.iterations,
                    "processor_seconds": seconds,
                }
                cells.append(cell)
                print(json.dumps(cell), flush=True)
                write(out, {"cases": told, "cells": cells})
    return cells


def table(cells: list[dict[str, Any]]) -> str:
    lines = ["| path | attack | each draw | PSNR (dB) | SSIM | mismatch | time |", "|---|---|---|---|---|---|---|"]
    for case in CASES:
        for name in ATTACKS:
            own = [cell for cell in cells if (cell["case"], cell["attack"]) == (case, name)]
            if own:
                each = ", ".join(f"{cell['psnr']:.1f}" for cell in own)
                keys = ("psnr", "ssim", "mismatch", "processor_seconds")
                psnr, ssim, mismatch, seconds = (statistics.mean(cell[key] for cell in own) for key in keys)
                unit = statistics.mean(
                    cell["processor_seconds"] for cell in cells if (cell["case"], cell["attack"]) == (case, "sme")
                )
                lines.append(
                    f"| {case} | {name} | {each} | {psnr:.1f} | {ssim:.3f} | {mismatch:.4f} | {seconds / unit:.2f} |"
                )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
