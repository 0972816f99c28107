"""What a server gains that sees several rounds of one client, and what it costs not to know how the client trained.

    python benchmarks/rounds.py rounds --out docs/results/rounds.json --seeds 0 1 2
    python benchmarks/rounds.py unknown --out docs/results/unknown.json --seeds 0 1 2

Four photographs of 16 x 16 pixels on a small CNN, attacked by `strongest`; rounds together, and each alone. A run that
was interrupted resumes.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from workloads import write

from undelta import Observation, Private, Scenario, disclose, score, together
from undelta.attacker.attacks import strongest
from undelta.observation.withhold import mistaken, without

SMALL = Scenario(
    data="photos",
    image_size=16,
    num_samples=4,
    model="cnn",
    model_arguments={"width": 8, "hidden": 32},
    epochs=5,
    batches=2,
    learning_rate=0.01,
)
NOISE = 3.75e-4  # half of the update's root mean square on the draw of seed 100
CLIENTS: dict[str, Scenario] = {
    "plain": SMALL,
    "noise": replace(SMALL, defenses=({"defense": "noise", "scale": NOISE},)),
    "dp_sgd": replace(SMALL, defenses=({"defense": "dp_sgd", "noise_multiplier": 0.02, "norm": 3.0},)),
}
MOMENTUM = replace(SMALL, momentum=0.9, learning_rate=0.0025)
SETTINGS = {"rollout_steps": 100}
ROUNDS = (1, 2, 4, 8)


def found(observation: Observation, private: Private, seed: int, **settings: Any) -> dict[str, Any]:
    began = time.perf_counter()
    result = strongest(**settings)(observation, seed=seed)
    scored = score(result, private)
    length = result.learned.get("log_length")
    return {
        "psnr": scored.psnr,
        "ssim": scored.ssim,
        "mismatch": result.mismatch,
        "length": None if length is None else math.exp(length),
        "notes": list(result.notes),
        "seconds": time.perf_counter() - began,
    }


def rounds(seed: int, done: set[tuple[str, int]]) -> Iterator[dict[str, Any]]:
    """Every client's rounds together and each alone."""
    for name, client in CLIENTS.items():
        scenario = replace(client, observed_rounds=max(ROUNDS))
        private = scenario.draw(seed)
        seen = disclose(private, scenario, seed=seed).rounds
        cases = {f"round {number + 1} alone": (one,) for number, one in enumerate(seen)}
        cases |= {f"{count} together": seen[:count] for count in ROUNDS[1:]}
        for case, some in cases.items():
            if (what := f"{name}, {case}", seed) not in done:
                privacy = replace(client, observed_rounds=len(some)).privacy()
                yield {"what": what, "seed": seed, "epsilon": privacy and privacy[0]} | found(
                    together(some), private, seed, **SETTINGS
                )


def unknown(seed: int, done: set[tuple[str, int]]) -> Iterator[dict[str, Any]]:
    """The same client, known and less known; and one with momentum."""
    for name, scenario in (("plain SGD", SMALL), ("momentum 0.9", MOMENTUM)):
        private = scenario.draw(seed)
        seen = disclose(private, scenario, seed=seed)
        said = replace(seen, training=replace(seen.training, momentum=0.0))
        cases: dict[str, tuple[Observation, dict[str, Any]]] = {
            "all known": (seen, {}),
            "E, B and learning rate unknown": (without(said, "epochs", "batches", "learning_rate"), {}),
        }
        if scenario is SMALL:
            cases["learning rate said twice as large"] = mistaken(said, learning_rate=2.0), {}
            cases["the same, length learned"] = mistaken(said, learning_rate=2.0), {"length": "learned"}
            cases["only the midpoint, as before"] = seen, {"rollout_steps": 1}
        else:
            cases["taken for plain SGD"] = said, {}
        for case, (observation, settings) in cases.items():
            if (what := f"{name}, {case}", seed) not in done:
                yield {"what": what, "seed": seed} | found(observation, private, seed, **SETTINGS | settings)


STUDIES = {"rounds": rounds, "unknown": unknown}


def table(cells: list[dict[str, Any]]) -> str:
    lines = ["| client | PSNR (dB) | SSIM | mismatch | seeds |", "|---|---|---|---|---|"]
    for what in dict.fromkeys(cell["what"] for cell in cells):
        own = [cell for cell in cells if cell["what"] == what]
        psnr, ssim, mismatch = (statistics.mean(cell[key] for cell in own) for key in ("psnr", "ssim", "mismatch"))
        each = ", ".join(f"{cell['psnr']:.1f}" for cell in own)
        lines.append(f"| {what} | {psnr:.2f} ({each}) | {ssim:.3f} | {mismatch:.4f} | {len(own)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--table", action="store_true", help="only print what is there")
    given = parser.parse_args()
    torch.set_num_threads(1)
    cells: list[dict[str, Any]] = json.loads(given.out.read_text())["cells"] if given.out.exists() else []
    for seed in () if given.table else given.seeds:
        for cell in STUDIES[given.study](seed, {(cell["what"], cell["seed"]) for cell in cells}):
            cells.append(cell)
            print(json.dumps(cell), flush=True)
            write(given.out, {"clients": {name: asdict(one) for name, one in CLIENTS.items()}, "cells": cells})
    print(table(cells))


if __name__ == "__main__":
    main()
