"""Records: one line of results per trial, as written to ``results.json``."""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import platform
import resource
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from undelta.attacker.reconstruction import Reconstruction
from undelta.client.scenario import Scenario
from undelta.errors import DataError
from undelta.evaluation.score import Score
from undelta.observation import Observation
from undelta.recording import digest_of, write_bytes

SCHEMA = 1
NEEDED = {"attack", "mismatch", "iterations", "seconds", "status"}  # what scoring an old run relies on
Record = dict[str, Any]


def make_record(
    *,
    attack: str,
    arguments: Mapping[str, Any],
    scenario: Mapping[str, Any],
    seed: int,
    reconstruction: Reconstruction,
    observation: Observation,
) -> Record:
    """What is known of a trial before it is scored; metrics are null."""
    seconds, iterations = reconstruction.seconds, reconstruction.iterations
    return {
        "attack": attack,
        "attack_arguments": dict(arguments),
        "scenario": dict(scenario),
        "seed": seed,
        "observation": digest_of(observation),
        "psnr": None,
        "ssim": None,
        "lpips": None,
        "mse": None,
        "fraction_recovered": None,
        "epsilon": None,
        "delta": None,
        "mismatch": finite(reconstruction.mismatch),
        "terms": {name: finite(value) for name, value in reconstruction.terms.items()},
        "floor": None,
        "objective": reconstruction.objective,
        "learned": dict(reconstruction.learned),
        "notes": list(reconstruction.notes),
        "iterations": iterations,
        "seconds": seconds,
        "seconds_per_iteration": seconds / iterations if iterations else None,
        "peak_memory_mb": peak_memory_mb(),
        "status": reconstruction.status,
        "versions": versions(),
        "threads": torch.get_num_threads(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "history": [
            {key: finite(value) for key, value in moment._asdict().items()} for moment in reconstruction.history
        ],
        "images": [],
    }


def finite(value: float) -> float | None:
    """JSON knows no NaN; a diverged run has some, which are written as null."""
    return value if math.isfinite(value) else None


def with_score(record: Record, score: Score) -> Record:
    """The record with its metrics filled in."""
    values = asdict(score)
    floor = score.floor and {**asdict(score.floor), "loss": score.floor.loss, "text": score.floor.text}
    means = {key: values[key] for key in ("psnr", "ssim", "lpips", "mse", "fraction_recovered")}
    return {**record, **means, "floor": floor, "images": [dict(image) for image in values["images"]]}


def with_privacy(record: Record, scenario: Scenario) -> Record:
    """The record with what a differentially private client was promised, by the round that was attacked."""
    epsilon, delta = scenario.privacy() or (None, None)
    return {**record, "epsilon": epsilon, "delta": delta}


def describe_scenario(scenario: Scenario) -> dict[str, Any]:
    """A scenario as JSON."""
    return asdict(scenario)


def describe_observation(observation: Observation) -> dict[str, Any]:
    """What an observation alone says of its scenario; the source of the data and the round are unknown."""
    return {
        "data": None,
        "image_size": observation.image.shape[-1],
        "model": observation.architecture.name,
        "model_arguments": dict(observation.architecture.arguments),
        "num_samples": observation.num_samples,
        **asdict(observation.training),
        **dict.fromkeys(observation.unknown),
        "rounds": None,
        "grant_labels": observation.labels is not None,
    }


def write_results(directory: Path, records: Sequence[Record]) -> None:
    """Write ``results.json`` whole or not at all."""
    results = {"schema": SCHEMA, "undelta": version("undelta"), "records": list(records)}
    write_bytes(directory / "results.json", json.dumps(results, indent=1, allow_nan=False).encode())


def read_results(directory: Path) -> list[Record]:
    """The records of a run directory."""
    path = directory / "results.json"
    try:
        results = json.loads(path.read_text())
    except OSError as problem:
        raise DataError(f"{path}: {problem.strerror}") from problem
    except ValueError as problem:
        raise DataError(f"{path}: not valid JSON ({problem})") from problem
    if not isinstance(results, dict) or results.get("schema") != SCHEMA or not isinstance(results.get("records"), list):
        raise DataError(f"{path}: expected results of schema {SCHEMA}")
    for record in results["records"]:
        if not isinstance(record, dict) or not set(record) >= NEEDED:
            raise DataError(f"{path}: a record lacks some of {', '.join(sorted(NEEDED))}")
    return list(results["records"])


def versions() -> dict[str, str]:
    """What the numbers depend on."""
    packages = {name: version(name) for name in ("torch", "numpy", "scipy", "scikit-image")}
    return {"undelta": version("undelta"), "python": platform.python_version(), **packages}


def reset_peak_memory() -> None:
    """Let the peak begin anew, where the system can (Linux); elsewhere it is that of the whole process."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory_mb() -> float:
    """The largest resident memory of this process since the last reset."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 2**10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
