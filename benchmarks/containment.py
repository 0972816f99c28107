"""How sharp the span test is: the share outside of the update's span, of images that took part and of others.

    python benchmarks/containment.py --photos imagenet-samples --cifar cifar10-1000.npz --out containment.json

Labels, learning rate and epochs are withheld from the test. Others are images of the same source that no client has.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from undelta.attacker.span import contains
from undelta.client.disclose import disclose
from undelta.client.scenario import Scenario
from undelta.files import write_bytes
from undelta.observation.withhold import without, without_labels
from undelta.trials.record import versions

RESNET: dict[str, Any] = {
    "image_size": 64,
    "model": "resnet18",
    "model_arguments": {"stem": "imagenet"},
    "epochs": 8,
    "learning_rate": 1e-4,
}
CNN: dict[str, Any] = {"model": "cnn", "epochs": 10, "batches": 4, "learning_rate": 0.004}
CASES: dict[str, dict[str, Any]] = {
    "ResNet-18, eval, N=4, B=1": {**RESNET, "num_samples": 4, "batches": 1, "norm_mode": "eval"},
    "ResNet-18, eval, N=8, B=4": {**RESNET, "num_samples": 8, "batches": 4, "norm_mode": "eval"},
    "ResNet-18, train, N=8, B=2": {**RESNET, "num_samples": 8, "batches": 2, "norm_mode": "train"},
    "CNN, N=8, B=4": {**CNN, "num_samples": 8},
    "CNN, N=50, B=5": {**CNN, "num_samples": 50, "batches": 5, "epochs": 20},
}
REFERENCES, STRANGERS = 60, 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", required=True)
    parser.add_argument("--cifar", required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    cells = []
    for name, fields in CASES.items():
        scenario = Scenario(data=options.photos if "ResNet" in name else options.cifar, **fields)
        for seed in options.seeds:
            cells.append({"case": name, "seed": seed, **measure(scenario, seed)})
            print(cells[-1], flush=True)
    content = {"versions": versions(), "references": REFERENCES, "strangers": STRANGERS, "cells": cells}
    write_bytes(options.out, json.dumps(content, indent=1).encode())


def measure(scenario: Scenario, seed: int) -> dict[str, Any]:
    private = scenario.draw(seed)
    others = scenario.draw_held_out(seed, REFERENCES + STRANGERS).images
    seen = without(without_labels(disclose(private, scenario, seed=seed)), "epochs", "learning_rate")
    if scenario.norm_mode == "train":  # the client's statistics are read off its buffers, for which E must be known
        seen = replace(disclose(private, scenario, seed=seed), labels=None)
    found = contains(seen, torch.cat([private.images, others[:STRANGERS]]), others[STRANGERS:])
    inside, outside = found[: len(private)], found[len(private) :]
    return {
        "layers": len(inside[0].layers),
        "took_part": statistics.median(one.outside for one in inside),
        "took_part_most": max(one.outside for one in inside),
        "others": statistics.median(one.outside for one in outside),
        "others_least": min(one.outside for one in outside),
        "found": sum(one.p_value <= 1 / (REFERENCES + 1) for one in inside) / len(inside),
        "false": sum(one.p_value <= 1 / (REFERENCES + 1) for one in outside) / len(outside),
    }


if __name__ == "__main__":
    main()
