"""Whether an attack fails for lack of information or for lack of a way there: its objective, minimized from the truth.

    python benchmarks/basins.py sme-gray --data fashion-mnist-1000.npz --rows odd --out docs/results/basins.json

`strongest` attacks a client. Its last objective is then minimized further, once from its own images and once from the
private ones, with the same iterations. If the second run ends with a lower loss, the objective prefers images near the
truth, and the attack did not find them. Only somebody who has the private images can do this: no attack sees it.
Writes a record as soon as it is done, and skips what the file already has.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from attacks import CASES
from halves import ROWS, rows_of

from undelta import disclose, score
from undelta.attacker.attacks import ATTACKS
from undelta.attacker.method import GradientMatching
from undelta.attacker.objective import Objective, Problem, decode
from undelta.attacker.optimizers import Adam, cosine_decay
from undelta.attacker.reconstruction import Reconstruction
from undelta.client.private import Private
from undelta.client.scenario import Scenario
from undelta.files import write_bytes
from undelta.seeding import stream

STEPS, RATE = 60, 0.1
STARTS = {
    "attack": "where the attack ended",
    "further": "further from there",
    "truth": "from the private images",
    "private": "at the private images",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--data", required=True)
    parser.add_argument("--rows", choices=ROWS, default="all", help="which images of a .npz")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    scenario = Scenario(data=rows_of(options.data, options.rows), **CASES[options.case])
    for seed in options.seeds:
        what = {"case": options.case, "data": Path(options.data).name, "rows": options.rows, "seed": seed}
        if not any(what.items() <= one.items() for one in load(options.out)):
            records = [*load(options.out), {**what, **measure(scenario, seed)}]
            write_bytes(options.out, json.dumps({"records": records}, indent=1).encode())
    print(table(load(options.out)))


def load(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text())["records"] if path.exists() else []


def measure(scenario: Scenario, seed: int) -> dict[str, Any]:
    private = scenario.draw(seed=seed)
    observation = disclose(private, scenario, seed=seed)
    found = ATTACKS["strongest"]()(observation, seed=seed)
    assert found.objective is not None
    parts = decode(found.objective)
    same = {field.name: getattr(parts, field.name) for field in fields(Objective)}
    descent = GradientMatching(**same, optimizer=Adam(learning_rate=RATE), schedule=cosine_decay, steps=STEPS)
    truth = replace(found, images=private.images, labels=private.labels, variables={})
    at_truth = Problem(parts, observation, stream("floor")).at(private.images, private.labels, found.learned)
    return {
        "private": {"loss": at_truth.loss, "mismatch": at_truth.mismatch},
        "attack": shown(found, private),
        "further": shown(descent(observation, seed=seed, start=found), private),
        "truth": shown(descent(observation, seed=seed, start=truth), private),
        "steps": STEPS,
        "rate": RATE,
        "replay": found.objective["replay"],
        "torch": torch.__version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def shown(result: Reconstruction, private: Private) -> dict[str, float]:
    return {"loss": sum(result.terms.values()), "mismatch": result.mismatch, "psnr": score(result, private).psnr}


def table(records: list[Mapping[str, Any]]) -> str:
    lines = ["| client | images | loss | mismatch | PSNR (dB) | seeds |", "|---|---|---|---|---|---|"]
    for case in dict.fromkeys(record["case"] for record in records):
        own = [record for record in records if record["case"] == case]
        for start, words in STARTS.items():
            loss, mismatch = (statistics.mean(record[start][key] for record in own) for key in ("loss", "mismatch"))
            psnr = f"{statistics.mean(record[start]['psnr'] for record in own):.2f}" if start != "private" else ""
            lines.append(f"| {case} | {words} | {loss:.4f} | {mismatch:.4f} | {psnr} | {len(own)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
