"""How far a trial of an audit has come: metrics of the iterates in its last checkpoint, while it runs or after a kill.

    python benchmarks/unfinished.py paper-cell --out docs/results/paper-cell.json

For runs that take days: the attack goes on meanwhile, and sees nothing of this. Beside them the metrics of images that
have nothing but the mean color of each original.
"""

from __future__ import annotations

import argparse
import datetime
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from undelta.attacker.labels import disclosed
from undelta.attacker.reconstruction import Reconstruction
from undelta.client.disclose import disclose
from undelta.client.private import Private
from undelta.evaluation.score import score
from undelta.files import write_bytes
from undelta.seeding import stream
from undelta.trials.directory import CHECKPOINT, RunDirectory
from undelta.trials.record import describe_scenario, versions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    store = RunDirectory(options.directory)
    keys = [path.parent.name for path in sorted(options.directory.glob(f"trials/*/{CHECKPOINT}"))]
    write_bytes(options.out, json.dumps([so_far(store, key) for key in keys], indent=1).encode())


def so_far(store: RunDirectory, key: str) -> dict[str, Any]:
    """What a record would say of the last checkpoint, with a curve that ends there."""
    trial = store.trial(key)
    state = torch.load(store.folder(key) / CHECKPOINT, map_location="cpu", weights_only=True)["state"]
    private = trial.scenario.draw(trial.seed)
    # Dummy images have the granted labels in the order that the attacker drew first; one step discloses the same ones.
    single = replace(trial.scenario, epochs=1, batches=1)
    labels = disclosed(disclose(private, single, seed=trial.seed), stream("attacker", trial.seed, 0, 0))
    curve = []
    for iteration, seconds, images in state["iterates"]:
        curve.append({"iteration": iteration, "seconds": seconds, **means(images / 255, labels, private)})
        print(curve[-1], flush=True)
    colors = private.images.mean((2, 3), keepdim=True).expand_as(private.images)
    scenario = describe_scenario(trial.scenario)
    return {
        "attack": trial.attack,
        "arguments": dict(trial.arguments),
        "scenario": {**scenario, "data": Path(scenario["data"]).name},
        "seed": trial.seed,
        "status": "unfinished",
        "iterations": state["iteration"],
        "seconds": state["elapsed"],
        "mismatch": [list(moment) for moment in state["history"][::10]],
        "versions": versions(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "curve": curve,
        "mean_colors": means(colors, private.labels, private),
    }


def means(images: Tensor, labels: Tensor, private: Private) -> dict[str, float | None]:
    """The metrics that the paper prints; what an attack returns has other fields that they do not look at."""
    guess = Reconstruction(images=images, labels=labels, mismatch=0.0, iterations=0, seconds=0.0, status="interrupted")
    found = score(guess, private)
    return {"psnr": found.psnr, "ssim": found.ssim, "lpips": found.lpips}


if __name__ == "__main__":
    main()
