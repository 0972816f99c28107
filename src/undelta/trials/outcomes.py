"""What a trial leaves to be looked at; worked out after the attack, so that nothing here reaches one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from undelta.attacker.reconstruction import Reconstruction
from undelta.client.private import Private
from undelta.errors import ConfigError
from undelta.evaluation.score import Score
from undelta.trials.directory import RunDirectory
from undelta.trials.leases import Leases
from undelta.trials.trial import Outcome, Trial


def pictures(outcome: Outcome) -> dict[str, Tensor]:
    """A trial's pictures; without a truth there are no originals."""
    return compare(outcome.reconstruction, outcome.private, outcome.score)


def compare(reconstruction: Reconstruction, private: Private | None, score: Score | None) -> dict[str, Tensor]:
    """Originals, reconstruction and iterates in eight bits, all in the order of the originals where they are known."""
    images, iterates = to_bytes(reconstruction.images), reconstruction.iterates
    order = list(score.order) if score else list(range(len(images)))
    return {
        "originals": to_bytes(private.images) if private else images.new_empty(0, *images.shape[1:]),  # (N, C, H, W)
        "reconstruction": images[order],
        "iterates": torch.stack([one.images[order] for one in iterates])
        if iterates
        else images.new_empty(0, *images.shape),
        "iterations": torch.tensor([iterate.iteration for iterate in iterates], dtype=torch.int64),
    }


def to_bytes(images: Tensor) -> Tensor:
    """Pixels in [0, 1] as eight bits."""
    return (images.detach().cpu().nan_to_num().clamp(0, 1) * 255).round().to(torch.uint8)


def write_outcomes(directory: str | Path, trials: Sequence[Trial], outcomes: Sequence[Outcome]) -> None:
    """Write what `run` returned as a run directory, which `write_report` and ``undelta report`` read.

    The directory is a new one, or one of earlier outcomes, which are set aside.
    """
    store, leases = RunDirectory(Path(directory)), Leases(worker="write_outcomes")
    store.prepare(None, trials, leases, kind="write_outcomes")
    for trial, outcome in zip(trials, outcomes, strict=True):
        lease = leases.acquire(store.folder(trial.key))
        if lease is None:
            raise ConfigError(f"{directory} is being worked on (trial {trial.key}); choose another directory")
        with lease:
            store.finish(outcome.record, pictures(outcome), lease.check)
