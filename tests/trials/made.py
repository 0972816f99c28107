"""Records made up for tests of what they mean."""

from __future__ import annotations

from dataclasses import replace

from undelta.client.scenario import Scenario
from undelta.evaluation.score import ImageScore
from undelta.trials.record import Record
from undelta.trials.trial import Trial


def trial(attack: str = "awa", seed: int = 0, name: str = "base", defense: str = "none", epochs: int = 2) -> Trial:
    return Trial(scenario=Scenario(num_samples=4, epochs=epochs), attack=attack, seed=seed, name=name, defense=defense)


def image(ssim: float | None, psnr: float | None = 15.0) -> ImageScore:
    return ImageScore(label=0, ssim=ssim, psnr=psnr, mse=0.1, lpips=None)


def record(of: Trial, *images: ImageScore, status: str = "completed", recovered: float | None = 0.0) -> Record:
    return replace(
        of.unmeasured(status),
        iterations=260 if images else None,
        images=images,
        fraction_recovered=recovered if images else None,
    )
