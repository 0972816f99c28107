"""Which evidence of the attacker agrees with the quality of the images? Tried on shadow clients of public images.

    python benchmarks/evidence.py --data cifar10-1000.npz --out docs/results/evidence.json

Each case is a network with its training. Attacks at the path's midpoint that differ in layer weights and priors start
from the same noise; each evidence picks one of them, and the table says how often that was the best one, or less than
half a decibel behind it, and what the picks lose on average. Everything that an evidence looks at is known to the
attacker. Rows are written as they are done, and one that is there is not repeated. ``--table`` only prints.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from halves import rows_of
from torch import Tensor

from undelta.attacker import span
from undelta.attacker.candidates import FALLING, FLAT, RISING
from undelta.attacker.distances import cosine, mismatch
from undelta.attacker.method import GradientMatching
from undelta.attacker.optimizers import Adam, cosine_decay
from undelta.attacker.priors import ColorVariation, Prior, TotalVariation
from undelta.attacker.replay import Replay
from undelta.attacker.replays import OneStep
from undelta.attacker.weights import ByFamily, WeightsPart
from undelta.client.disclose import disclose
from undelta.client.scenario import Scenario
from undelta.evaluation.score import score
from undelta.files import write_bytes
from undelta.observation import Observation
from undelta.seeding import stream
from undelta.updates import Layer, Update, layers_of, layers_within

PLAIN: dict[str, Any] = {"num_samples": 4, "epochs": 8, "batches": 1, "learning_rate": 1e-3, "norm_mode": "eval"}
CASES: dict[str, dict[str, Any]] = {
    "cnn": {**PLAIN, "model": "cnn"},
    "cnn, N=16": {**PLAIN, "model": "cnn", "num_samples": 16, "batches": 4, "learning_rate": 0.004},
    "vgg11": {**PLAIN, "model": "vgg11", "model_arguments": {"width": 32, "hidden": 256}},
    "resnet8": {**PLAIN, "model": "resnet8", "model_arguments": {"width": 32}},
    "resnet8, GroupNorm": {**PLAIN, "model": "resnet8", "model_arguments": {"width": 32, "norm": "group"}},
    "resnet18": {**PLAIN, "model": "resnet18", "model_arguments": {"width": 32}, "learning_rate": 1e-4},
    "vit": {**PLAIN, "model": "vit"},
}
LITTLE, COLOR, MUCH = TotalVariation(weight=0.01), ColorVariation(weight=0.03), TotalVariation(weight=0.1)
CANDIDATES: dict[str, tuple[WeightsPart, Prior]] = {
    "flat": (FLAT, LITTLE),
    "rising": (RISING, COLOR),
    "falling": (FALLING, LITTLE),
    "family": (ByFamily(), COLOR),
    "flat, color": (FLAT, COLOR),
    "flat, much TV": (FLAT, MUCH),
}
NEAR = 0.5  # dB
PAIR = ("flat", "rising")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="an .npz; its even rows are taken")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[100, 101, 102])
    parser.add_argument("--steps", type=int, nargs="+", default=[100, 300])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if not options.table:
        torch.set_num_threads(1)
        data = rows_of(options.data, "even")
        for seed in options.seeds:
            for case in options.cases:
                for steps in options.steps:
                    for candidate in CANDIDATES:
                        measure(data, case, seed, candidate, steps, options.out)
    print(table(load(options.out)))


def load(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text())["rows"] if path.exists() else []


def measure(data: str, case: str, seed: int, candidate: str, steps: int, out: Path) -> None:
    about = {"case": case, "seed": seed, "candidate": candidate, "steps": steps}
    rows = load(out)
    if any(about.items() <= row.items() for row in rows):
        return
    scenario = Scenario(data=data, **CASES[case])
    private = scenario.draw(seed)
    observation = disclose(private, scenario, seed=seed)
    weights, prior = CANDIDATES[candidate]
    attack = GradientMatching(
        replay=OneStep(position=0.5),
        weights=weights,
        priors=(prior,),
        optimizer=Adam(learning_rate=1.0),
        schedule=cosine_decay,
        steps=steps,
    )
    result = attack(observation, seed=seed)
    replay = OneStep(position=0.5)(observation, stream("attacker", "evidence"))
    layers = layers_within(layers_of(replay.network.model), replay.target)

    def evidence(images: Tensor, labels: Tensor) -> dict[str, float]:
        dummy = replay(observation.image.normalize(images), labels).update
        found = {name: judge(layers, dummy, replay) for name, judge in JUDGES.items()}
        shares = outside(observation, images)
        return {**found, "span": float(shares.log().mean()) if shares is not None else math.nan}

    row = {
        **about,
        "psnr": score(result, private).psnr,
        "evidence": evidence(result.images, result.labels),
        "at the truth": evidence(private.images, private.labels),
    }
    write_bytes(out, json.dumps({"rows": [*rows, row]}, indent=1).encode())
    print(case, seed, candidate, steps, f"{row['psnr']:.2f} dB", flush=True)


def outside(observation: Observation, images: Tensor) -> Tensor | None:
    """The share of each image's inputs outside of each layer's span, (n, layers); None where no layer can tell."""
    model = span._model(observation)
    found = span.spans(observation, model, images)
    return span._outside(observation, model, found, images) if found else None


Judge = Callable[[Sequence[Layer], Update, Replay], float]


def under(weights: WeightsPart) -> Judge:
    """The cosine distance with these layer weights."""

    def judge(layers: Sequence[Layer], dummy: Update, replay: Replay) -> float:
        values = weights(layers, dummy, replay.target)
        by_name = {name: value for layer, value in zip(layers, values, strict=True) for name in layer.parameters}
        return float(cosine(dummy, replay.target, by_name))

    return judge


def by_layer(pick: Callable[[int], slice]) -> Judge:
    """The geometric mean over layers of each one's own mismatch: no layer counts more for being large."""

    def judge(layers: Sequence[Layer], dummy: Update, replay: Replay) -> float:
        parts = [layer.parameters for layer in layers][pick(len(layers))]
        own = [mismatch({n: dummy[n] for n in names}, {n: replay.target[n] for n in names}) for names in parts]
        return sum(math.log(max(value, 1e-7)) for value in own) / len(own)

    return judge


