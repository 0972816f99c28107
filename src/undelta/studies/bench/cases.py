"""The frozen set of observations: which they are, how they are made again, and whether they came out the same.

Everything comes from the package's own photographs and fixed seeds. ``cases.toml`` has the cases, ``frozen.json`` what
they came out as: digests, and a few projections of images and updates for machines that round otherwise.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from undelta.client.disclose import disclose
from undelta.client.private import Private
from undelta.client.scenario import Scenario
from undelta.errors import ConfigError, DataError
from undelta.files import load_json
from undelta.observation import Observation
from undelta.observation.observation import Hyperparameter
from undelta.observation.withhold import without
from undelta.schema import parse
from undelta.seeding import stream
from undelta.trials.config import read_toml
from undelta.updates import difference

FROZEN = Path(__file__).with_name("frozen.json")
PROJECTIONS, TOLERANCE = 4, 1e-3


@dataclass(frozen=True, kw_only=True)
class Case:
    """A client, and what its server knows."""

    name: str
    says: str
    scenario: Scenario
    seeds: tuple[int, ...] = (0, 1)
    withheld: tuple[Hyperparameter, ...] = ()

    def observe(self, seed: int, *, disguised: bool = False) -> tuple[Private, Observation]:
        """The truth, and what the server sees.

        ``disguised``: mirrored, and with colors that changed places, so that nobody finds the pictures by looking
        through the photographs.
        """
        private = self.scenario.draw(seed)
        if disguised:
            private = Private(images=private.images.flip(3).roll(1, 1), labels=private.labels)
        observation = disclose(private, self.scenario, seed=seed)
        return private, without(observation, *self.withheld) if self.withheld else observation


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A version of the benchmark."""

    version: int
    budget: float
    """Training steps of the client, on all of its images at once, in whose time an attack must be done."""
    cases: Mapping[str, Case]


@dataclass(frozen=True, kw_only=True)
class _CaseTable:
    says: str
    scenario: Mapping[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = (0, 1)
    withheld: tuple[Hyperparameter, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _File:
    version: int
    budget: float
    scenario: Mapping[str, Any]
    cases: Mapping[str, Mapping[str, Any]]


@cache
def load_benchmark() -> Benchmark:
    """The benchmark of this package."""
    path = Path(__file__).with_suffix(".toml")
    file = parse(_File, read_toml(path)[1], where=str(path), error=ConfigError)
    cases = {}
    for name, values in file.cases.items():
        where = f"{path}: [cases.{name}]"
        table = parse(_CaseTable, values, where=where, error=ConfigError)
        scenario = parse(Scenario, {**file.scenario, **table.scenario}, where=where, error=ConfigError)
        cases[name] = Case(name=name, says=table.says, scenario=scenario, seeds=table.seeds, withheld=table.withheld)
    return Benchmark(version=file.version, budget=file.budget, cases=cases)


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """What an observation and its truth are recognized by."""

    digest: str
    images: tuple[float, ...]
    update: tuple[float, ...]

    def compare(self, frozen: Fingerprint, where: str) -> bool:
        """Whether it is the frozen one bit for bit; another one than that, up to rounding, is an error."""
        if self.digest == frozen.digest:
            return True
        for mine, theirs in ((self.images, frozen.images), (self.update, frozen.update)):
            if len(mine) != len(theirs) or not all(
                math.isclose(a, b, abs_tol=TOLERANCE) for a, b in zip(mine, theirs, strict=True)
            ):
                raise DataError(f"{where} did not come out as it was frozen; other versions of torch or scikit-image?")
        return False


def fingerprint(private: Private, observation: Observation) -> Fingerprint:
    """Digest and projections."""
    values = []
    for one in observation.rounds:
        moved = difference(one.received, one.initial, [name for name, _ in one.model().named_parameters()])
        values += [moved[name].detach().cpu().contiguous() for name in sorted(moved)]
    whole = hashlib.sha256()
    for tensor in (private.images, private.labels, *values):
        whole.update(tensor.contiguous().numpy().tobytes())
    together = torch.cat([value.double().reshape(-1) for value in values])
    return Fingerprint(
        digest=whole.hexdigest(),
        images=_projections(private.images.double().reshape(-1)),
        update=_projections(together),
    )


def _projections(values: Tensor) -> tuple[float, ...]:
    """On a few random directions, in units of the vector's own length."""
    unit = values / values.norm().clamp_min(torch.finfo(values.dtype).tiny)
    generator = stream("bench", values.numel())
    found = [
        torch.dot(unit, torch.randn(values.numel(), generator=generator, dtype=values.dtype))
        for _ in range(PROJECTIONS)
    ]
    return tuple(round(float(value), 9) for value in found)


def frozen() -> dict[str, Fingerprint]:
    """What every case came out as, by its name and seed."""
    table = load_json(FROZEN)
    return {
        name: parse(Fingerprint, values, where=f"{FROZEN}: {name}", error=DataError) for name, values in table.items()
    }
