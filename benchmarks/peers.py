"""A peer's own code and ours on the same update, in turns: quality, and time.

    git clone https://github.com/JunyiZhu-AI/surrogate_model_extension
    python benchmarks/peers.py sme-gray --checkout surrogate_model_extension --data fashion-mnist-1000.npz \
        --seeds 0 1 2 --out docs/results/peers.json
    git clone https://github.com/JonasGeiping/breaching
    python benchmarks/peers.py breaching-cnn --checkout breaching --data cifar10-1000.npz --out docs/results/peers.json

Nothing of a peer's code is in this repository; bring a checkout of it and what it imports. The peer gets the same
networks, the same labels in the same order, and no more. benchmarks/peers.md says what was found. A run that was
interrupted resumes, as long as its settings are the same. Saved iterates of ours are scored after the run.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import sys
import tempfile
import time
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from attacks import CASES
from halves import ROWS, rows_of
from torch import Tensor
from workloads import write

from undelta import Scenario, disclose, ig, score, sme, strongest
from undelta.attacker.attack import Attack
from undelta.attacker.reconstruction import Reconstruction
from undelta.client.private import Private
from undelta.observation import Observation

Theirs = Callable[[Observation, Path, int], Tensor]


def sme_of_its_authors(observation: Observation, checkout: Path, iterations: int) -> Tensor:
    """Their adversary wants the private images, for a PSNR along the way: it gets grey ones."""
    sys.path.insert(0, str(checkout))
    from sme.Adversary import IWU  # type: ignore[import-not-found]

    before, after = observation.model(), observation.model()
    before.load_state_dict(observation.initial)
    after.load_state_dict(observation.received)
    grey = observation.image.normalize(torch.full((observation.num_samples, *observation.image.shape), 0.5))
    with tempfile.TemporaryDirectory() as place, contextlib.redirect_stdout(io.StringIO()):
        adversary = IWU(
            trainloader=[(grey, observation.labels)],
            setup={"device": torch.device("cpu"), "dtype": torch.float32},
            alpha=0.5,
            test_steps=10**9,
            path_to_res=place,
            mean_std=(observation.image.mean, observation.image.std),
            lamb=0.01,
        )
        adversary.net0, adversary.net1 = before, after
        adversary.reconstruction(eta=1, beta=0.001, iters=iterations, lr_decay=True, save_figure=False)
    return adversary.x.detach()  # type: ignore[no-any-return]


class Settings(dict[str, Any]):
    """A table whose entries are attributes, too, as breaching's configuration has it."""

    __getattr__ = dict.__getitem__


def breaching_of_its_authors(observation: Observation, checkout: Path, iterations: int) -> Tensor:
    """Their "invertinggradients" on one gradient; only their attacks are imported, not their data and models."""
    for name in ("breaching", "breaching.cases", "breaching.cases.models"):
        package = types.ModuleType(name)
        package.__path__ = [str(checkout.joinpath(*name.split(".")))]
        sys.modules.setdefault(name, package)
    from breaching.attacks import prepare_attack  # type: ignore[import-not-found]

    model = observation.model()
    model.load_state_dict(observation.initial)
    rate = observation.training.learning_rate
    names = [name for name, _ in model.named_parameters()]
    gradients = [(observation.initial[name] - observation.received[name]) / rate for name in names]
    optim = Settings(
        optimizer="adam",
        signed="hard",
        step_size=0.1,
        boxed=True,
        max_iterations=iterations,
        step_size_decay="step-lr",
        langevin_noise=0.0,
        warmup=0,
        grad_clip=None,
        callback=10**9,
    )
    variation = Settings(scale=0.01, inner_exp=1, outer_exp=1)  # as much as ours; their own setting is 0.2
    configuration = Settings(
        type="invertinggradients",
        attack_type="optimization",
        objective=Settings(type="cosine-similarity", scale=1.0, task_regularization=0.0),
        restarts=Settings(num_trials=1, scoring="cosine-similarity"),
        init="randn",
        normalize_gradients=False,
        optim=optim,
        differentiable_augmentations=False,
        augmentations=Settings(),
        regularization=Settings(total_variation=variation),
        impl=Settings(dtype="float", mixed_precision=False, JIT=None),
    )
    image = observation.image
    about = types.SimpleNamespace(shape=image.shape, mean=image.mean, std=image.std, modality="vision")
    buffers = [value.clone() for value in model.buffers()]
    payload = [{"parameters": [observation.initial[name] for name in names], "buffers": buffers, "metadata": about}]
    known = {"num_data_points": observation.num_samples, "labels": observation.labels, "local_hyperparams": None}
    shared = [{"gradients": gradients, "buffers": None, "metadata": known}]
    attacker = prepare_attack(model, torch.nn.CrossEntropyLoss(), configuration)
    found, _ = attacker.reconstruct(payload, shared, server_secrets={})
    return found["data"].detach()  # type: ignore[no-any-return]


class Duel(NamedTuple):
    """A case, their attack on it, and our form of the same."""

    scenario: dict[str, Any]
    theirs: Theirs
    ours: str
    attack: Callable[[int], Attack]
    iterations: int

    def attacks(self, iterations: int) -> dict[str, Attack]:
        """Ours, by name."""
        return {self.ours: self.attack(iterations), STRONGEST: strongest()}


