"""Three sizes of the same experiments: the paper's own, one for a single core, and one that only shows that all runs.

A scale divides the paper's N, E and B, and says which model, images, iterations and regularizers take the place of the
paper's. docs/reproduction.md says why these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from undelta.errors import ConfigError
from undelta.schema import unknown
from undelta.studies.reproduce import published
from undelta.studies.reproduce.published import Case


@dataclass(frozen=True, kw_only=True)
class Scale:
    """What takes the place of the paper's setting, which is the default."""

    name: str
    says: str
    """In words, for tables."""
    data: str | None = None
    """Where images come from if nothing else is asked for; None: it must be."""
    seeds: tuple[int, ...] = (0,)
    scenario: Mapping[str, Any]
    """Fields of every scenario."""
    samples: Mapping[int, int] = field(default_factory=dict)
    """The paper's N, and what takes its place; the same if not mentioned."""
    epochs: int = 1
    """What the paper's E is divided by."""
    batches: int = 1
    """What the paper's B is divided by; at least one mini-batch is left."""
    iterations: int = published.ITERATIONS
    large_iterations: int = published.LARGE_ITERATIONS
    """Where the paper takes 50 000."""
    attack_rate: float = published.ATTACK_RATE
    """Adam's, for all of the paper's methods."""
    priors: Mapping[str, float] = field(default_factory=dict)
    """Coefficients of the regularizers, the same for all methods."""
    geng_nodes: int | None = None
    """Gradients that GENG takes along the path; None: one for each epoch."""
    strongest: Mapping[str, Any] = field(default_factory=dict)
    """Settings of our own attack."""
    rounds: tuple[int, ...]
    """FedAvg rounds before the attacked one, for `stages`."""
    tuning_trials: int = published.TUNING_TRIALS
    tuning_random: int = published.TUNING_RANDOM
    """Trials before the surrogate takes over."""
    tuning_iterations: int = published.ITERATIONS

    def case(self, case: Case) -> Case:
        """The paper's case at this scale."""
        samples = self.samples.get(case.samples, case.samples)
        return Case(samples, max(1, case.epochs // self.epochs), max(1, case.batches // self.batches))

    def scenario_of(self, case: Case, data: str) -> dict[str, Any]:
        """Fields of the `Scenario` that takes the place of the paper's case."""
        here = self.case(case)
        sizes = {"num_samples": here.samples, "epochs": here.epochs, "batches": here.batches}
        return {"data": data, **sizes, **self.scenario}


SMALL = {"image_size": 16, "model": "resnet8"}

SMOKE = Scale(
    name="smoke",
    says="grey 16 x 16 patches, ResNet-8 of width 4, a few iterations: shows that everything runs, and nothing else",
    data="faces",
    scenario={**SMALL, "model_arguments": {"width": 4}, "learning_rate": 0.01, "norm_mode": "eval"},
    samples={8: 2, 16: 3, 32: 4, 64: 6, 128: 8},
    epochs=4,
    batches=2,
    iterations=6,
    large_iterations=12,
    priors={"tv": 0.01, "bn": 0.0},
    strongest={"steps": 4, "rollout_steps": 2, "macro_steps": 2},
    rounds=(0, 1, 2),
    tuning_trials=4,
    tuning_random=3,
    tuning_iterations=3,
)

CPU = Scale(
    name="cpu",
    says="16 x 16 images, ResNet-8 of full width, 150 iterations (450 in the large case), fewer images and epochs",
    data="patches",
    seeds=(0, 1, 2),
    # With a quarter of the epochs and half the mini-batches, eight times the rate takes the client as far.
    scenario={**SMALL, "learning_rate": 8 * published.LEARNING_RATE, "norm_mode": "eval"},
    samples={8: 4, 16: 6, 32: 8, 64: 12, 128: 16},
    epochs=4,
    batches=2,
    iterations=150,
    large_iterations=450,
    attack_rate=1.0,
    priors={"tv": 0.01, "bn": 0.0},
    geng_nodes=2,
    strongest={"rollout_steps": 40},
    rounds=(0, 1, 4, 16),
    tuning_iterations=75,
)

PAPER = Scale(
    name="paper",
    says="the paper's own setting: ResNet-18, ImageNet at 224 x 224, 10 000 iterations (50 000 in the large case)",
    scenario={
        "image_size": published.IMAGE_SIZE,
        "model": "resnet18",
        "learning_rate": published.LEARNING_RATE,
        "norm_mode": "eval",  # not stated in the paper
    },
    rounds=(0, 1, 10, 100),
)

SCALES: Mapping[str, Scale] = {scale.name: scale for scale in (SMOKE, CPU, PAPER)}


def find_scale(name: str) -> Scale:
    """The scale of that name."""
    if name not in SCALES:
        raise ConfigError(f"--scale: {unknown('scale', name, SCALES)}")
    return SCALES[name]
