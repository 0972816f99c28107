"""Surrogates on a learned curve (NL-SME, PI-SME) beside SME and ``strongest``, where a client's path bends.

    python benchmarks/rivals.py --out docs/results/rivals.json --seeds 0 1 2 3 4

Four photographs of 16 x 16 pixels on a small CNN; ``long`` goes four times as far as ``short``. A run that was
interrupted resumes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
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
CASES = {"short": SHORT, "long": replace(SHORT, epochs=10, learning_rate=0.02)}
ATTACKS = {
    "sme": sme(steps=600),
    "nl_sme": nl_sme(steps=600),
    "pi_sme": pi_sme(steps=200),  # three gradients each
    "strongest": strongest(rollout_steps=100),  # 200 gradients, then 500
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--table", action="store_true", help="only print what is there")
    given = parser.parse_args()
    torch.set_num_threads(1)
    cells: list[dict[str, Any]] = json.loads(given.out.read_text())["cells"] if given.out.exists() else []
    done = {(cell["case"], cell["attack"], cell["seed"]) for cell in cells}
    for case, scenario in CASES.items():
        for seed in () if given.table else given.seeds:
            private = scenario.draw(seed)
            observation = disclose(private, scenario, seed=seed)
            for name, attack in ATTACKS.items():
                if (case, name, seed) in done:
                    continue
                began = time.process_time()
                found = attack(observation, seed=seed)
                seconds, scored = time.process_time() - began, score(found, private)
                cells.append(
                    {
                        "case": case,
                        "attack": name,
                        "seed": seed,
                        "psnr": scored.psnr,
                        "ssim": scored.ssim,
                        "mismatch": found.mismatch,
                        "iterations": found.iterations,
                        "processor_seconds": seconds,
                    }
                )
                print(json.dumps(cells[-1]), flush=True)
                write(given.out, {"cases": {key: asdict(value) for key, value in CASES.items()}, "cells": cells})
    print(table(cells))


def table(cells: list[dict[str, Any]]) -> str:
    lines = ["| path | attack | each draw | PSNR (dB) | SSIM | mismatch |", "|---|---|---|---|---|---|"]
    for case in CASES:
        for name in ATTACKS:
            own = [cell for cell in cells if (cell["case"], cell["attack"]) == (case, name)]
            if own:
                each = ", ".join(f"{cell['psnr']:.1f}" for cell in own)
                psnr, ssim, mismatch = (
                    statistics.mean(cell[key] for cell in own) for key in ("psnr", "ssim", "mismatch")
                )
                lines.append(f"| {case} | {name} | {each} | {psnr:.1f} | {ssim:.3f} | {mismatch:.4f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
