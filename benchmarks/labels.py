"""How many labels each inference rule gets right, over class distributions and lengths of training.

python benchmarks/labels.py --data cifar10.npz --trials 20 --out docs/results/labels.json
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from undelta.attacker.labels import LABELS
from undelta.client.datasets import open_dataset
from undelta.client.disclose import disclose
from undelta.client.private import Private
from undelta.client.scenario import Scenario
from undelta.errors import MissingKnowledge
from undelta.files import write_bytes
from undelta.seeding import stream
from undelta.trials.record import versions

RULES = ("yin", "geng", "dlfa", "bias")
# classes -> samples of each, for ten classes
DISTRIBUTIONS: dict[str, list[int]] = {
    "distinct (8 of 10 classes)": [1, 1, 1, 1, 1, 1, 1, 1, 0, 0],
    "balanced (20)": [2] * 10,
    "skewed (16)": [8, 4, 2, 1, 1, 0, 0, 0, 0, 0],
    "all equal (8)": [8, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    "N > classes (40)": [10, 8, 6, 5, 4, 3, 2, 1, 1, 0],
}
TRAININGS = {"E=1 B=1": (1, 1), "E=10 B=4": (10, 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="a source with ten classes")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dataset = open_dataset(options.data)
    cells: list[dict[str, Any]] = []
    for training, (epochs, batches) in TRAININGS.items():
        for title, counts in DISTRIBUTIONS.items():
            rates: dict[str, list[float]] = {rule: [] for rule in RULES}
            for trial in range(options.trials):
                generator = stream("benchmark", "labels", trial)
                order = torch.randperm(10, generator=generator)  # which class is the frequent one
                indices = []
                for label, count in zip(order.tolist(), counts, strict=True):
                    members = torch.where(dataset.labels == label)[0]
                    indices += members[torch.randperm(len(members), generator=generator)[:count]].tolist()
                private = Private(images=dataset.draw(indices, 32), labels=dataset.labels[indices])
                scenario = Scenario(
                    data=options.data, num_samples=len(indices), epochs=epochs, batches=batches, grant_labels=False
                )
                observation = disclose(private, scenario, seed=trial)
                for rule in RULES:
                    try:
                        guess = LABELS[rule](observation, stream("attacker", "labels", trial))
                    except MissingKnowledge:
                        continue
                    common = Counter(guess.tolist()) & Counter(private.labels.tolist())
                    rates[rule].append(common.total() / len(private))
            for rule in RULES:
                value = statistics.mean(rates[rule]) if rates[rule] else None
                cells.append({"training": training, "distribution": title, "rule": rule, "accuracy": value})
    content = {
        "data": Path(options.data).name,
        "model": "cnn",
        "trials": options.trials,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "cells": cells,
    }
    write_bytes(options.out, json.dumps(content, indent=1).encode())
    print(table(cells))


def table(cells: list[dict[str, Any]]) -> str:
    lines = ["| training | labels | " + " | ".join(RULES) + " |", "|---|---|" + "---|" * len(RULES)]
    for training in TRAININGS:
        for title in DISTRIBUTIONS:
            row = [
                next(
                    cell["accuracy"]
                    for cell in cells
                    if (cell["training"], cell["distribution"], cell["rule"]) == (training, title, rule)
                )
                for rule in RULES
            ]
            shown = ["refuses" if value is None else f"{100 * value:.0f} %" for value in row]
            lines.append(f"| {training} | {title} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
