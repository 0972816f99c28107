"""Deep networks: AWA, with and without its layer weights, and ``strongest`` on ResNet-18, with baselines and floors.

    python benchmarks/deep.py n4 --data imagenet-samples --rows odd --seeds 0 1 2 --out docs/results/deep/n4.json

Settings were chosen on the even rows (every second picture of the folder) with seeds from 100 on; tables report the odd
rows. Every run is written as soon as it is done, and one that is there is not repeated. ``--table`` only prints.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path
from typing import Any

import torch

from undelta.attacker.attacks import awa, strongest
from undelta.attacker.combine import method_of
from undelta.attacker.descent import Descent
from undelta.client.datasets import SOURCES
from undelta.client.datasets.folders import SUFFIXES
from undelta.client.disclose import disclose
from undelta.client.private import Private
from undelta.client.scenario import Scenario
from undelta.evaluation.metrics import psnr, ssim
from undelta.files import write_bytes
from undelta.seeding import stream
from undelta.trials.pictures import write_sheet
from undelta.trials.record import SCHEMA
from undelta.trials.trial import Trial, run

RESNET: dict[str, Any] = {
    "image_size": 64,
    "model": "resnet18",
    "model_arguments": {"stem": "imagenet"},
    "epochs": 8,
    "learning_rate": 1e-4,
    "norm_mode": "eval",
    "classes": 1000,
}
CASES: dict[str, dict[str, Any]] = {
    "n4": {**RESNET, "num_samples": 4, "batches": 1},
    "n8": {**RESNET, "num_samples": 8, "batches": 4},
    "trained-n1-slow": {**RESNET, "num_samples": 1, "batches": 1, "learning_rate": 1e-5},
    "trained-n1": {**RESNET, "num_samples": 1, "batches": 1},
    "trained-n4-slow": {**RESNET, "num_samples": 4, "batches": 1, "learning_rate": 1e-5},
    "trained-n4": {**RESNET, "num_samples": 4, "batches": 1},
    "large-n4": {**RESNET, "num_samples": 4, "batches": 1, "image_size": 224},
    "large-n8": {**RESNET, "num_samples": 8, "batches": 1, "image_size": 224},
}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "awa": ("awa", {"steps": 1000}),
    "awa, no weights": ("awa", {"steps": 1000, "form": "approximation"}),
    "awa, paper's Q": ("awa", {"steps": 1000, "q": "paper"}),
    "strongest": ("strongest", {}),
    "awa, for trained networks": (  # as docs/deep-networks.md says
        "awa",
        {"steps": 1000, "form": "approximation", "signed": True, "learning_rate": 0.3, "tv": 0.1},
    ),
    "strongest, signed steps alone": ("strongest", {"signed": True}),
    "strongest, in awa's time": ("strongest", {"rollout_steps": 110}),  # where awa has one mini-batch; see --times
    "strongest, rising weights": ("strongest", {"weights": "rising", "rollout_steps": 100}),
    "strongest, longer": ("strongest", {"rollout_steps": 300}),  # as long as awa where that has four mini-batches
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--data", help="a folder of pictures, of which one half is taken, or a source that has a name")
    parser.add_argument("--rows", choices=("even", "odd"), default="odd")
    parser.add_argument("--initial", help="trained weights, for the cases that are called so")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS)[:4])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pictures", type=Path, help="a folder for pictures of the results")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--times", action="store_true", help="only time an iteration of awa and of strongest's phases")
    options = parser.parse_args()
    if options.case.startswith("trained") and not (options.table or options.initial):
        parser.error("trained cases need --initial")
    if not options.table:
        torch.set_num_threads(1)
        with tempfile.TemporaryDirectory() as half:
            named = options.data in SOURCES
            if not named:
                link_rows(Path(options.data), options.rows, Path(half))
            source = options.data if named else half
            scenario = Scenario(data=source, initial=options.initial, **CASES[options.case])
            if options.times:
                times(scenario, options.case, options.out)
                return
            for seed in options.seeds:
                for name in options.only:
                    measure(scenario, name, seed, options.out, options.pictures)
    print(table(load(options.out)))


def link_rows(data: Path, rows: str, into: Path) -> None:
    """Every second picture of a folder."""
    pictures = sorted(path for path in data.iterdir() if path.suffix.lower() in SUFFIXES)
    for path in pictures[0 if rows == "even" else 1 :: 2]:
        (into / path.name).symlink_to(path.resolve())


def load(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text())["records"] if path.exists() else []


def measure(scenario: Scenario, name: str, seed: int, out: Path, pictures: Path | None) -> None:
    if any(record["name"] == name and record["seed"] == seed for record in load(out)):
        return
    attack, arguments = RUNS[name]
    outcome = run(Trial(scenario=scenario, attack=attack, arguments=arguments, seed=seed))
    record = {**asdict(outcome.record), "name": name, "mean_color": mean_color(outcome.private)}
    data = scenario.data if scenario.data in SOURCES else "imagenet-samples"
    record["scenario"] |= {"data": data, "initial": scenario.initial and Path(scenario.initial).name}
    record["history"] = record["history"][::10]
    out.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(out, json.dumps({"schema": SCHEMA, "records": [*load(out), record]}, indent=1).encode())
    if pictures:
        rows = [("private", outcome.private.images), (name, outcome.reconstruction.images[list(outcome.score.order)])]
        pictures.mkdir(parents=True, exist_ok=True)
        write_sheet(pictures / f"{out.stem}-{name.replace(', ', '-').replace(' ', '-')}-{seed}.png", rows)
    print(f"{name} seed {seed}: {record['psnr']:.2f} dB in {record['seconds']:.0f} s", flush=True)


def times(scenario: Scenario, case: str, out: Path) -> None:
    """An iteration of awa, and of the first phase and the rounds of strongest, in turns: medians, in awa's time."""
    observation = disclose(scenario.draw(100), scenario, seed=100)
    composite = strongest(weights="rising")
    (rising,) = composite.candidates
    first = replace(method_of(composite.midpoint), weights=rising.weights, smoothing=rising.smoothing[0])
    methods = {
        "awa": awa(),
        "strongest, first phase": replace(first, priors=rising.priors),
        "strongest, rounds": replace(first, priors=rising.then),
    }
    descents = {name: Descent(method, observation, stream("attacker", 0)) for name, method in methods.items()}
    seconds: dict[str, list[float]] = {name: [] for name in descents}
    for iteration in range(9):
        for name, descent in descents.items():
            began = time.perf_counter()
            descent.step(iteration, record=False)
            seconds[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(values[1:]) for name, values in seconds.items()}
    ratios = {name: round(value / medians["awa"], 3) for name, value in medians.items()}
    about = {"torch": torch.__version__, "python": platform.python_version(), "date": date.today().isoformat()}
    content = json.loads(out.read_text()) if out.exists() else {}
    write_bytes(out, json.dumps({**content, case: {"ratios": ratios, **about}}, indent=1).encode())
    print(case, ratios)


