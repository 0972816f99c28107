"""What `strongest` recovers from clients that train as real ones do, and what it costs not to know how they did.

    python benchmarks/clients.py --out docs/results/clients.json --seeds 0 1
    python benchmarks/clients.py --scenario demo --out docs/results/clients-demo.json --seeds 0

Four photographs of 16 x 16 pixels on a small CNN, or the scenario of `undelta demo`; every client moves about as far as
plain SGD does. An attacker who does not know the optimizer takes the client for plain SGD with the same learning rate.
A run that was interrupted resumes.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from workloads import write

from undelta import Scenario, disclose, score
from undelta.attacker.attacks import strongest
from undelta.observation.consistency import consistency
from undelta.training import LocalTraining, spelled

PHOTOS: dict[str, Any] = {"data": "photos", "model": "cnn"}
SCENARIOS: dict[str, tuple[Scenario, float, float]] = {  # with the learning rates of momentum and of AdamW
    "small": (
        Scenario(
            **PHOTOS,
            image_size=16,
            num_samples=4,
            model_arguments={"width": 8, "hidden": 32},
            epochs=5,
            batches=2,
            learning_rate=0.01,
        ),
        0.0025,
        5e-4,
    ),
    "demo": (Scenario(**PHOTOS, image_size=32, num_samples=8, epochs=10, batches=4, learning_rate=0.004), 0.0005, 3e-4),
}
UNKNOWN = ("momentum 0.9", "weight decay 1e-4", "AdamW")


def clients_of(name: str) -> dict[str, Scenario]:
    plain, slow, adam = SCENARIOS[name]
    return {
        "plain SGD": plain,
        "momentum 0.9": replace(plain, momentum=0.9, learning_rate=slow),
        "weight decay 1e-4": replace(plain, weight_decay=1e-4),
        "clipped to 1": replace(plain, clip_norm=1.0),
        "flips and crops": replace(plain, flip=True, crop=2),
        "AdamW": replace(plain, optimizer="adamw", weight_decay=0.01, learning_rate=adam),
    }


def attacked(scenario: Scenario, *, known: bool, seed: int, steps: int, rollout_steps: int) -> dict[str, Any]:
    """One attack on one client."""
    private = scenario.draw(seed)
    observation = disclose(private, scenario, seed=seed)
    if not known:
        told = {key: getattr(scenario, key) for key in ("epochs", "batches", "learning_rate")}
        observation = replace(observation, training=LocalTraining(**told))
    began = time.perf_counter()
    found = strongest(steps=steps, rollout_steps=rollout_steps)(observation, seed=seed)
    result = score(found, private, observation=observation)
    return {
        "psnr": result.psnr,
        "ssim": result.ssim,
        "mismatch": found.mismatch,
        "seconds": time.perf_counter() - began,
        "notes": consistency(observation),
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--scenario", choices=SCENARIOS, default="small")
    options.add_argument("--seeds", type=int, nargs="+", default=[0])
    options.add_argument("--steps", type=int, default=100)
    options.add_argument("--rollout-steps", type=int, default=100)
    given = options.parse_args()
    torch.set_num_threads(1)
    budget = {"steps": given.steps, "rollout_steps": given.rollout_steps}
    cells: list[dict[str, Any]] = []
    if given.out.exists():
        cells = json.loads(given.out.read_text())["cells"]
    clients = clients_of(given.scenario)
    wanted = [(client, known) for client in clients for known in ((True, False) if client in UNKNOWN else (True,))]
    for seed in given.seeds:
        for client, known in wanted:
            if any((cell["client"], cell["known"], cell["seed"]) == (client, known, seed) for cell in cells):
                continue
            found = attacked(clients[client], known=known, seed=seed, **budget)
            cells.append({"client": client, "known": known, "seed": seed, **found})
            print(json.dumps(cells[-1]), flush=True)
            about = {name: spelled(scenario) for name, scenario in clients.items()}
            write(given.out, {"clients": about, "attack": {"name": "strongest", **budget}, "cells": cells})


if __name__ == "__main__":
    main()
