"""`undelta bound`: what an update determines of the images behind it, whatever the attack."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from undelta.client.scenario import Scenario
from undelta.engine import MEMORY
from undelta.errors import DataError
from undelta.evaluation.determined import ASSUMPTIONS
from undelta.files import make_folder, to_json, write_bytes
from undelta.observation import Observation
from undelta.observation.file import digest_of
from undelta.report.pictures import read_pictures
from undelta.studies.bound_case import Determined, Question, determine
from undelta.trials.bound_file import BOUND, BoundFile
from undelta.trials.config import load_scenario
from undelta.trials.directory import RunDirectory
from undelta.trials.pictures import write_sheet
from undelta.trials.record import Record, describe_scenario, versions

GRAY = 0.5  # what stands for zero in pictures of differences and directions

Told = Callable[[int, int], None]
"""Is told how many products are done, and of how many at most."""


def bound_job(
    scenario_path: Path,
    *,
    seeds: Sequence[int] = (0,),
    question: Question | None = None,
    initial: str | None = None,
    run: Path | None = None,
    out: Path | None = None,
    device: str = "auto",
    memory: int = MEMORY,
    told: Told | None = None,
) -> BoundFile:
    """The bound for each seed and each size of the noise.

    Args:
        scenario_path: A scenario as TOML.
        seeds: A run of the client for each.
        question: What to ask; by default, the bound at the scenario's own noise.
        initial: Weights to start from, instead of those the scenario names.
        run: A directory with attacks on the same updates, to compare with.
        out: A directory for the numbers, the pictures and what a stopped command resumes from.
        device: Where to compute.
        memory: Bytes that may be kept to save time.
        told: Is told of progress.
    """
    question = question or Question()
    scenario = load_scenario(scenario_path)
    scenario = scenario if initial is None else replace(scenario, initial=initial)
    if out is not None:
        make_folder(out)
    most, answers = question.most(scenario.num_samples), list[Determined]()
    for index, seed in enumerate(seeds):
        path = None if out is None else out / f"products-seed-{seed}.safetensors"
        count = partial(_tell, told, index, len(seeds), most)
        found = determine(scenario, seed, question, path=path, device=device, memory=memory, count=count)
        best = _strongest(run, found.observation)
        if best:
            rows = tuple(replace(row, attack=best.attack, reached=best.psnr) for row in found.rows)
            found = replace(found, rows=rows)
        answers.append(found)
        if out is not None and path is not None:
            write_sheet(out / f"bound-seed-{seed}.png", _sheet(found, run, best))
            if found.each:
                write_sheet(out / f"directions-seed-{seed}.png", _directions(found))
            path.unlink(missing_ok=True)
    result = to_file(scenario, answers)
    if out is not None:
        write_bytes(out / BOUND, to_json(result))
    return result


def to_file(scenario: Scenario, answers: Sequence[Determined], error: str | None = None) -> BoundFile:
    """What is written of the answers for some seeds, or of why there are none."""
    last = answers[-1] if answers else None
    return BoundFile(
        scenario=describe_scenario(scenario),
        error=error,
        noise=last.noise if last else "",
        prior=last.prior if last else "",
        prior_psnr=last.prior_psnr if last else None,
        assumptions=ASSUMPTIONS,
        notes=tuple(dict.fromkeys(note for one in answers for note in one.notes)),
        doubts=tuple(dict.fromkeys(doubt for one in answers for doubt in one.doubts)),
        rows=tuple(row for one in answers for row in one.rows),
        spectra=tuple(one.spectrum for one in answers),
        inputs=tuple(one.inputs for one in answers),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        versions=versions(),
    )


def _tell(told: Told | None, index: int, seeds: int, most: int, done: int) -> None:
    if told:
        told(index * most + min(done, most), seeds * most)


def _strongest(run: Path | None, observation: Observation) -> Record | None:
    """The record of the strongest attack in a directory on this very update."""
    if run is None:
        return None
    digest = digest_of(observation)
    records = [one for one in RunDirectory(run).records() if one.observation == digest and one.psnr is not None]
    if not records:
        raise DataError(f"{run}: no scored attack on this scenario's update with this seed")
    return max(records, key=lambda one: one.psnr or 0.0)


def _sheet(found: Determined, run: Path | None, best: Record | None) -> list[tuple[str, Tensor]]:
    """The originals, what the linearized problem allows, what it leaves free of them, and the attack's."""
    sheet = [("private originals", found.images)]
    for row, picture in zip(found.rows, found.pictures, strict=True):
        numbers = f"{row.mean_linear:.1f} dB, bound {row.bound:.1f} dB"
        sheet += [
            (f"best linear reconstruction, noise {row.sigma:.3g}: {numbers}", picture),
            ("what the update leaves free of them: the difference, on gray", GRAY + found.images - picture),
        ]
    pictures = RunDirectory(run).pictures(best.key) if run and best else None
    if best and pictures:
        made = read_pictures(pictures, most=len(found.images)).reconstruction / 255
        sheet.append((f"{best.attack}, the strongest attack here: {best.psnr:.1f} dB", made))
    return sheet


def _directions(found: Determined) -> list[tuple[str, Tensor]]:
    """Of each image alone, the direction that the update fixes best, and the one that it leaves most free."""
    rows = (
        ("what the update fixes best of each: its leading singular vector, on gray", [one.fixed for one in found.each]),
        ("what it leaves most free, of what was found: the trailing one", [one.free for one in found.each]),
    )
    return [("private originals", found.images), *((words, _on_gray(torch.stack(some))) for words, some in rows)]


def _on_gray(directions: Tensor) -> Tensor:
    return GRAY + GRAY * directions / directions.abs().amax((1, 2, 3), keepdim=True)
