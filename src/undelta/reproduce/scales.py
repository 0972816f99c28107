"""Three sizes of the same experiments: the paper's own, one for a single core, and one that only shows that all runs.

A scale divides the paper's N, E and B, and says which model, images, iterations and regularizers take the place of the
paper's. docs/reproduction.md says why these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from undelta.errors import ConfigError
from undelta.parsing import unknown
from undelta.reproduce import published
from undelta.reproduce.published import Case


@dataclass(frozen=True, kw_only=True)
class Scale:
    """What takes the place of the paper's setting."""

    name: str
    says: str
    """In words, for tables."""
    data: str | None
    """Where images come from if nothing else is asked for; None: it must be."""
    seeds: tuple[int, ...]
    scenario: Mapping[str, Any]
    """Fields of every scenario."""
    divisors: tuple[int, int, int] = (1, 1, 1)
    """Of N, E and B."""
    iterations: int
    large_iterations: int
    """Where the paper takes 50 000."""
    attack_rate: float = published.ATTACK_RATE
    """Adam's, for all of the paper's methods."""
    priors: Mapping[str, float] = field(default_factory=dict)
    """Coefficients of the regularizers, the same for all methods."""
    strongest: Mapping[str, Any] = field(default_factory=dict)
    """Settings of our own attack."""
    rounds: tuple[int, ...]
    """FedAvg rounds before the attacked one, for `stages`."""
    tuning_trials: int
    tuning_random: int
    """Trials before the surrogate takes over."""
    tuning_iterations: int

    def case(self, case: Case) -> Case:
        """The paper's case at this scale."""
        samples, epochs, batches = (
            max(1, value // divisor) for value, divisor in zip(case, self.divisors, strict=True)
        )
        return Case(samples, epochs, batches)


SMOKE = Scale(
    name="smoke",
    says="grey 16 x 16 patches, ResNet-8 of width 4, a few iterations: shows that everything runs, and nothing else",
    data="faces",
    seeds=(0,),
    scenario={
        "image_size": 16,
        "model": "resnet8",
        "model_arguments": {"width": 4},
        "learning_rate": 0.01,
        "norm_mode": "eval",
    },
    divisors=(4, 4, 2),
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
    says="16 x 16 color images, ResNet-8 of width 16, 300 iterations",
    data="patches",
    seeds=(0, 1, 2),
    scenario={
        "image_size": 16,
        "model": "resnet8",
        "model_arguments": {"width": 16},
        "learning_rate": published.LEARNING_RATE,
        "norm_mode": "eval",
    },
    divisors=(2, 2, 1),
    iterations=300,
    large_iterations=1000,
    priors={"tv": 0.01, "bn": 0.0},
    rounds=(0, 1, 4, 16),
    tuning_trials=published.TUNING_TRIALS,
    tuning_random=published.TUNING_RANDOM,
    tuning_iterations=100,
)

PAPER = Scale(
    name="paper",
    says="the paper's own setting: ResNet-18, ImageNet at 224 x 224, 10 000 iterations (50 000 in the large case)",
    data=None,
    seeds=(0,),
    scenario={
        "image_size": published.IMAGE_SIZE,
        "model": "resnet18",
        "learning_rate": published.LEARNING_RATE,
    },
    iterations=published.ITERATIONS,
    large_iterations=published.LARGE_ITERATIONS,
    rounds=(0, 1, 10, 100),
    tuning_trials=published.TUNING_TRIALS,
    tuning_random=published.TUNING_RANDOM,
    tuning_iterations=published.ITERATIONS,
)

SCALES: Mapping[str, Scale] = {scale.name: scale for scale in (SMOKE, CPU, PAPER)}


def find_scale(name: str) -> Scale:
    """The scale of that name."""
    if name not in SCALES:
        raise ConfigError(f"--scale: {unknown('scale', name, SCALES)}")
    return SCALES[name]
