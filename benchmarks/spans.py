"""What the spans of layers' inputs give ``strongest`` on a CNN, and how far the private images stick out of them.

    python benchmarks/spans.py --out docs/results/spans.json --seeds 50 51 52 53 54 55 56 57
    python benchmarks/spans.py --out docs/results/spans-held-out.json --only none now --seeds 60 61 62 63 64 65 66 67
    python benchmarks/spans.py networks --out docs/results/spans-networks.json --seeds 70 71 72 73
    python benchmarks/spans.py shares --data cifar10-1000.npz --grey fashion-mnist-1000.npz --out SHARES.json

Draws of the benchmark's scenarios that are not in the benchmark; ``networks``: other networks, and one that has been
trained. ``shares`` evaluates, on three clients, the share of a
layer's inputs outside of its update's leading directions: of the private images, of the mean of those that share a
label, and of others. A run that was interrupted resumes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from attacks import CASES
from halves import rows_of
from priors import table
from rivals import compare
from torch import Tensor

from undelta import Scenario, disclose, strongest
from undelta.attacker.replays import spanned_update
from undelta.attacker.span import Span, _inputs, _model, _rows
from undelta.attacker.spiked import leading
from undelta.client.private import Private
from undelta.files import write_bytes
from undelta.studies.bench.cases import load_benchmark

BENCH = ("short", "noise", "pruned", "quantized", "aggregated")
EIGHT = Scenario(data="patches", num_samples=8, epochs=5, batches=2, learning_rate=0.01)
NETWORKS = {
    "cnn": EIGHT,
    "cnn, hidden 20": replace(EIGHT, model_arguments={"hidden": 20}),
    "cnn, max pooling": replace(EIGHT, model_arguments={"pool": "max"}),
    "cnn, GroupNorm": replace(EIGHT, model_arguments={"norm": "group"}),
    "cnn, after ten rounds": replace(EIGHT, clients=4, participants=4, rounds=10),
    "mlp": replace(EIGHT, model="mlp"),
    "lenet": replace(EIGHT, model="lenet"),
    "vgg11": replace(EIGHT, model="vgg11", model_arguments={"width": 32, "hidden": 256}, learning_rate=0.001),
    "vit": replace(EIGHT, model="vit", learning_rate=0.001),
}
WEIGHTS = {"none": 0.0, "weight 0.001": 0.001, "now": 0.003, "weight 0.01": 0.01}
SETTINGS: dict[str, Any] = {"steps": 50, "rollout_steps": 60}
SEED = 100  # of the even rows, which no table reports


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["attack", "networks", "shares"], default="attack")
    parser.add_argument("--data", help="a .npz of color images, for shares")
    parser.add_argument("--grey", help="a .npz of grey images, likewise")
    parser.add_argument("--seeds", type=int, nargs="+", default=[])
    parser.add_argument("--only", nargs="+", choices=WEIGHTS, default=[*WEIGHTS])
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    if given.what != "shares":
        cases = {name: load_benchmark().cases[name].scenario for name in BENCH}
        cases = NETWORKS if given.what == "networks" else cases
        attacks: dict[str, Any] = {name: strongest(**SETTINGS, span=WEIGHTS[name]) for name in given.only}
        print(table(compare(cases, attacks, given.seeds, given.out)))
        return
    sources = {"sme-color": given.data, "sme-gray": given.grey, "short": given.data}
    clients = {name: Scenario(data=rows_of(data, "even"), **CASES[name]) for name, data in sources.items()}
    records = [record for name, scenario in clients.items() for record in shares(name, scenario)]
    about = {"seed": SEED, "torch": torch.__version__, "date": datetime.now(UTC).isoformat(timespec="seconds")}
    write_bytes(given.out, json.dumps({**about, "records": records}, indent=1).encode())
    print("| client | layer | inputs | directions | private | mean of a label | others |", "|---" * 7 + "|", sep="\n")
    for record in records:
        cells = (f"{value:.4f}" if isinstance(value, float) else str(value) for value in record.values())
        print(f"| {' | '.join(cells)} |")


def shares(name: str, scenario: Scenario) -> Iterator[dict[str, Any]]:
    """One record for each linear layer and number of directions; means over images."""
    private = scenario.draw(SEED)
    observation, others = disclose(private, scenario, seed=SEED), scenario.draw_held_out(SEED, 50)
    images = {"private": private.images, "mean of a label": label_means(private), "others": others.images}
    update, model = spanned_update(observation), _model(observation)
    with torch.no_grad():
        rows = {kind: dict(_rows(model, _inputs(observation, one), {"fc1", "fc2"})) for kind, one in images.items()}
    for layer in rows["private"]:
        matrix = update[f"{layer}.weight"]
        ranks = {min(times * observation.num_samples, *matrix.shape) for times in (1, 2, 4)}
        for rank in sorted(ranks):
            span = Span(name=layer, directions=leading(matrix, rank).directions)
            means = {kind: float(span.outside(seen[layer]).mean()) for kind, seen in rows.items()}
            yield {"client": name, "layer": layer, "inputs": observation.num_samples, "directions": rank, **means}


def label_means(private: Private) -> Tensor:
    """Each image's stand-in: the mean of those that share its label."""
    images = private.images.clone()
    for label in private.labels.unique():
        images[private.labels == label] = private.images[private.labels == label].mean(0)
    return images


if __name__ == "__main__":
    main()
