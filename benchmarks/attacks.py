"""All attacks side by side on the same updates: PSNR, SSIM, LPIPS and time over seeds.

    python benchmarks/attacks.py CASE --data cifar10.npz --out docs/results/CASE.json [--only sme strongest]

Writes one record per run as soon as it is done and skips what the file already has, so it may be stopped and resumed.
``--table`` prints the committed table from the file without running anything; runs of the files after ``--beside``
come in place of its own.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from halves import ROWS, rows_of

from undelta.client.private import Private
from undelta.client.scenario import Scenario
from undelta.evaluation.score import score
from undelta.files import write_bytes
from undelta.trials.record import SCHEMA
from undelta.trials.trial import Outcome, Trial, run

SURROGATE: dict[str, Any] = {"num_samples": 50, "epochs": 20, "batches": 5, "learning_rate": 0.004}
CASES: dict[str, dict[str, Any]] = {
    # SME's own configurations: heads of 100 (CIFAR-100) and 62 (FEMNIST) classes, whatever the images are.
    "sme-color": {**SURROGATE, "model": "cnn", "classes": 100},
    "sme-gray": {**SURROGATE, "model": "cnn28", "classes": 62},
    "short": {"num_samples": 16, "epochs": 10, "batches": 4, "learning_rate": 0.004, "model": "cnn"},
    "long": {"num_samples": 50, "epochs": 20, "batches": 5, "learning_rate": 0.004, "model": "cnn"},
    "resnet18": {
        "num_samples": 4,
        "epochs": 8,
        "batches": 1,
        "learning_rate": 1e-4,
        "model": "resnet18",
        "model_arguments": {"stem": "imagenet"},
        "classes": 1000,
        "image_size": 64,
        "norm_mode": "eval",
    },
    "weights": {
        "num_samples": 4,
        "epochs": 8,
        "batches": 1,
        "learning_rate": 1e-4,
        "model": "resnet18",
        "model_arguments": {"width": 8},
        "norm_mode": "eval",
    },
}

KNOWN = {"labels": "disclosed"}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "sme": ("sme", {"steps": 1000}),
    "nl_sme": ("nl_sme", {"steps": 1000}),
    "pi_sme": ("pi_sme", {"steps": 333}),
    "fedleak": ("fedleak", {"steps": 500}),
    "strongest": ("strongest", {}),
    "strongest, in sme's time": ("strongest", {"rollout_steps": 120}),
    "strongest, quick": (
        "strongest",
        {"steps": 90, "rollout_steps": 15, "rollout_rate": 0.15, "macro_steps": 3, "weights": "flat"},
    ),
    "ig": ("ig", {"steps": 1000}),
    "sapag": ("sapag", {"steps": 1000}),
    "geng_gradient": ("geng_gradient", {"steps": 1000, **KNOWN}),
    "awa": ("awa", {"steps": 1000}),
    "awa, approximation": ("awa", {"setting": "paper", "steps": 1000, "form": "approximation"}),
    "awa, linear": ("awa", {"setting": "paper", "steps": 1000, "form": "linear"}),
    "awa, enhanced": ("awa", {"setting": "paper", "steps": 1000}),
    "dlg": ("dlg", {"steps": 20}),
    "cpl": ("cpl", {"steps": 20}),
    "idlg": ("idlg", {"steps": 20, **KNOWN}),
    "gradinversion": ("gradinversion", {"steps": 250, "group": 4, **KNOWN}),
    "geng_path": ("geng_path", {"steps": 100, **KNOWN}),
    "agic": ("agic", {"steps": 100}),
    "idlg_fedavg": ("idlg_fedavg", {"steps": 100}),
    "dlfa": ("dlfa", {"steps": 100, **KNOWN}),
    # The paper's ablation, on a deep net: signed steps and a strong TV, as such nets need.
    "deep, approximation": (
        "awa",
        {"setting": "paper", "steps": 400, "form": "approximation", "signed": True, "tv": 0.1},
    ),
    "deep, linear": ("awa", {"setting": "paper", "steps": 400, "form": "linear", "signed": True, "tv": 0.1}),
    "deep, enhanced": ("awa", {"setting": "paper", "steps": 400, "signed": True, "tv": 0.1}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--data", default="photos")
    parser.add_argument("--rows", choices=ROWS, default="all", help="which images of a .npz")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", choices=RUNS, default=None)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--beside", type=Path, nargs="+", default=[])
    options = parser.parse_args()
    if not options.table:
        torch.set_num_threads(1)
        data = rows_of(options.data, options.rows)
        deep = options.case == "weights"
        names = options.only or [name for name in RUNS if name.startswith("deep") == deep]
        for seed in options.seeds:  # so that a run that is stopped has compared all attacks on some clients
            for name in names:
                measure(options.case, name, data, seed, options.out)
    found = [record for file in (options.out, *options.beside) for record in load(file)]
    records = list({(record["name"], record["seed"]): record for record in found}.values())
    print(table(records))
    means = {record["seed"]: record["label_mean"] for record in records if "label_mean" in record}
    if means:
        print(f"The mean of the private images that share a label: {statistics.mean(means.values()):.2f} dB.")


def load(path: Path) -> list[dict[str, Any]]:
    records = json.loads(path.read_text())["records"] if path.exists() else []
    return [{**record, "file": path.name} for record in records]


def label_mean(private: Private) -> float:
    """PSNR of each private image's stand-in, the mean of those that share its label: what their sum alone would tell.

    Images that are alone with their labels do not count.
    """
    values = []
    for images in (private.images[private.labels == label] for label in private.labels.unique()):
        if len(images) > 1:
            errors = (images - images.mean(0)).square().flatten(1).mean(1)
            values.extend((-10 * errors.log10()).tolist())
    return statistics.mean(values) if values else math.nan


def measure(case: str, name: str, data: str, seed: int, out: Path) -> None:
    if any(record["name"] == name and record["seed"] == seed for record in load(out)):
        return
    attack, arguments = RUNS[name]
    scenario = Scenario(data=data, **CASES[case])
    outcome = run(Trial(scenario=scenario, attack=attack, arguments=arguments, seed=seed))
    record = {**asdict(outcome.record), "name": name, "curve": curve(outcome)}
    if not math.isnan(known := label_mean(outcome.private)):
        record["label_mean"] = known
    record["scenario"]["data"] = Path(data).name  # where it lies on this machine is nobody's business
    record["history"] = record["history"][::10]
    for baseline in record["baselines"].values():
        baseline.pop("images", None)
    records = [{key: value for key, value in one.items() if key != "file"} for one in [*load(out), record]]
    write_bytes(out, json.dumps({"schema": SCHEMA, "case": case, "records": records}, indent=1).encode())
    print(f"{name} seed {seed}: {record['psnr']:.2f} dB in {record['seconds']:.0f} s", flush=True)


def curve(outcome: Outcome) -> list[tuple[float, float]]:
    """Seconds and PSNR of the saved iterates and the result, computed after the run; no attack ever sees it."""
    points = []
    for iterate in outcome.reconstruction.iterates:
        images = (iterate.images / 255).to(outcome.private.images)
        scored = score(replace(outcome.reconstruction, images=images), outcome.private)
        points.append((iterate.seconds, scored.psnr))
    return [*points, (outcome.reconstruction.seconds, outcome.score.psnr)]


def time_to(record: dict[str, Any], psnr: float) -> float | None:
    """The seconds until a run was, and stayed, at least this good."""
    late = [seconds for seconds, value in record["curve"] if value < psnr]
    return next((seconds for seconds, _ in record["curve"] if not late or seconds > late[-1]), None)


def table(records: list[dict[str, Any]]) -> str:
    lines = [
        "| attack | iterations | PSNR (dB) | SSIM | LPIPS | recovered | mismatch | floor | time | seeds |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    names = list(dict.fromkeys(record["name"] for record in records))
    unit = {setting(record): record["seconds"] for record in records if record["name"] == "sme"}
    for name in sorted(names, key=lambda name: -mean(records, name, "psnr")):
        rows = [record for record in records if record["name"] == name]
        spread = statistics.stdev([row["psnr"] for row in rows]) if len(rows) > 1 else 0.0
        # LPIPS without its weights, and the share recovered in the oldest records, are not known.
        lpips = "n/a" if any(row["lpips"] is None for row in rows) else f"{mean(records, name, 'lpips'):.3f}"
        recovered = "n/a"
        if all("fraction_recovered" in row for row in rows):
            recovered = f"{mean(records, name, 'fraction_recovered'):.2f}"
        floors = [row["floor"]["mismatch"] for row in rows if row.get("floor")]
        floor = f"{statistics.mean(floors):.3f}" if len(floors) == len(rows) else "n/a"
        times = [row["seconds"] / unit[setting(row)] for row in rows if setting(row) in unit]
        time = f"{statistics.mean(times):.2f}" if times else "n/a"
        lines.append(
            f"| {name} | {rows[0]['iterations']} | {mean(records, name, 'psnr'):.2f} ± {spread:.2f} "
            f"| {mean(records, name, 'ssim'):.3f} | {lpips} | {recovered} "
            f"| {mean(records, name, 'mismatch'):.3f} | {floor} | {time} | {len(rows)} |"
        )
    if "sme" in names:
        lines.append("")
    for name in (name for name in names if "sme" in names and name.startswith("strongest")):
        gains = [
            row["psnr"] - other["psnr"]
            for row in records
            for other in records
            if (row["name"], other["name"]) == (name, "sme") and row["seed"] == other["seed"]
        ]
        lines.append(f"{name}: {statistics.mean(gains):+.2f} dB in the mean.")
        reached = [
            (time_to(row, other["psnr"]), other["seconds"])
            for row in records
            for other in records
            if (row["name"], other["name"]) == (name, "sme") and setting(row) == setting(other) and "curve" in row
        ]
        if reached:
            shares = ", ".join("never" if time is None else f"{time / whole:.2f}" for time, whole in reached)
            lines.append(f"{name}: at sme's final PSNR after {shares} of its time (one number per seed).")
    return "\n".join(lines)


def setting(record: dict[str, Any]) -> tuple[str, int, str]:
    """Of a run: only times of one file, client and day are compared, since others may be of another machine."""
    return record["file"], record["seed"], record["date"][:10]


def mean(records: list[dict[str, Any]], name: str, key: str) -> float:
    return statistics.mean(record[key] for record in records if record["name"] == name)


if __name__ == "__main__":
    main()
