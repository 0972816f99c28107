"""Sizes of the same experiments: from the paper's own down to one that only shows that all runs.

A scale says which N, E and B, model, images, iterations and regularizers take the place of the paper's; ``scales.toml``
has them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from undelta.errors import ConfigError
from undelta.schema import parse, unknown
from undelta.studies.reproduce import published
from undelta.studies.reproduce.published import Case
from undelta.trials.config import read_toml

T = TypeVar("T")
MATERN = "matern"
KERNELS = (MATERN, "gaussian")
"""Of the Gaussian process that tunes; named here since the tuning asks for Optuna."""


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
    cases: Mapping[str, tuple[tuple[int, int, int], ...]] = field(default_factory=dict)
    """By reproduction: (N, E, B) that take the place of the paper's, row by row, where division does not do."""
    most_samples: int | None = None
    """The largest N that is run; None: all."""
    iterations: int = published.ITERATIONS
    method_iterations: Mapping[str, int] = field(default_factory=dict)
    """Of methods whose iterations cost several times as much, in place of those."""
    method_gradients: Mapping[str, int] = field(default_factory=dict)
    """Of methods whose iterations take a gradient for every epoch: how many in all, whatever E is."""
    large_iterations: int = published.LARGE_ITERATIONS
    """Where the paper takes 50 000."""
    attack_rate: float = published.ATTACK_RATE
    """Adam's, for all of the paper's methods."""
    priors: Mapping[str, float] = field(default_factory=dict)
    """Coefficients of the regularizers, the same for all methods."""
    geng_nodes: int | None = None
    """Gradients that GENG takes along the whole path; None: one for each epoch."""
    strongest: Mapping[str, Any] = field(default_factory=dict)
    """Settings of our own attack."""
    rounds: tuple[int, ...]
    """FedAvg rounds before the attacked one, for `stages`."""
    tuning_trials: int = published.TUNING_TRIALS
    tuning_random: int = published.TUNING_RANDOM
    """Trials before the surrogate takes over."""
    tuning_iterations: int = published.ITERATIONS
    tuning_data: str | None = None
    """Where the tuned client's images come from; None: as the others', in a draw of its own."""

    def case(self, case: Case) -> Case:
        """The paper's case at this scale, by division."""
        samples = self.samples.get(str(case.samples), case.samples)
        return Case(samples, max(1, case.epochs // self.epochs), max(1, case.batches // self.batches))

    def cases_of(self, reproduction: str, cases: Sequence[Case]) -> list[Case]:
        """What takes the place of a reproduction's cases, in their order."""
        own = [Case(*case) for case in self.cases.get(reproduction, ())]
        if own and len(own) != len(cases):
            raise ConfigError(f"scale {self.name}: expected {len(cases)} cases of {reproduction}, got {len(own)}")
        return own or [self.case(case) for case in cases]

    def steps(self, method: str, epochs: int, *, large: bool) -> int:
        """Iterations of a method at this scale's E."""
        if large:
            return self.large_iterations
        if method in self.method_gradients:
            return max(1, self.method_gradients[method] // epochs)
        return self.method_iterations.get(method, self.iterations)

    def scenario_of(self, here: Case, data: str) -> dict[str, Any]:
        """Fields of the `Scenario` of a case of this scale."""
        sizes = {"num_samples": here.samples, "epochs": here.epochs, "batches": here.batches}
        return {"data": data, **sizes, **self.scenario}


def read_named(cls: type[T], module: str) -> dict[str, T]:
    """The tables of the TOML file beside a module, each with its key as its name."""
    path = Path(module).with_suffix(".toml")
    _, tables = read_toml(path)
    named = {name: {"name": name, **table} for name, table in tables.items()}
    return {name: parse(cls, table, where=f"{path}: [{name}]", error=ConfigError) for name, table in named.items()}


SCALES = read_named(Scale, __file__)
SMOKE, CPU, RESNET18, PAPER = (SCALES[name] for name in ("smoke", "cpu", "resnet18", "paper"))


def find_scale(name: str) -> Scale:
    """The scale of that name."""
    if name not in SCALES:
        raise ConfigError(f"--scale: {unknown('scale', name, SCALES)}")
    return SCALES[name]