JUDGES: dict[str, Judge] = {
    "mismatch": under(FLAT),
    "mismatch, rising weights": under(RISING),
    "mismatch, falling weights": under(FALLING),
    "mismatch by layer": by_layer(lambda _: slice(None)),
    "mismatch of the first half": by_layer(lambda count: slice(0, count // 2)),
    "mismatch of the second half": by_layer(lambda count: slice(count // 2, None)),
    "mismatch of the first layer": by_layer(lambda _: slice(0, 1)),
}


def table(rows: list[dict[str, Any]]) -> str:
    """How each evidence picks, for candidates of equally many iterations."""
    groups: dict[tuple[str, int, int], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["case"], row["seed"], row["steps"]), []).append(row)
    whole = [group for group in groups.values() if len(group) == len(CANDIDATES)]
    lines = ["| evidence | best | near the best | lost (dB) | lost at most |", "|---|---|---|---|---|"]
    for name in rows[0]["evidence"]:
        lost = [regret(group, name) for group in whole]
        known = [loss for loss in lost if not math.isnan(loss)]
        if known:
            best, near = (sum(loss <= most for loss in known) for most in (0, NEAR))
            lines.append(
                f"| {name} | {best} of {len(known)} | {near} | {sum(known) / len(known):.2f} | {max(known):.2f} |"
            )
    for candidate in CANDIDATES:
        lost = [max(r["psnr"] for r in g) - next(r["psnr"] for r in g if r["candidate"] == candidate) for g in whole]
        best, near = (sum(loss <= most for loss in lost) for most in (0, NEAR))
        lines.append(
            f"| always {candidate} | {best} of {len(lost)} | {near} | {sum(lost) / len(lost):.2f} | {max(lost):.2f} |"
        )
    lines += ["", f"The better of {' and '.join(PAIR)}, the candidates of strongest, is picked by:"]
    for name in rows[0]["evidence"]:
        pairs = [[row for row in group if row["candidate"] in PAIR] for group in whole]
        lines.append(f"- {name}: {sum(regret(pair, name) == 0 for pair in pairs)} of {len(pairs)}")
    return "\n".join(lines)


def regret(group: list[dict[str, Any]], name: str) -> float:
    """What the candidate that this evidence picks scores less than the best one; nan if it cannot say."""
    if any(math.isnan(row["evidence"][name]) for row in group):
        return math.nan
    picked = min(group, key=lambda row: row["evidence"][name])
    return float(max(row["psnr"] for row in group) - picked["psnr"])


if __name__ == "__main__":
    main()
