"""What a tuning's results depend on, as its directory remembers it; another tuning in the same directory is refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, cast, get_args

from undelta.errors import ConfigError
from undelta.files import write_bytes
from undelta.schema import read_json, unknown
from undelta.studies.tuning.proposals import Kernel
from undelta.studies.tuning.space import SPACES, Space
from undelta.trials.directory import PLAN, RUN
from undelta.trials.record import versions

OBSERVATION = "observation.safetensors"

ObjectiveName = Literal["mismatch", "shadow"]
Direction = Literal["minimize", "maximize"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All that the proposals and the values of a tuning depend on; not how many trials there are, nor who runs them."""

    observation: str
    """The digest of the update."""
    scenario: str | None = None
    """The digest of the scenario that it was simulated by."""
    attack: str
    """One that has a Q."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the attack that are not tuned."""
    steps: int
    """Iterations of each evaluation."""
    space: str = "paper"
    """What may be searched: "paper", "weights" or "wide"."""
    searched: tuple[str, ...]
    """The sides of the search space that matter for this update."""
    objective: ObjectiveName = "mismatch"
    """f(Q) of the paper, or image quality on shadow clients, which are the attacker's own."""
    public: str | None = None
    """Where the images of shadow clients come from; they must not be the real client's."""
    shadow_draws: int = 2
    """How many such clients."""
    random: int = 12
    """Trials at random before the first proposal."""
    kernel: Kernel = "matern"
    """Of the Gaussian process."""
    prune: bool = True
    """Whether to end evaluations early that are worse than the median."""
    seed: int = 0
    """Also draws the scenario."""
    versions: Mapping[str, str] = field(default_factory=lambda: {**versions(), "optuna": version("optuna")})

    def __post_init__(self) -> None:
        if self.steps < 1 or self.random < 1:
            raise ConfigError(f"expected --steps >= 1 and --random >= 1, got {self.steps} and {self.random}")
        if self.kernel not in get_args(Kernel):
            raise ConfigError(f"--kernel: {unknown('kernel', self.kernel, get_args(Kernel))}")
        if self.objective == "shadow" and self.public is None:
            raise ConfigError("--objective shadow needs --public DATA: images that are not the client's")
        if self.objective == "shadow" and self.shadow_draws < 1:
            raise ConfigError(f"expected --shadow-draws >= 1, got {self.shadow_draws}")
        if self.objective == "mismatch" and self.public is not None:
            raise ConfigError("--public is for --objective shadow; the mismatch needs no images")

    @property
    def sides(self) -> Space:
        """What is searched."""
        return {name: side for name, side in SPACES[self.space].items() if name in self.searched}

    @property
    def direction(self) -> Direction:
        """Which way is better."""
        return "minimize" if self.objective == "mismatch" else "maximize"

    @property
    def warmup(self) -> int:
        """The step from which hopeless trials are ended: three tenths of the way, or the first shadow client."""
        return self.steps * int(self.arguments.get("restarts", 1)) * 3 // 10 if self.objective == "mismatch" else 0

    @property
    def name(self) -> str:
        """The study's name: equal plans meet in one study, also from several machines; others never do."""
        text = json.dumps(asdict(self), sort_keys=True)
        return f"undelta {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def check_objective(name: str) -> ObjectiveName:
    """The objective of that name."""
    if name not in get_args(ObjectiveName):
        raise ConfigError(f"--objective: {unknown('objective', name, get_args(ObjectiveName))}")
    return cast("ObjectiveName", name)


def read_plan(directory: Path) -> Plan:
    """The plan that a directory belongs to."""
    return read_json(Plan, directory / PLAN)


def _change(key: str, old: object, new: object) -> str:
    if key in ("observation", "scenario"):  # digests say nothing to people
        return f"another {key}"
    return f"{key} was {old!r}, is {new!r}"


def settle(plan: Plan, directory: Path) -> None:
    """Make the directory that of this plan, or refuse it if it belongs to something else."""
    if (directory / PLAN).exists():
        there = read_plan(directory)
        if there != plan:
            old, new = asdict(there), asdict(plan)
            differing = [_change(key, old[key], new[key]) for key in new if old[key] != new[key]]
            raise ConfigError(
                f"{directory} holds a tuning with other settings ({'; '.join(differing)}); "
                "repeat that command, or choose another --out"
            )
        return
    if (directory / RUN).exists() or (directory / "trials").exists():
        raise ConfigError(f"{directory} already holds results of something else; choose another --out")
    write_bytes(directory / PLAN, json.dumps(asdict(plan), indent=1, sort_keys=True, allow_nan=False).encode())
