"""Three sizes of the same experiments: the paper's own, one for a single core, and one that only shows that all runs.

A scale divides the paper's N, E and B, and says which model, images, iterations and regularizers take the place of the
paper's; ``scales.toml`` has all three.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from undelta.errors import ConfigError
from undelta.schema import parse, unknown
from undelta.studies.reproduce import published
from undelta.studies.reproduce.published import Case
from undelta.trials.config import read_toml

T = TypeVar("T")


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
    samples: Mapping[str, int] = field(default_factory=dict)
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
        samples = self.samples.get(str(case.samples), case.samples)
        return Case(samples, max(1, case.epochs // self.epochs), max(1, case.batches // self.batches))

    def scenario_of(self, case: Case, data: str) -> dict[str, Any]:
        """Fields of the `Scenario` that takes the place of the paper's case."""
        here = self.case(case)
        sizes = {"num_samples": here.samples, "epochs": here.epochs, "batches": here.batches}
        return {"data": data, **sizes, **self.scenario}


def read_named(cls: type[T], module: str) -> dict[str, T]:
    """The tables of the TOML file beside a module, each with its key as its name."""
    path = Path(module).with_suffix(".toml")
    _, tables = read_toml(path)
    named = {name: {"name": name, **table} for name, table in tables.items()}
    return {name: parse(cls, table, where=f"{path}: [{name}]", error=ConfigError) for name, table in named.items()}


SCALES = read_named(Scale, __file__)
SMOKE, CPU, PAPER = (SCALES[name] for name in ("smoke", "cpu", "paper"))


def find_scale(name: str) -> Scale:
    """The scale of that name."""
    if name not in SCALES:
        raise ConfigError(f"--scale: {unknown('scale', name, SCALES)}")
    return SCALES[name]
