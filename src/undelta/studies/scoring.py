"""`undelta score`: what attacks on a recorded update found, compared with the private images."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from undelta.attacker.reconstruction import Iterate, Reconstruction
from undelta.client.private import Private, load_private, private_pictures
from undelta.errors import ConfigError, DataError, UndeltaError
from undelta.files import read_tensors
from undelta.observation import Observation
from undelta.observation.checks import FLOATS
from undelta.observation.file import digest_of, digests_of, load_observation
from undelta.studies.single import SHEET
from undelta.trials.directory import CONFIGURATION, RECONSTRUCTION, RunDirectory
from undelta.trials.judgment import judge_directory
from undelta.trials.leases import Leases
from undelta.trials.outcomes import compare
from undelta.trials.pictures import write_sheet
from undelta.trials.record import Record, check_scenario, of_all_rounds, summary
from undelta.trials.trial import evaluate, promised, scored, with_noise

ITERATE = re.compile(r"iterate (\d{1,12}) (\d{1,12}\.\d+(?:e-?\d{1,3})?)")


def score_job(
    directory: Path, *, truth_path: Path, observation_path: Path | None = None, model: str | None = None
) -> list[Record]:
    """Score a directory's attacks against the truth; adds the metrics to their records, and pictures.

    Args:
        directory: What `undelta attack` wrote.
        truth_path: What `undelta simulate` wrote, or a folder of the private pictures.
        observation_path: Another copy of the update, if the one that was attacked is no longer where it was; the floor
            and what the attack makes of noise need it.
        model: A custom model, which the user trusts.
    """
    store = RunDirectory(directory)
    if (directory / CONFIGURATION).exists():
        raise ConfigError(f"{directory} holds an audit; tell `undelta audit` itself what its updates' truth is")
    recorded = [record for record in store.records() if record.observation_file is not None]
    if not recorded:
        raise DataError(f"{directory}: no attack on a recorded update in it")
    private, scenario, recorded, observation = _truth(recorded, truth_path, observation_path, model)
    done, rows, noisy = [], [("original", private.images)], set[str]()
    for key in (record.key for record in recorded):
        lease = Leases(worker="score").acquire(store.folder(key))
        if lease is None:
            raise ConfigError(f"{directory}: an attack in it is running; score it when it is done")
        with lease:
            record = store.record(key)  # again, now that nobody else can change it
            if record is None:
                continue
            reconstruction = _reconstruction(record, store.folder(key) / RECONSTRUCTION)
            result = evaluate(reconstruction, private, observation)
            known = scenario or record.scenario
            epsilon, delta = promised(known)
            record = replace(record, scenario=known, name=summary(known), epsilon=epsilon, delta=delta)
            record = scored(record, reconstruction, private, result)
            if observation and record.attack not in noisy:  # once for each attack
                record = with_noise(record, private, observation)
                noisy.add(record.attack)
            store.unjudge()
            store.finish(record, compare(reconstruction, private, result), lease.check)
        rows.append((record.attack, reconstruction.images[list(result.order)]))
        done.append(record)
    write_sheet(directory / SHEET, rows)
    judge_directory(store)
    return done


def _truth(
    recorded: list[Record], path: Path, observation_path: Path | None, model: str | None
) -> tuple[Private, dict[str, Any], list[Record], Observation | None]:
    """The private images, the scenario if one was simulated, the attacks on its update, and that update."""
    if not path.is_dir():
        private, scenario, digest = load_private(path)
        check_scenario(scenario, str(path))
        observation = _attacked(recorded[0], observation_path, model)
        other = all(record.observation != digest for record in recorded)
        if other and observation and digest in digests_of(observation):  # the truth of one of its rounds
            digest, scenario = digest_of(observation), of_all_rounds(scenario, observation)
        recorded = [record for record in recorded if record.observation == digest]
        if not recorded:
            raise DataError(f"{path} is the truth of another observation than the one that was attacked")
        return private, scenario, recorded, _attacked(recorded[0], observation_path, model)
    observation = _attacked(recorded[0], observation_path, model)
    if observation is None:
        raise DataError(f"{path} holds pictures, whose size the update says; name it: --observation FILE")
    recorded = [record for record in recorded if record.observation == digest_of(observation)]
    return private_pictures(path, observation), {}, recorded, observation


def _reconstruction(record: Record, path: Path) -> Reconstruction:
    tensors, _ = read_tensors(path, kind="reconstruction", error=DataError)
    if not {"images", "labels"} <= set(tensors):
        raise DataError(f"{path}: expected images and labels, got {', '.join(sorted(tensors))}")
    if tensors["images"].dtype not in FLOATS or tensors["labels"].dtype != torch.int64:
        raise DataError(f"{path}: expected images of float32 or float64 and labels of int64")
    return Reconstruction(
        images=tensors["images"],
        labels=tensors["labels"],
        mismatch=math.nan if record.mismatch is None else record.mismatch,
        iterations=record.iterations or 0,
        seconds=record.seconds or 0.0,
        status="diverged" if record.status == "diverged" else "completed",
        terms={name: math.nan if value is None else value for name, value in record.terms.items()},
        objective=record.objective,
        learned=record.learned,
        iterates=tuple(sorted(_iterates(tensors), key=lambda one: one.iteration)),
    )


def _iterates(tensors: Mapping[str, Tensor]) -> Iterator[Iterate]:
    """The pictures on the way, which the attack kept under their iteration and time."""
    for name, images in tensors.items():
        if (
            (found := ITERATE.fullmatch(name))
            and images.dtype == torch.uint8
            and images.shape == tensors["images"].shape
        ):
            yield Iterate(int(found[1]), float(found[2]), images)


def _attacked(record: Record, path: Path | None, model: str | None) -> Observation | None:
    """The observation that a run attacked; None if it is not where it was, or a custom model is not named."""
    try:
        observation = load_observation(path or str(record.observation_file), model=model)
    except UndeltaError:
        if path is not None:
            raise
        return None
    if digest_of(observation) == record.observation:
        return observation
    if path is not None:
        raise DataError(f"{path} is another observation than the one that was attacked")
    return None
