"""What a coarse rollout is worth on short and long paths, and whether random images like photographs tell.

    python benchmarks/overshoot.py --out docs/results/overshoot.json --seeds 400 401 402 403 404 405

For each path and draw: the mismatch of replays at the private images, and by how much five and ten macro-steps of
random images with a photograph's spectrum disagree, which is all that `strongest` sees of this.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rivals import LONGEST
from workloads import write

from undelta import Scenario, disclose
from undelta.attacker.distances import mismatch
from undelta.attacker.reconstruction import Reconstruction
from undelta.attacker.replay import ReplayPart, prepare
from undelta.attacker.replays import CoarseRollout, FullRollout, OneStep
from undelta.attacker.resolution import MACRO_STEPS, overshot
from undelta.seeding import stream

CASES = {
    "one epoch": replace(LONGEST, epochs=1, batches=4),
    "an eighth": replace(LONGEST, epochs=5, learning_rate=0.01),
    "an eighth, with noise": replace(
        LONGEST, epochs=5, learning_rate=0.01, defenses=({"defense": "noise", "scale": 1e-4},)
    ),
    "half": replace(LONGEST, epochs=10),
    "longest": LONGEST,
}
REPLAYS: dict[str, ReplayPart] = {
    "midpoint": OneStep(position=0.5),
    **{f"{count} steps": CoarseRollout(steps=count) for count in MACRO_STEPS},
    "full": FullRollout(),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[400, 401, 402, 403, 404, 405])
    parser.add_argument("--table", action="store_true", help="only print what is there")
    given = parser.parse_args()
    if not given.table:
        torch.set_num_threads(1)
        cells = [measured(case, seed) for case in CASES for seed in given.seeds]
        write(given.out, {"cells": cells})
    print(table(json.loads(given.out.read_text())["cells"]))


def measured(case: str, seed: int) -> dict[str, Any]:
    scenario: Scenario = CASES[case]
    private = scenario.draw(seed)
    observation = disclose(private, scenario, seed=seed)
    truth = Reconstruction(
        images=private.images, labels=private.labels, mismatch=0.0, iterations=0, seconds=0.0, status="completed"
    )
    floors = {}
    for name, part in REPLAYS.items():
        replay = prepare(part, observation, stream("overshoot"))
        update = replay(observation.image.normalize(private.images), private.labels).update
        floors[name] = mismatch(update, replay.target)
    return {"case": case, "seed": seed, "floors": floors, "overshot": overshot(observation, truth)}


def table(cells: list[dict[str, Any]]) -> str:
    lines = [f"| path | {' | '.join(REPLAYS)} | of random images |", "|---" * (len(REPLAYS) + 2) + "|"]
    for case in CASES:
        own = [cell for cell in cells if cell["case"] == case]
        columns = [[cell["floors"][name] for cell in own] for name in REPLAYS] + [[cell["overshot"] for cell in own]]
        shown = " | ".join(f"{min(values):.3f} to {max(values):.3f}" for values in columns)
        lines.append(f"| {case} | {shown} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
