"""One image, one step: the setting of DLG and iDLG. Label accuracy, and how often the image is recovered.

python benchmarks/single_image.py --data cifar10.npz --out docs/results/single_image.json
"""

from __future__ import annotations

import argparse
import datetime
import json
from pathlib import Path
from typing import Any

import torch

from undelta.attacker.attacks import dlg, idlg
from undelta.attacker.labels import LABELS
from undelta.client.disclose import disclose
from undelta.client.scenario import Scenario
from undelta.evaluation.score import score
from undelta.files import write_bytes
from undelta.seeding import stream
from undelta.trials.record import versions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--size", type=int, default=16)
    parser.add_argument("--label-trials", type=int, default=100)
    parser.add_argument("--image-trials", type=int, default=20)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    scenario = Scenario(
        data=options.data,
        image_size=options.size,
        num_samples=1,
        epochs=1,
        batches=1,
        learning_rate=1.0,
        model="lenet",
        grant_labels=False,
    )
    hits = 0
    for trial in range(options.label_trials):
        private = scenario.draw(trial)
        observation = disclose(private, scenario, seed=trial)
        hits += int(LABELS["idlg"](observation, stream("attacker", trial))[0]) == int(private.labels[0])
    content: dict[str, Any] = {
        "data": Path(options.data).name,
        "size": options.size,
        "steps": options.steps,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "idlg_label_accuracy": hits / options.label_trials,
        "label_trials": options.label_trials,
    }
    print(f"iDLG labels: {hits} of {options.label_trials}")
    for name, attack in (("dlg", dlg(steps=options.steps)), ("idlg", idlg(steps=options.steps))):
        rows = []
        for trial in range(options.image_trials):
            private = scenario.draw(trial)
            result = attack(disclose(private, scenario, seed=trial), seed=trial)
            label = int(result.labels[0]) == int(private.labels[0])
            rows.append({"seed": trial, "psnr": score(result, private).psnr, "label": label, "status": result.status})
        content[name] = rows
        good = sum(row["psnr"] > 30 for row in rows)
        print(f"{name}: PSNR > 30 dB in {good} of {len(rows)}, label right in {sum(row['label'] for row in rows)}")
        write_bytes(options.out, json.dumps(content, indent=1).encode())


if __name__ == "__main__":
    main()
