"""The shadow objective: tune image quality where the attacker knows the truth, on clients of its own.

The attacker takes public images, which are not the client's, and does to them what it knows was done to the private
ones: the same model and initial state, the same training, as many images of the same size. It attacks the updates that
it gets, and scores against its own images. The settings that are best there are carried to the observed update. Nothing
here has the private images, or could: it starts from an `Observation`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from undelta.client.datasets import Dataset, open_dataset, pick
from undelta.client.local import train
from undelta.client.private import Private
from undelta.errors import ConfigError
from undelta.evaluation.score import score
from undelta.observation import Observation
from undelta.seeding import stream
from undelta.studies.tuning.objective import OpenRun, Report, Tried, finite


@dataclass(frozen=True, kw_only=True)
class Shadow:
    """A client of the attacker's own: its truth, and the update that it would have sent."""

    truth: Private
    observation: Observation


def cast_shadow(observation: Observation, public: str, *, seed: int, draw: int = 0) -> Shadow:
    """Train a client on public images as the observed one was trained; other draws have other images and shuffles.

    They come from a source as a scenario's ``data`` does, and must not be the real client's.
    """
    # Without these there is nothing to imitate; MissingKnowledge says so.
    _ = observation.epochs, observation.batches, observation.learning_rate
    dataset = open_dataset(public)
    channels, height, width = observation.image.shape
    if dataset.channels != channels:
        raise ConfigError(
            f"--public: the model takes images of {channels} channels, {public} has {dataset.channels}; "
            "use another source"
        )
    if height != width:
        raise ConfigError(f"--public: sources give square images, the model takes {height} x {width}")
    generator = stream("attacker", seed, "shadow", draw)
    indices, labels = _choose(dataset, observation, generator)
    truth = Private(images=dataset.draw(indices, height), labels=labels)
    run = train(
        observation.model(), truth, observation.training, observation.image, seed=("attacker", seed, "shadow", draw)
    )
    return Shadow(
        truth=truth,
        observation=replace(
            observation,
            # What the real client keeps to itself, this one does, too.
            received={name: run.state[name] for name in observation.received},
            labels=None if observation.labels is None else labels.sort().values,
            further=(),  # those are the real client's
        ),
    )


def _choose(dataset: Dataset, observation: Observation, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images, and labels like the client's: the same multiset if it is known, and fitting images if there are."""
    classes = observation.image.classes
    if observation.labels is None:
        indices = pick(dataset, observation.num_samples, generator)
        same = dataset.classes <= classes
        return indices, dataset.labels[indices] if same else torch.randint(classes, indices.shape, generator=generator)
    labels = observation.labels.cpu()
    order = pick(dataset, len(dataset), generator)
    if dataset.classes == classes:
        counts = torch.bincount(labels, minlength=classes)
        fitting = [order[dataset.labels[order] == label][:count] for label, count in enumerate(counts.tolist())]
        if all(len(found) == count for found, count in zip(fitting, counts.tolist(), strict=True)):
            return torch.cat(fitting), labels.clone()  # which are sorted, so that they belong to each other
    # Classes of another kind: the labels are the client's, which image has which is as good as any.
    return pick(dataset, observation.num_samples, generator), labels.clone()


@dataclass(frozen=True, kw_only=True)
class ShadowQuality(Tried):
    """The mean PSNR, in dB, of attacks on shadow clients; to be maximized."""

    shadows: Sequence[Shadow]

    def __call__(self, settings: Mapping[str, Any], *, report: Report, open_run: OpenRun) -> float:
        """The quality at these settings; after each client the mean so far is reported."""
        total = 0.0
        for number, shadow in enumerate(self.shadows):
            result = self.run(shadow.observation, settings, f"shadow-{number}", open_run)
            total += finite(score(result, shadow.truth).psnr)
            if number + 1 < len(self.shadows):
                report(number, total / (number + 1))
        return total / len(self.shadows)
