"""``strongest`` beside SME and learned curves with one thing changed at a time: does its lead depend on one setting?

    python benchmarks/variations.py --data fashion-mnist-1000.npz --digits mnist-1000.npz --colors cifar10-1000.npz \
        --out docs/results/variations.json

SME's CNN for gray images, eight of them, E=10, B=4; all variations are run and printed, whatever comes out. Images are
the odd rows of each file. A run that was interrupted resumes.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from halves import rows_of
from rivals import compare
from safetensors.torch import save_file
from torch import nn

from undelta import Scenario, nl_sme, pi_sme, sme, strongest

ATTACKS = {"sme": sme(steps=1000), "nl_sme": nl_sme(steps=1000), "pi_sme": pi_sme(steps=333), "strongest": strongest()}
FEW = (3, 5)  # of ten classes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="gray images, 28 x 28")
    parser.add_argument("--digits", required=True, help="other gray images")
    parser.add_argument("--colors", required=True, help="color images, 32 x 32")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    cases = variations(*[rows_of(data, "odd") for data in (given.data, given.digits, given.colors)])
    print(table(compare(cases, ATTACKS, given.seeds, given.out)))


def variations(data: str, digits: str, colors: str) -> dict[str, Scenario]:
    base = Scenario(data=data, num_samples=8, model="cnn28", classes=62, epochs=10, batches=4, learning_rate=0.004)
    federation = replace(base, clients=4, participants=4, rounds=5)
    return {
        "as it is": base,
        "head of 10": replace(base, classes=10),
        "head of 100": replace(base, classes=100),
        "one class": replace(base, data=only(data, FEW[:1])),
        "two classes": replace(base, data=only(data, FEW)),
        "Xavier's initialization": replace(base, initial=xavier(base)),
        "after five rounds of four clients": federation,
        "a quarter of the rate": replace(base, learning_rate=0.001),
        "four times the rate": replace(base, learning_rate=0.016),
        "E=40": replace(base, epochs=40),
        "E=2": replace(base, epochs=2),
        "E=1": replace(base, epochs=1),
        "B=1": replace(base, batches=1),
        "B=8": replace(base, batches=8),
        "digits": replace(base, data=digits),
        "color photographs": replace(base, data=colors, model="cnn"),
    }


def only(data: str, classes: Sequence[int]) -> str:
    """The images of some classes, in a file of their own."""
    with np.load(data) as content:
        images, labels = content["images"], content["labels"]
    kept = np.isin(labels, classes)
    path = Path(tempfile.mkdtemp()) / f"{Path(data).stem}-{'-'.join(map(str, classes))}.npz"
    np.savez(path, images=images[kept], labels=labels[kept])
    return str(path)


def xavier(scenario: Scenario) -> str:
    """A checkpoint of the scenario's network, initialized by Glorot and Bengio's rule, with biases of zero."""
    model = scenario.make_model(scenario.image_spec())
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        (nn.init.xavier_uniform_ if name.endswith("weight") else nn.init.zeros_)(parameter)
    path = Path(tempfile.mkdtemp()) / "xavier.safetensors"
    save_file(model.state_dict(), path)
    return str(path)


def table(cells: list[dict[str, Any]]) -> str:
    lines = [
        f"| | {' | '.join(ATTACKS)} | ahead of the best rival | time, of SME's |",
        "|---" * (len(ATTACKS) + 3) + "|",
    ]
    for case in dict.fromkeys(cell["case"] for cell in cells):
        means = {name: _mean(cells, case, name, "psnr") for name in ATTACKS}
        best = max(value for name, value in means.items() if name != "strongest")
        time = _mean(cells, case, "strongest", "processor_seconds") / _mean(cells, case, "sme", "processor_seconds")
        shown = " | ".join(f"{value:.1f}" for value in means.values())
        lines.append(f"| {case} | {shown} | {means['strongest'] - best:+.1f} | {time:.2f} |")
    return "\n".join(lines)


def _mean(cells: list[dict[str, Any]], case: str, attack: str, key: str) -> float:
    return statistics.fmean(cell[key] for cell in cells if (cell["case"], cell["attack"]) == (case, attack))


if __name__ == "__main__":
    main()
