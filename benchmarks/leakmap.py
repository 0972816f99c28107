"""Which networks leak: `strongest` on the package's own pictures, over networks, norms and numbers of images.

    python benchmarks/leakmap.py --out docs/results/leak-map/records.json --picture docs/results/leak-map/pictures.png

The clients draw from the odd half of `patches`; trained networks were trained on the even half. Every run is written as
soon as it is done, and one that is there is not repeated. ``--table`` only prints.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from base64 import b64decode, b64encode
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from deep import load, mean, mean_color
from safetensors.torch import save_file
from torch import Tensor

from undelta.client.datasets import open_dataset
from undelta.client.private import Private
from undelta.client.scenario import Scenario
from undelta.evaluation.metrics import psnr, ssim
from undelta.files import write_bytes
from undelta.models import build
from undelta.trials.pictures import write_sheet
from undelta.trials.record import SCHEMA
from undelta.trials.trial import Trial, run

SIDE = 32
PLAIN: dict[str, Any] = {"image_size": SIDE, "epochs": 8, "learning_rate": 1e-3, "norm_mode": "eval"}
WIDE: dict[str, Any] = {"model": "resnet18", "model_arguments": {"stem": "imagenet"}, "learning_rate": 1e-4}
NETWORKS: dict[str, dict[str, Any]] = {
    "CNN": {"model": "cnn"},
    "VGG-11, half width": {"model": "vgg11", "model_arguments": {"width": 32, "hidden": 256}},
    "ResNet-8, BatchNorm eval": {"model": "resnet8", "model_arguments": {"width": 32}},
    "ResNet-8, BatchNorm train": {"model": "resnet8", "model_arguments": {"width": 32}, "norm_mode": "train"},
    "ResNet-8, GroupNorm": {"model": "resnet8", "model_arguments": {"width": 32, "norm": "group"}},
    "ResNet-8, no norm": {"model": "resnet8", "model_arguments": {"width": 32, "norm": "none"}},
    "ResNet-18, width 16, BatchNorm eval": {"model": "resnet18", "model_arguments": {"width": 16}},
    "ResNet-18, BatchNorm eval": WIDE,
    "ResNet-18, BatchNorm train": {**WIDE, "norm_mode": "train"},
    "ResNet-18, GroupNorm": {**WIDE, "model_arguments": {"stem": "imagenet", "norm": "group"}},
    "ViT": {"model": "vit"},
}
TRAINED = ("CNN", "VGG-11, half width", "ResNet-8, BatchNorm eval", "ResNet-18, BatchNorm eval", "ViT")
SAMPLES = {1: 1, 4: 2, 8: 2, 16: 4}  # N: B
ATTACK: dict[str, Any] = {"steps": 80, "rollout_steps": 40}
SHOWN = 4  # the N whose first seed is in the picture
TRAINING_STEPS, TRAINING_RATE = 200, 1e-3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--samples", type=int, nargs="+", choices=SAMPLES, default=list(SAMPLES))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if not options.table:
        torch.set_num_threads(1)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            public, private = halves(Path(folder))
            for seed in options.seeds:
                for samples in options.samples:
                    for trained in (False, True):
                        for network in TRAINED if trained else NETWORKS:
                            measure(network, trained, samples, seed, public, private, options.out)
    if options.picture:
        picture(options.out, options.picture)
    print(table(load(options.out)))


def halves(folder: Path) -> tuple[Path, Path]:
    """The even and the odd half of the pictures, as files."""
    patches = open_dataset("patches")
    found = []
    for first in (0, 1):
        rows = torch.arange(first, len(patches), 2)
        images = (patches.draw(rows, SIDE) * 255).round().to(torch.uint8).permute(0, 2, 3, 1)
        found.append(folder / f"patches-{first}.npz")
        np.savez(found[-1], images=images.numpy(), labels=patches.labels[rows].numpy())
    return found[0], found[1]


def measure(network: str, trained: bool, samples: int, seed: int, public: Path, private: Path, out: Path) -> None:
    about = {"network": network, "trained": trained, "num_samples": samples, "seed": seed}
    records = load(out)
    if any(about.items() <= record.items() for record in records):
        return
    arguments = {**PLAIN, **NETWORKS[network], "num_samples": samples, "batches": SAMPLES[samples]}
    if samples == 1 and arguments["norm_mode"] == "train":
        return  # the last maps of a ResNet-18 are one pixel at this size: one image has no statistics
    scenario = Scenario(data=str(private), **arguments)
    accuracy = None
    if trained:
        initial = public.with_name(f"{network}.safetensors".replace(", ", "-").replace(" ", "-"))
        accuracy = train(scenario, public, initial)
        scenario = Scenario(data=str(private), initial=str(initial), **arguments)
    outcome = run(Trial(scenario=scenario, attack="strongest", arguments=ATTACK, seed=seed))
    order = list(outcome.score.order)
    record = {
        **asdict(outcome.record),
        **about,
        "accuracy": accuracy,
        "mean_color": mean_color(outcome.private),
        "noise": noise(outcome.private),
    }
    record["history"] = record["history"][::20]
    record["scenario"] |= {"data": "patches, odd rows", "initial": "trained on even rows" if trained else None}
    if samples == SHOWN and seed == 0:
        both = torch.stack([outcome.private.images, outcome.reconstruction.images[order]])
        record["pixels"] = b64encode((both * 255).round().to(torch.uint8).numpy().tobytes()).decode()
    write_bytes(out, json.dumps({"schema": SCHEMA, "records": [*records, record]}).encode())
    print(f"{about}: {record['psnr']:.2f} dB in {record['seconds']:.0f} s", flush=True)


def train(scenario: Scenario, public: Path, into: Path) -> float:
    """A network trained on public pictures, once per folder; its accuracy there."""
    data = open_dataset(str(public))
    spec = scenario.image_spec()
    torch.manual_seed(0)
    model = build(scenario.model, scenario.model_arguments, shape=spec.shape, classes=spec.classes)
    images, labels = spec.normalize(data.draw(torch.arange(len(data)), SIDE)), data.labels
    accuracy = into.with_suffix(".json")
    if not accuracy.exists():
        optimizer = torch.optim.Adam(model.parameters(), lr=TRAINING_RATE)
        for _ in range(TRAINING_STEPS):
            rows = torch.randint(len(images), (32,))
            optimizer.zero_grad()
            F.cross_entropy(model(images[rows]), labels[rows]).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            right = (model(images).argmax(1) == labels).float().mean().item()
        save_file(model.state_dict(), into)
        accuracy.write_text(json.dumps(right))
    return float(json.loads(accuracy.read_text()))


def noise(private: Private) -> dict[str, float]:
    """What unmoved noise scores."""
    images = torch.rand(private.images.shape, generator=torch.Generator().manual_seed(0))
    return {"psnr": psnr(images, private.images).mean().item(), "ssim": ssim(images, private.images).mean().item()}


def picture(path: Path, into: Path) -> None:
    """The first draw of `SHOWN` images: the originals, and what each network gives away of them."""
    rows: list[tuple[str, Tensor]] = []
    for record in load(path):
        if "pixels" in record:
            pixels = np.frombuffer(b64decode(record["pixels"]), np.uint8).reshape(2, SHOWN, -1, SIDE, SIDE)
            private, found = torch.from_numpy(pixels / 255)
            rows = rows or [("private", private)]
            rows.append((f"{record['network']}{', trained' if record['trained'] else ''}", found))
    if rows:
        write_sheet(into, rows)


def table(records: list[dict[str, Any]]) -> str:
    lines = [
        "| network | N | PSNR (dB) | SSIM | LPIPS | mismatch | floor | ended | mean color | noise | seeds |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for trained in (False, True):
        for network in NETWORKS:
            for samples in SAMPLES:
                chosen = {"network": network, "trained": trained, "num_samples": samples}
                rows = [record for record in records if chosen.items() <= record.items()]
                if not rows:
                    continue
                floors = [row["floor"] for row in rows if row["floor"]]
                flat, still = (statistics.mean(row[key]["psnr"] for row in rows) for key in ("mean_color", "noise"))
                levels = ", ".join(sorted({found["level"] for found in floors}))
                lines.append(
                    f"| {network}{', trained' if trained else ''} | {samples} | {mean(rows, 'psnr'):.1f} "
                    f"| {mean(rows, 'ssim'):.2f} | {mean(rows, 'lpips'):.2f} | {mean(rows, 'mismatch'):.4f} "
                    f"| {mean(floors, 'mismatch'):.4f} | {levels} | {flat:.1f} | {still:.1f} | {len(rows)} |"
                )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
