"""Peak memory of one attack iteration over the number of images, and what cutting mini-batches into chunks costs.

    python benchmarks/memory.py --out docs/results/memory.json

Every cell is a process of its own; its peak is the largest resident memory of three iterations, minus what
the process held before there was a model: so it includes model, update, dummy images and the optimizer's state.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from workloads import Work, observe, ours, textbook, write

from undelta.engine import Network
from undelta.trials.record import peak_memory_mb, reset_peak_memory

COUNTS = (8, 16, 32, 64, 128)
CHUNK = 8  # images that the chunked form may hold at once
WORKS = {
    "cnn, B=1": Work("cnn", 32, 8),
    "cnn, B=4": Work("cnn", 32, 8, batches=4),
    "resnet18 32 px, B=1, BatchNorm eval": Work("resnet18", 32, 8, "eval"),
}
LARGE = {"resnet50 64 px, N=1, BatchNorm eval": Work("resnet50", 64, 1, "eval")}  # one image, in two forms


def cell(name: str, samples: int, form: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    reset_peak_memory()
    before = peak_memory_mb()
    observation = observe((WORKS | LARGE)[name]._replace(samples=samples))
    network = Network(observation.model(), observation.training)
    needed = network.active(observation.image.shape)
    memory = CHUNK * needed if form == "chunked" else 2**40
    step = textbook(observation) if form == "textbook" else ours(observation, memory=memory)
    reset_peak_memory()
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - began)
    peak = peak_memory_mb() - before
    return {"name": name, "samples": samples, "form": form, "peak_mb": peak, "seconds": min(seconds)}


def table(cells: list[dict[str, Any]]) -> str:
    lines = [
        "| work | form | " + " | ".join(f"N={count}" for count in COUNTS) + " | growth | time, largest N (whole = 1) |",
        "|---|---|" + "---|" * (len(COUNTS) + 2),
    ]
    for name in WORKS:
        whole = [cell["seconds"] for cell in cells if (cell["name"], cell["form"]) == (name, "whole")]
        for form in ("chunked", "whole", "textbook"):
            row = [cell for cell in cells if (cell["name"], cell["form"]) == (name, form)]
            if not row:
                continue
            by_count = {cell["samples"]: f"{cell['peak_mb']:.0f} MB" for cell in row}
            peaks = " | ".join(by_count.get(count, "–") for count in COUNTS)
            growth = row[-1]["peak_mb"] / row[0]["peak_mb"]
            ratio = row[-1]["seconds"] / whole[-1]
            lines.append(f"| {name} | {form} | {peaks} | {growth:.2f} | {ratio:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cell", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--table", action="store_true", help="print the committed table, run nothing")
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(options.out.read_text())["cells"]))
        return
    if options.cell:
        name, samples, form = options.cell
        print(json.dumps(cell(name, int(samples), form)))
        return
    cells = []
    for name in (*WORKS, *LARGE):
        for form in ("chunked", "whole", "textbook") if name in WORKS else ("whole", "textbook"):
            for samples in COUNTS if name in WORKS else (1,):
                command = [sys.executable, __file__, "--out", str(options.out), "--cell", name, str(samples), form]
                done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
                cells.append(json.loads(done.stdout))
                print({key: cells[-1][key] for key in ("name", "samples", "form", "peak_mb")}, flush=True)
                write(options.out, {"chunk": CHUNK, "cells": cells})
    print(table(cells))


if __name__ == "__main__":
    main()
