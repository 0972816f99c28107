"""What updates determine, over noise, N, B, E and networks, and attacks beside the bound.

    python benchmarks/bound.py grid attacks --out docs/results/bound.json
    python benchmarks/bound.py signs --out docs/results/bound-signs.json
    python benchmarks/bound.py demo --noise 1 --products 12 --names strongest "awa, tv 0.1" \\
        --out docs/results/bound-demo.json

Noise is in units of the root mean square of the update's entries, so that updates of different lengths compare.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from workloads import write

from undelta.attacker.attacks import ATTACKS
from undelta.client.disclose import disclose, disclose_with_secrets
from undelta.client.scenario import Scenario
from undelta.evaluation.determined import Whitened, ceilings, linear_reconstruction
from undelta.evaluation.jacobian import Jacobian, batches_of
from undelta.evaluation.metrics import psnr
from undelta.evaluation.score import score
from undelta.evaluation.sent import sent
from undelta.evaluation.spectrum import spectrum
from undelta.studies.bound_case import prior_of
from undelta.updates import inner

SMALL = Scenario(
    data="patches",
    image_size=16,
    num_samples=4,
    model="cnn",
    model_arguments={"width": 16, "hidden": 64},
    norm_mode="eval",
    epochs=4,
    batches=2,
    learning_rate=0.01,
)
DEMO = Scenario(data="photos", image_size=32, num_samples=8, model="cnn", epochs=10, batches=4, learning_rate=0.004)
NETWORKS: dict[str, dict[str, Any]] = {
    "mlp": {"hidden": [64]},
    "lenet": {},
    "convnet": {"width": 16},
    "resnet8": {"width": 8},
}
NOISE = (0.03, 0.1, 0.3, 1.0, 3.0)
USUAL = (0.1, 1.0)
ATTACKERS: dict[str, dict[str, Any]] = {
    "strongest": {"rollout_steps": 100},
    "awa": {"steps": 300},
    "awa, tv 0.1": {"steps": 300, "tv": 0.1},
    "awa, tv 0.5": {"steps": 300, "tv": 0.5},
}


def grid() -> Iterator[tuple[str, Scenario]]:
    """One thing changed at a time."""
    yield "base", SMALL
    for count in (1, 2, 8, 16):
        yield f"N={count}", replace(SMALL, num_samples=count, batches=min(2, count))
    for batches in (1, 4):
        yield f"B={batches}", replace(SMALL, batches=batches)
    for epochs in (1, 16):
        yield f"E={epochs}", replace(SMALL, epochs=epochs)
    for name, arguments in NETWORKS.items():
        yield name, replace(SMALL, model=name, model_arguments=arguments)


def measure(
    scenario: Scenario, seed: int, noise: Sequence[float], *, products: int, own_spectra: bool, singular: bool = True
) -> dict[str, Any]:
    """The bound of one client at several sizes of noise, and the cost."""
    began = time.perf_counter()
    private = scenario.draw(seed)
    observation, secrets = disclose_with_secrets(private, scenario, seed=seed)
    batches = batches_of(secrets[0].orders, scenario.training.sizes(len(private)))
    jacobian = Jacobian.at(private, observation, batches)
    prior, words = prior_of(scenario, seed, None)
    prior = prior.of_each(private.images) if own_spectra else prior
    entries = sum(value.numel() for value in jacobian.update.values())
    rms = math.sqrt(float(inner(jacobian.update, jacobian.update)) / entries)
    whitened = Whitened(jacobian=jacobian, sent=sent(jacobian.update, observation, ()).alone("given"), prior=prior)
    found = ceilings(whitened, scales=[rms * size for size in noise], products=products, seed=seed)
    values = spectrum(jacobian, products=10, seed=seed) if singular else None
    rows = []
    for size, ceiling in zip(noise, found, strict=True):
        pictures = linear_reconstruction(whitened, private.images, scale=rms * size, products=products // 2, seed=seed)
        rows.append(
            {
                "noise": size,
                "sigma": rms * size,
                "bound": ceiling.mean,
                "typical": ceiling.mean_typical,
                "error": ceiling.error,
                "gap": ceiling.gap,
                "images": ceiling.typical,
                "linear": statistics.fmean(psnr(pictures, private.images.double()).tolist()),
                "products": ceiling.products,
            }
        )
    return {
        "seed": seed,
        "prior": words,
        "own_spectra": own_spectra,
        "prior_psnr": -10 * math.log10(prior.variance),
        "surprise": prior.surprise(private.images).tolist(),
        "update_rms": rms,
        "entries": entries,
        "directions": whitened.size,
        "leading": values and values.leading,
        "sensitivity": values and values.sensitivity,
        "rows": rows,
        "seconds": time.perf_counter() - began,
    }


def redrawn(scenario: Scenario, seed: int, noise: float, *, products: int, draws: int = 4) -> dict[str, Any]:
    """The linear estimate's PSNR of the true images, and of images with their spectra and random signs, image by image.

    J is that of the true images for all of them.
    """
    private = scenario.draw(seed)
    observation, secrets = disclose_with_secrets(private, scenario, seed=seed)
    jacobian = Jacobian.at(private, observation, batches_of(secrets[0].orders, scenario.training.sizes(len(private))))
    prior = prior_of(scenario, seed, None)[0].of_each(private.images)
    entries = sum(value.numel() for value in jacobian.update.values())
    sigma = noise * math.sqrt(float(inner(jacobian.update, jacobian.update)) / entries)
    whitened = Whitened(jacobian=jacobian, sent=sent(jacobian.update, observation, ()).alone("given"), prior=prior)
    truth, scores = private.images.double(), []
    for draw in range(draws + 1):
        signs = whitened.signs(torch.Generator().manual_seed(draw)) if draw else 1.0
        images = prior.mean + prior.deviations(prior.coefficients(truth - prior.mean) * signs)
        pictures = linear_reconstruction(whitened, images, scale=sigma, products=products, seed=draw)
        scores.append(psnr(pictures, images).tolist())
    (ceiling,) = ceilings(whitened, scales=[sigma], products=products, seed=seed)
    return {"seed": seed, "noise": noise, "bound": ceiling.typical, "true": scores[0], "redrawn": scores[1:]}


def attacked(scenario: Scenario, seed: int, sigma: float, names: Sequence[str]) -> dict[str, float]:
    """What attacks reach on the update with this noise."""
    noisy = replace(scenario, defenses=({"defense": "noise", "scale": sigma},))
    private = noisy.draw(seed)
    observation = disclose(private, noisy, seed=seed)
    reached = {}
    for name in names:
        attack = ATTACKS[name.split(",")[0]](**ATTACKERS[name])
        reached[name] = score(attack(observation, seed=seed), private).psnr
    return reached


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=("grid", "attacks", "demo", "signs"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--products", type=int, default=24, help="for each of two probes")
    parser.add_argument("--noise", type=float, nargs="+", default=list(NOISE))
    parser.add_argument("--names", nargs="+", choices=list(ATTACKERS), default=list(ATTACKERS))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    content: dict[str, Any] = {"seeds": options.seeds, "products": options.products}
    for seed in options.seeds:
        if "grid" in options.parts:
            for name, scenario in grid():
                noise = options.noise if name == "base" else USUAL
                cell = measure(scenario, seed, noise, products=options.products, own_spectra=True)
                content.setdefault("grid", []).append({"case": name, **cell})
                print(name, [(row["noise"], round(row["typical"], 2)) for row in cell["rows"]], flush=True)
        if "signs" in options.parts:
            content.setdefault("signs", []).append(redrawn(SMALL, seed, 1.0, products=options.products))
            print(content["signs"][-1], flush=True)
        for part, scenario in (("attacks", SMALL), ("demo", DEMO)):
            if part in options.parts:
                for own in (False, True):
                    cell = measure(
                        scenario, seed, options.noise, products=options.products, own_spectra=own, singular=own
                    )
                    content.setdefault(part, []).append(cell)
                    write(options.out, content)
                    print(part, own, [(row["noise"], round(row["typical"], 2)) for row in cell["rows"]], flush=True)
                for row in cell["rows"]:
                    reached = attacked(scenario, seed, row["sigma"], options.names)
                    content.setdefault("reached", []).append(
                        {"part": part, "seed": seed, "noise": row["noise"], "sigma": row["sigma"], "psnr": reached}
                    )
                    write(options.out, content)
                    print(part, row["noise"], reached, flush=True)
        write(options.out, content)


if __name__ == "__main__":
    main()
