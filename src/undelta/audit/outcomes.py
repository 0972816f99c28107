"""What an audit keeps of a trial that has run: its record, with a curve over time, and its pictures.

All of it is worked out after the attack, from what the attack left; nothing here reaches an attack.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from undelta.audit.record import Record, describe_scenario, finite, versions
from undelta.audit.trial import Outcome, Trial
from undelta.evaluation.metrics import psnr, ssim


def finished_record(trial: Trial, outcome: Outcome) -> Record:
    """The record of a trial that ran, as an audit keeps it."""
    result = outcome.reconstruction
    weights = result.layer_weights if result.status == "completed" else {}
    return {
        **outcome.record,
        **_names(trial),
        "error": None,
        "curve": _curve(outcome),
        "layer_weights": weights or None,
    }


def unmeasured_record(trial: Trial, status: str, error: str) -> Record:
    """The record of a trial without a result: nothing was measured, so all numbers are null."""
    unmeasured = (
        *("observation", "psnr", "ssim", "lpips", "mse", "fraction_recovered", "mismatch", "epsilon", "delta", "floor"),
        *("iterations", "seconds", "seconds_per_iteration", "peak_memory_mb"),
    )
    return {
        "attack": trial.attack,
        "attack_arguments": dict(trial.arguments),
        "scenario": describe_scenario(trial.scenario),
        "seed": trial.seed,
        **dict.fromkeys(unmeasured),
        "status": status,
        "versions": versions(),
        "threads": torch.get_num_threads(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "terms": {},
        "objective": None,
        "learned": {},
        "notes": [],
        "history": [],
        "images": [],
        **_names(trial),
        "error": error,
        "curve": [],
        "layer_weights": None,
    }


def _names(trial: Trial) -> dict[str, str]:
    return {"key": trial.key, "name": trial.name, "defense": trial.defense}


def pictures(outcome: Outcome) -> dict[str, Tensor]:
    """Originals, reconstruction and iterates in eight bits, all in the order of the originals."""
    order = list(outcome.score.order)
    originals = _bytes(outcome.private.images)  # (N, C, H, W)
    iterates = outcome.reconstruction.iterates
    shape = (len(iterates), *originals.shape)
    return {
        "originals": originals,
        "reconstruction": _bytes(outcome.reconstruction.images[order]),
        "iterates": _stack([iterate.images[order] for iterate in iterates], shape),
        "iterations": torch.tensor([iterate.iteration for iterate in iterates], dtype=torch.int64),
    }


def _stack(parts: list[Tensor], shape: Sequence[int]) -> Tensor:
    return torch.stack(parts) if parts else torch.empty(*shape, dtype=torch.uint8)


def _bytes(images: Tensor) -> Tensor:
    return (images.detach().cpu().nan_to_num().clamp(0, 1) * 255).round().to(torch.uint8)


def _curve(outcome: Outcome) -> list[dict[str, Any]]:
    """Means over images of each saved iterate, matched with the originals as the final images are."""
    order, truth = list(outcome.score.order), outcome.private.images
    curve = []
    for iterate in outcome.reconstruction.iterates:
        images = iterate.images[order].to(truth.dtype) / 255
        means = {"psnr": psnr(images, truth).mean().item(), "ssim": ssim(images, truth).mean().item()}
        moment = {"iteration": iterate.iteration, "seconds": iterate.seconds}
        curve.append({**moment, **{name: finite(value) for name, value in means.items()}})
    return curve
