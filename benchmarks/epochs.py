"""What one iteration costs as the client's epochs grow: AWA, the full rollout (iDLG), AGIC.

    python benchmarks/epochs.py --out docs/results/epochs.json
    python benchmarks/epochs.py --large --out docs/results/epochs-large.json

Times are medians of rounds in which all numbers of epochs take turns; peaks are those of a process of its own.
``--large`` is one iteration of the full rollout at N=64, E=32, B=4 on a ResNet-18, beside one of AWA.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from workloads import Work, alternating, observe, ours, write

from undelta.attacker.attacks import agic, awa, idlg_fedavg
from undelta.trials.record import peak_memory_mb, reset_peak_memory

EPOCHS = (1, 2, 4, 8, 16, 32, 64)
METHODS = {"awa": awa(), "idlg_fedavg": idlg_fedavg(), "agic": agic()}
WORK = Work("cnn", 32, 8, batches=4, width=16)
LARGE = Work("resnet18", 32, 64, "eval", 4, epochs=32)


def times(name: str, rounds: int) -> dict[str, list[float]]:
    torch.set_num_threads(1)
    functions = {str(epochs): ours(observe(WORK._replace(epochs=epochs)), METHODS[name]) for epochs in EPOCHS}
    for function in functions.values():
        function()
    seconds: dict[str, list[float]] = {epochs: [] for epochs in functions}
    for epochs, function in alternating(functions, rounds):
        began = time.perf_counter()
        function()
        seconds[epochs].append(time.perf_counter() - began)
    return seconds


def peak(name: str, epochs: int) -> float:
    torch.set_num_threads(1)
    step = ours(observe(WORK._replace(epochs=epochs)), METHODS[name])
    reset_peak_memory()
    before = peak_memory_mb()
    for _ in range(2):
        step()
    return peak_memory_mb() - before


def large() -> dict[str, Any]:
    torch.set_num_threads(1)
    observation = observe(LARGE)
    cells = {}
    for name in ("awa", "idlg_fedavg"):
        step = ours(observation, METHODS[name])
        reset_peak_memory()
        before = peak_memory_mb()
        began = time.perf_counter()
        step()
        cells[name] = {"seconds": time.perf_counter() - began, "peak_mb": peak_memory_mb() - before}
        print(name, cells[name], flush=True)
    return {"work": LARGE._asdict(), "attacks": cells}


def table(content: dict[str, Any]) -> str:
    lines = [
        "| attack | | " + " | ".join(f"E={epochs}" for epochs in EPOCHS) + " |",
        "|---|---|" + "---|" * len(EPOCHS),
    ]
    for name, cells in content["attacks"].items():
        medians = [statistics.median(cells["seconds"][str(epochs)]) for epochs in EPOCHS]
        base = medians[EPOCHS.index(8)]
        lines.append(f"| {name} | time, E=8 is 1 | " + " | ".join(f"{median / base:.2f}" for median in medians) + " |")
        lines.append(
            "| | peak (MB) | " + " | ".join(f"{cells['peak_mb'][str(epochs)]:.0f}" for epochs in EPOCHS) + " |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--table", action="store_true", help="print the committed table, run nothing")
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(options.out.read_text())))
        return
    if options.peak:
        print(peak(options.peak[0], int(options.peak[1])))
        return
    if options.large:
        write(options.out, large())
        return
    content: dict[str, Any] = {"work": WORK._asdict(), "attacks": {}}
    for name in METHODS:
        peaks = {}
        for epochs in EPOCHS:
            command = [sys.executable, __file__, "--out", str(options.out), "--peak", name, str(epochs)]
            peaks[str(epochs)] = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)  # noqa: S603
        content["attacks"][name] = {"peak_mb": peaks, "seconds": times(name, options.rounds)}
        write(options.out, content)
        print(name, "done", flush=True)
    print(table(content))


if __name__ == "__main__":
    main()