def mean_color(private: Private) -> dict[str, float]:
    """What images score that have nothing but the mean color of each original."""
    flat = private.images.mean((2, 3), keepdim=True).expand_as(private.images)
    return {"psnr": psnr(flat, private.images).mean().item(), "ssim": ssim(flat, private.images).mean().item()}


def table(records: list[dict[str, Any]]) -> str:
    lines = [
        "| attack | iterations | PSNR (dB) | SSIM | LPIPS | mismatch | floor | ended | time | seeds |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    seconds = {record["seed"]: record["seconds"] for record in records if record["name"] == "awa"}
    for name in dict.fromkeys(record["name"] for record in records):
        rows = [record for record in records if record["name"] == name]
        spread = statistics.stdev([row["psnr"] for row in rows]) if len(rows) > 1 else 0.0
        ratios = [row["seconds"] / seconds[row["seed"]] for row in rows if row["seed"] in seconds]
        floors = [row["floor"] for row in rows if row["floor"]]
        lines.append(
            f"| {name} | {rows[0]['iterations']} | {mean(rows, 'psnr'):.2f} ± {spread:.2f} | {mean(rows, 'ssim'):.3f} "
            f"| {mean(rows, 'lpips'):.3f} | {mean(rows, 'mismatch'):.4f} | {mean(floors, 'mismatch'):.4f} "
            f"| {', '.join(sorted({floor['level'] for floor in floors}))} "
            f"| {statistics.mean(ratios) if ratios else float('nan'):.2f} | {len(rows)} |"
        )
    colors = {record["seed"]: record["mean_color"] for record in records}
    flat = [statistics.mean(color[key] for color in colors.values()) for key in ("psnr", "ssim")]
    lines.append(f"| each image's mean color | | {flat[0]:.2f} | {flat[1]:.3f} | | | | | | {len(colors)} |")
    return "\n".join(lines)


def mean(rows: list[dict[str, Any]], key: str) -> float:
    known = [row[key] for row in rows if row[key] is not None]
    return statistics.mean(known) if known else float("nan")


if __name__ == "__main__":
    main()
