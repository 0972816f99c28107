"""What an iteration on a rolled-out path costs for each of its steps, with less and with more memory.

    python benchmarks/rollouts.py --out docs/results/rollouts.json [--rounds 3]

A plain training step on the same images is the unit of time, measured in turn. In brackets: how many tapes are kept,
and how far apart the copies of the parameters are.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from workloads import Work, alternating, observe, ours, plain, write

from undelta.attacker.method import GradientMatching
from undelta.attacker.replays import CoarseRollout
from undelta.engine import MEMORY, Network, Room, Step

WORKS = (
    Work("cnn", 32, 50, epochs=20),
    Work("resnet18", 64, 8, "eval", epochs=20, stem="imagenet"),
)
STEPS = (5, 20)
LIMITS = {"0.5 GB": MEMORY // 4, "1 GB": MEMORY // 2, "2 GB": MEMORY, "no limit": 2**40}
PLAIN = "plain step"


def cell(work: Work, count: int, rounds: int) -> dict[str, Any]:
    observation = observe(work)
    images = torch.zeros(work.samples, *observation.image.shape)
    network = Network(observation.model(), observation.training)
    active, resting = network.active(observation.image.shape), network.resting(observation.image.shape)
    rooms = {}
    for name, limit in LIMITS.items():
        network.memory = limit
        rooms[name] = asdict(Room.of(network, [Step(images, torch.zeros(work.samples), 0.1)] * count))
    attack = GradientMatching(replay=CoarseRollout(steps=count), steps=100)
    functions: dict[str, Callable[[], object]] = {PLAIN: plain(observation)}
    functions |= {name: ours(observation, attack, memory=limit) for name, limit in LIMITS.items()}
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _, function in alternating(functions, 2):
        function()
    for name, function in alternating(functions, rounds):
        began = time.perf_counter()
        function()
        seconds[name].append(time.perf_counter() - began)
    found = {"name": work.name, "steps": count, "rooms": rooms, "seconds": seconds}
    return {**found, "active_mb": work.samples * active / 2**20, "resting_mb": work.samples * resting / 2**20}


def table(cells: list[dict[str, Any]]) -> str:
    lines = [
        f"| work | steps | a tape in use, at rest (MB) | {' | '.join(LIMITS)} |",
        "|---|---|---|" + "---|" * len(LIMITS),
    ]
    for one in cells:
        middle = {name: statistics.median(values) for name, values in one["seconds"].items()}
        unit = one["steps"] * middle.pop(PLAIN)
        costs = " | ".join(
            f"{value / unit:.2f} ({min(one['steps'], one['rooms'][name]['tapes'])}, {one['rooms'][name]['points']})"
            for name, value in middle.items()
        )
        size = f"{one['active_mb']:.0f}, {one['resting_mb']:.0f}"
        lines.append(f"| {one['name']} | {one['steps']} | {size} | {costs} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--table", action="store_true", help="print the committed table, run nothing")
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(options.out.read_text())["cells"]))
        return
    torch.set_num_threads(1)
    cells = [cell(work, count, options.rounds) for work in WORKS for count in STEPS]
    write(options.out, {"cells": cells})
    print(table(cells))


if __name__ == "__main__":
    main()