THEIRS, STRONGEST = "theirs", "strongest"
ONE = {"epochs": 1, "batches": 1}
DUELS = {
    "sme-gray": Duel(CASES["sme-gray"], sme_of_its_authors, "sme", lambda steps: sme(steps=steps), 1000),
    "sme-color": Duel(CASES["sme-color"], sme_of_its_authors, "sme", lambda steps: sme(steps=steps), 1000),
    "breaching-cnn": Duel(
        {**ONE, "model": "cnn", "num_samples": 8, "learning_rate": 0.01},
        breaching_of_its_authors,
        "ig",
        lambda steps: ig(steps=steps),
        1000,
    ),
    "breaching-resnet18": Duel(
        {
            **ONE,
            "model": "resnet18",
            "model_arguments": {"stem": "imagenet"},
            "image_size": 64,
            "num_samples": 4,
            "learning_rate": 1e-3,
            "norm_mode": "eval",
        },
        breaching_of_its_authors,
        "ig",
        lambda steps: ig(steps=steps),
        200,
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("duel", choices=DUELS)
    parser.add_argument("--checkout", type=Path, help="a clone of the peer's repository")
    parser.add_argument("--data", default="photos", help="a .npz of images, or a source that has a name")
    parser.add_argument("--rows", choices=ROWS, default="odd", help="which images of a .npz")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--iterations", type=int)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--table", action="store_true", help="only print what is there")
    given = parser.parse_args()
    torch.set_num_threads(1)
    cells: list[dict[str, Any]] = json.loads(given.out.read_text())["cells"] if given.out.exists() else []
    duel = DUELS[given.duel]
    steps = given.iterations or duel.iterations
    if given.table:
        print(table(cells))
        return
    data = rows_of(given.data, given.rows) if given.data.endswith(".npz") else given.data
    for seed in given.seeds:
        if any((cell["duel"], cell["seed"]) == (given.duel, seed) for cell in cells):
            if any(cell["duel"] == given.duel and cell["iterations"] != steps for cell in cells):
                parser.error(f"{given.out} holds {given.duel} with another number of iterations")
            continue
        scenario = Scenario(data=data, **duel.scenario)
        private = scenario.draw(seed)
        observation = disclose(private, scenario, seed=seed)
        assert observation.labels is not None
        duel.theirs(observation, given.checkout, 1)  # imports what it needs, before the clock starts
        duel.attack(1)(observation, seed=seed)
        for name in (THEIRS, *duel.attacks(steps)):
            torch.manual_seed(seed)
            began = time.process_time()
            if name == THEIRS:
                images = duel.theirs(observation, given.checkout, steps)
                found = Reconstruction(
                    images=observation.image.denormalize(images).clamp(0, 1),
                    labels=observation.labels,
                    mismatch=float("nan"),
                    iterations=steps,
                    seconds=0.0,
                    status="completed",
                )
            else:
                found = duel.attacks(steps)[name](observation, seed=seed)
            seconds = time.process_time() - began
            scored = score(found, private)
            cell = {"duel": given.duel, "seed": seed, "who": name, "psnr": scored.psnr, "ssim": scored.ssim}
            cell |= {"processor_seconds": seconds, "iterations": steps, "curve": curve(found, private, seconds)}
            cells.append(cell)
            print(json.dumps({key: value for key, value in cell.items() if key != "curve"}), flush=True)
        write(given.out, {"cells": cells})
    print(table(cells))


def curve(found: Reconstruction, private: Private, seconds: float) -> list[tuple[float, float]]:
    """Processor seconds and PSNR of the saved iterates."""
    points = []
    for iterate in found.iterates:
        images = (iterate.images / 255).to(private.images)
        points.append((seconds * iterate.seconds / found.seconds, score(replace(found, images=images), private).psnr))
    return points


def reached(cell: dict[str, Any], psnr: float) -> float | None:
    """The processor seconds until a run was, and stayed, at least this good."""
    points = [*cell["curve"], (cell["processor_seconds"], cell["psnr"])]
    late = [seconds for seconds, value in points if value < psnr]
    return next((seconds for seconds, _ in points if not late or seconds > late[-1]), None)


def table(cells: list[dict[str, Any]]) -> str:
    lines = [
        "| duel | code | each draw | PSNR (dB) | SSIM | time, of theirs | as good as theirs after |",
        "|---|---|---|---|---|---|---|",
    ]
    for duel in dict.fromkeys(cell["duel"] for cell in cells):
        own = [cell for cell in cells if cell["duel"] == duel]
        theirs = {cell["seed"]: cell for cell in own if cell["who"] == THEIRS}
        for who in dict.fromkeys(cell["who"] for cell in own):
            rows = [cell for cell in own if cell["who"] == who]
            psnr, ssim = (statistics.fmean(row[key] for row in rows) for key in ("psnr", "ssim"))
            ratios = [row["processor_seconds"] / theirs[row["seed"]]["processor_seconds"] for row in rows]
            spread = "" if who == THEIRS else f" ({min(ratios):.2f} to {max(ratios):.2f})"
            each, until = ", ".join(f"{row['psnr']:.1f}" for row in rows), "–"
            if who != THEIRS:
                times = [(reached(row, theirs[row["seed"]]["psnr"]), theirs[row["seed"]]) for row in rows]
                shares = [time and time / other["processor_seconds"] for time, other in times]
                until = ", ".join("never" if share is None else f"{share:.2f}" for share in shares)
            lines.append(
                f"| {duel} | {who} | {each} | {psnr:.1f} | {ssim:.3f} | {statistics.median(ratios):.2f}{spread} "
                f"| {until} |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
