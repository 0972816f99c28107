"""What one attack iteration costs, against a plain training step, textbook double backward, and
`torch.func.jvp` of the loss followed by reverse mode.

    python benchmarks/iteration.py --out docs/results/iteration.json [--rounds 9] [--threads 1 2] [--only cnn resnet18]

All four run in turn in one process; the table gives ratios of medians, and the range of the ratios round by round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from workloads import Work, alternating, forward_over_reverse, observe, ours, plain, textbook, write

WORKS = [
    Work("cnn", 32, 50),
    Work("cnn", 32, 50, batches=4),
    *[
        Work("resnet18", side, samples, norm_mode, batches)
        for side, samples in ((32, 8), (64, 8), (224, 4))
        for norm_mode in ("train", "eval")
        for batches in (1, 4)
        if not (norm_mode == "train" and batches == 4 and samples == 4)  # BatchNorm over one image and one pixel
    ],
]


def measure(work: Work, threads: int, rounds: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    observation = observe(work)
    functions = {
        "ours": ours(observation),
        "plain": plain(observation),
        "textbook": textbook(observation),
        "jvp": forward_over_reverse(observation),
    }
    for function in functions.values():
        function()
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for name, function in alternating(functions, rounds):
        began = time.perf_counter()
        function()
        seconds[name].append(time.perf_counter() - began)
    return {"work": work._asdict(), "name": work.name, "threads": threads, "seconds": seconds}


def ratio(cell: dict[str, Any], one: str, other: str) -> str:
    a, b = cell["seconds"][one], cell["seconds"][other]
    each = [x / y for x, y in zip(a, b, strict=True)]
    return f"{statistics.median(a) / statistics.median(b):.2f} ({min(each):.2f} to {max(each):.2f})"


def table(cells: list[dict[str, Any]]) -> str:
    lines = [
        "| work | threads | ours / plain step | textbook / plain step | ours / textbook | ours / jvp |",
        "|---|---|---|---|---|---|",
    ]
    for cell in cells:
        pairs = [("ours", "plain"), ("textbook", "plain"), ("ours", "textbook")]
        pairs += [("ours", "jvp")] if "jvp" in cell["seconds"] else []
        ratios = [ratio(cell, *pair) for pair in pairs]
        lines.append(f"| {cell['name']} | {cell['threads']} | " + " | ".join(ratios) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", nargs="+", default=None, help="words that the names of works must hold")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--table", action="store_true", help="print the committed table, run nothing")
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(options.out.read_text())["cells"]))
        return
    cells = []
    for threads in options.threads:
        for work in WORKS:
            if options.only and not all(word in work.name for word in options.only):
                continue
            cells.append(measure(work, threads, options.rounds))
            print(table(cells[-1:]).splitlines()[-1], flush=True)
            write(options.out, {"rounds": options.rounds, "cells": cells})


if __name__ == "__main__":
    main()
