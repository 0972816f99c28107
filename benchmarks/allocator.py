"""What an iteration and a plain training step gain by an allocator that keeps what tensors free.

    python benchmarks/allocator.py --out docs/results/allocator.json [--rounds 5]

With and without, in processes of their own that take turns, since what a process has asked of its allocator stays.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from workloads import Work, observe, ours, plain, write

WORKS = [
    Work("cnn", 32, 50),
    Work("cnn", 32, 50, batches=4),
    Work("cnn", 32, 16),
    Work("resnet18", 64, 8, "eval"),
    Work("resnet18", 64, 8, "eval", batches=4),
]
KINDS = {"attack": ours, "plain": plain}
DEFAULT = "glibc.malloc.tcache_count=7"  # glibc's own number: a setting of the user's, so that ours is left out
ITERATIONS = 5


def one(number: int) -> dict[str, float]:
    """Seconds of an iteration in this process, the best of a few."""
    torch.set_num_threads(1)
    observation = observe(WORKS[number])
    seconds = {}
    for kind, made in KINDS.items():
        function, taken = made(observation), []
        for _ in range(2 + ITERATIONS):
            began = time.perf_counter()
            function()
            taken.append(time.perf_counter() - began)
        seconds[kind] = min(taken[2:])
    return seconds


def measure(number: int, rounds: int) -> dict[str, Any]:
    unset = {key: value for key, value in os.environ.items() if not key.startswith(("GLIBC_", "MALLOC_"))}
    environments = {"kept": unset, "given back": {**unset, "GLIBC_TUNABLES": DEFAULT}}
    seconds: dict[str, dict[str, list[float]]] = {kind: {how: [] for how in environments} for kind in KINDS}
    for _ in range(rounds):
        for how, environment in environments.items():
            command = [sys.executable, __file__, "--one", str(number)]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)  # noqa: S603
            for kind, value in json.loads(done.stdout).items():
                seconds[kind][how].append(value)
    return {"work": WORKS[number]._asdict(), "name": WORKS[number].name, "seconds": seconds}


def table(cells: list[dict[str, Any]]) -> str:
    lines = ["| work | attack, kept / given back | plain step, kept / given back |", "|---|---|---|"]
    for cell in cells:
        ratios = []
        for kind in KINDS:
            kept, back = cell["seconds"][kind]["kept"], cell["seconds"][kind]["given back"]
            each = [x / y for x, y in zip(kept, back, strict=True)]
            ratio = statistics.median(kept) / statistics.median(back)
            ratios.append(f"{ratio:.2f} ({min(each):.2f} to {max(each):.2f})")
        lines.append(f"| {cell['name']} | {' | '.join(ratios)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", action="store_true", help="print the committed table, run nothing")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one is not None:
        print(json.dumps(one(given.one)))
        return
    if given.out is None:
        parser.error("--out is needed")
    cells = json.loads(given.out.read_text())["cells"] if given.table else []
    for number in range(0 if given.table else len(WORKS)):
        cells.append(measure(number, given.rounds))
        write(given.out, {"rounds": given.rounds, "cells": cells})
    print(table(cells))


if __name__ == "__main__":
    main()
