"""What each ingredient of `strongest` gives, on images and seeds that no reported table uses.

    python benchmarks/ingredients.py floors --data cifar10.npz --out docs/results/floors.json
    python benchmarks/ingredients.py phases --data cifar10.npz --out docs/results/phases.json
    python benchmarks/ingredients.py models --data cifar10.npz --out docs/results/models.json

``floors``: how badly each replay explains the update even when it is given the private images themselves: the mismatch
below which no attack with that replay can tell right from wrong. A diagnosis by someone who owns the data; no
attack sees it. ``phases``: PSNR after a second phase of 60 iterations, one ingredient changed at a time. ``models``:
PSNR of ``strongest`` in short on other models and images, with and without BatchNorm statistics, restarts and rollout.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from halves import ROWS, rows_of

from undelta.attacker.attacks.strongest import Composite, strongest
from undelta.attacker.candidates import FALLING
from undelta.attacker.combine import Consensus, altered, method_of
from undelta.attacker.distances import mismatch
from undelta.attacker.method import GradientMatching
from undelta.attacker.optimizers import Adam, cosine_decay, three_step
from undelta.attacker.paths import LearnedPosition, QuadraticPath, StraightPath, UnevenSteps
from undelta.attacker.priors import TotalVariation
from undelta.attacker.replay import ReplayPart
from undelta.attacker.replays import CoarseRollout, FullRollout, InterpolatedEpoch, OneStep
from undelta.attacker.weights import Ramps, Uniform
from undelta.client.disclose import disclose
from undelta.client.scenario import Scenario
from undelta.evaluation.score import score
from undelta.files import write_bytes
from undelta.seeding import stream
from undelta.trials.record import versions

TUNING_SEEDS = (100, 101, 102, 103)
CASES = {"N=16 E=10 B=4": (16, 10, 4), "N=50 E=20 B=5": (50, 20, 5)}
REPLAYS: dict[str, ReplayPart] = {
    "one gradient at θ": OneStep(),
    "AWA's epoch at θ": InterpolatedEpoch(),
    "one gradient at the midpoint": OneStep(position=0.5),
    "AWA's epoch at the midpoint": InterpolatedEpoch(position=0.5),
    "straight line, 3 nodes": StraightPath(nodes=3, middle=True),
    "coarse rollout, 3 macro-steps": CoarseRollout(steps=3),
    "coarse rollout, 5 macro-steps": CoarseRollout(steps=5),
    "coarse rollout, 10 macro-steps": CoarseRollout(steps=10),
    "coarse rollout, 20 macro-steps": CoarseRollout(steps=20),
    "full rollout, random orders": FullRollout(),
}

FLAT = strongest().candidates[0]
BASE = replace(strongest().rollout, weights=FALLING, priors=FLAT.priors)
PHASES: dict[str, dict[str, Any]] = {
    "strongest's second phase": {},
    "uniform weights": {"weights": Uniform()},
    "3-step decay instead of cosine": {"schedule": three_step},
    "learning rate 0.2": {"optimizer": Adam(learning_rate=0.2)},
    "TV 0.003": {"priors": (TotalVariation(weight=0.003),)},
    "TV 0.03": {"priors": (TotalVariation(weight=0.03),)},
    "rising ramps (to 10)": {"weights": Ramps(conv=10.0, norm=10.0, linear=10.0)},
    "signed steps": {"signed": True, "optimizer": Adam(learning_rate=0.1)},
    "3 macro-steps": {"replay": CoarseRollout(steps=3)},
    "stay at the midpoint": {"replay": OneStep(position=0.5)},
    "learned position (SME)": {"replay": LearnedPosition()},
    "straight line, 4 nodes": {"replay": StraightPath(nodes=4, middle=True)},
    "uneven steps, 4 nodes": {"replay": UnevenSteps(nodes=4), "path_rate": 0.01},
    "quadratic path, 3 nodes": {"replay": QuadraticPath(nodes=3), "path_rate": 1e-4},
}


def scenario(case: str, data: str) -> Scenario:
    samples, epochs, batches = CASES[case]
    return Scenario(data=data, num_samples=samples, epochs=epochs, batches=batches, learning_rate=0.004, model="cnn")


def floors(data: str, seeds: tuple[int, ...]) -> list[dict[str, Any]]:
    cells = []
    for case in CASES:
        for seed in seeds:
            private = scenario(case, data).draw(seed)
            observation = disclose(private, scenario(case, data), seed=seed)
            inputs = observation.image.normalize(private.images)
            for name, part in REPLAYS.items():
                replay = part(observation, stream("attacker", seed))
                update = replay(inputs, private.labels).update
                cells.append({"case": case, "seed": seed, "name": name, "value": mismatch(update, replay.target)})
    return cells


def phases(data: str, seeds: tuple[int, ...]) -> list[dict[str, Any]]:
    cells = []
    case = "N=16 E=10 B=4"
    for seed in seeds:
        private = scenario(case, data).draw(seed)
        observation = disclose(private, scenario(case, data), seed=seed)
        first = altered(strongest().midpoint, priors=FLAT.priors)(observation, seed=seed)
        cells.append({"case": case, "seed": seed, "name": "first phase alone", "value": score(first, private).psnr})
        for name, changes in PHASES.items():
            settings = {"replay": CoarseRollout(steps=5), "steps": 60, "schedule": cosine_decay, **changes}
            method: GradientMatching = replace(BASE, **settings)
            result = method(observation, seed=seed, start=first)
            value = score(result, private).psnr
            cells.append({"case": case, "seed": seed, "name": name, "value": value, "mismatch": result.mismatch})
            print(f"seed {seed} {name}: {value:.2f}", flush=True)
    return cells


FULL_WIDTH = "ResNet-8, full width, 16 x 16, BatchNorm eval"
MODELS: dict[str, dict[str, Any]] = {
    "CNN, photographs": {"data": "photos", "model": "cnn", "learning_rate": 0.004},
    "LeNet": {"model": "lenet", "learning_rate": 0.02},
    "ResNet-8, BatchNorm train": {"model": "resnet8", "model_arguments": {"width": 16}, "learning_rate": 0.004},
    "ResNet-8, BatchNorm eval": {
        "model": "resnet8",
        "model_arguments": {"width": 16},
        "learning_rate": 0.004,
        "norm_mode": "eval",
    },
    "ResNet-18, BatchNorm train": {"model": "resnet18", "model_arguments": {"width": 8}, "learning_rate": 0.004},
    FULL_WIDTH: {"model": "resnet8", "learning_rate": 8e-4, "norm_mode": "eval", "image_size": 16},
}
SHORT: dict[str, Any] = {"steps": 100, "rollout_steps": 40}


def consensus(members: int) -> Composite:
    """The first phase as a group of runs, pulled to their mean; its best member goes on."""
    base = strongest(**SHORT)
    return replace(base, midpoint=Consensus(attack=method_of(base.midpoint), group=members, consistency=0.01))


FOR_FULL_WIDTH = 4  # of the variants, the first; that net is slow
VARIANTS: dict[str, Composite] = {
    "strongest": strongest(**SHORT),
    "flat weights only": strongest(**SHORT, weights="flat"),
    "rising weights only": strongest(**SHORT, weights="rising"),
    "a rollout even of straight paths": strongest(**SHORT, macro_steps=5),
    "without the rollout": strongest(steps=200, rollout_steps=1),
    "no BatchNorm prior": strongest(**SHORT, bn=0.0),
    "BatchNorm prior 0.01": strongest(**SHORT, bn=0.01),
    "the server's statistics": strongest(**SHORT, bn_source="server"),
    "TV 0.1": strongest(**SHORT, tv=0.1),
    "best of 3 restarts": strongest(**SHORT, restarts=3),
    "consensus of 3 runs": consensus(3),
}


def models(data: str, seeds: tuple[int, ...]) -> list[dict[str, Any]]:
    cells = []
    for case, fields in MODELS.items():
        scenario = Scenario(**{"data": data, "num_samples": 8, "epochs": 4, "batches": 2, "image_size": 32, **fields})
        for seed in seeds:
            private = scenario.draw(seed)
            observation = disclose(private, scenario, seed=seed)
            for name, attack in list(VARIANTS.items())[: FOR_FULL_WIDTH if case == FULL_WIDTH else None]:
                result = attack(observation, seed=seed)
                value = score(result, private).psnr
                cells.append({"case": case, "seed": seed, "name": name, "value": value, "mismatch": result.mismatch})
                print(f"{case}, seed {seed}, {name}: {value:.2f}", flush=True)
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("floors", "phases", "models"))
    parser.add_argument("--data", required=True)
    parser.add_argument("--rows", choices=ROWS, default="all", help="which images of a .npz")
    parser.add_argument("--seeds", type=int, nargs="+", default=TUNING_SEEDS)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    study = {"floors": floors, "phases": phases, "models": models}[options.what]
    cells = study(rows_of(options.data, options.rows), tuple(options.seeds))
    content = {
        "data": Path(options.data).name,
        "rows": options.rows,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "cells": cells,
    }
    write_bytes(options.out, json.dumps(content, indent=1).encode())
    print(table(cells))


def table(cells: list[dict[str, Any]]) -> str:
    cases = list(dict.fromkeys(cell["case"] for cell in cells))
    lines = ["| | " + " | ".join(cases) + " |", "|---|" + "---|" * len(cases)]
    for name in dict.fromkeys(cell["name"] for cell in cells):
        row = []
        for case in cases:
            values = [cell["value"] for cell in cells if (cell["case"], cell["name"]) == (case, name)]
            if not values:
                row.append("")
                continue
            digits = 4 if max(values) < 2 else 2
            spread = f" ({min(values):.{digits}f} to {max(values):.{digits}f})" if len(values) > 1 else ""
            row.append(f"{statistics.mean(values):.{digits}f}{spread}")
        lines.append(f"| {name} | " + " | ".join(row) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
