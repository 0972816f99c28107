"""Several rounds of one client, seen by the same server: one observation that holds them all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from undelta.errors import ObservationError

if TYPE_CHECKING:  # it checks itself with what is here
    from undelta.observation.observation import Observation

MOST_ROUNDS = 1000


def together(rounds: Sequence[Observation]) -> Observation:
    """One observation of several rounds of the same client, whose data did not change from one to the next.

    Attacks look for one set of images that explains all of the updates.

    Examples:
        >>> from undelta import Scenario, disclose
        >>> small = {"width": 4, "hidden": 16}
        >>> scenario = Scenario(data="digits", num_samples=2, model_arguments=small, batches=1, observed_rounds=3)
        >>> three = disclose(scenario.draw(seed=0), scenario, seed=0)
        >>> two = together(three.rounds[1:])
        >>> len(three.rounds), len(two.rounds)
        (3, 2)
    """
    alone = [one for given in rounds for one in given.rounds]
    if not alone:
        raise ObservationError("expected at least one round, got none")
    return replace(alone[0], further=tuple(alone[1:]))


def check_rounds(first: Observation) -> None:
    """Refuse rounds that cannot be those of one client with the same data."""
    if len(first.further) >= MOST_ROUNDS:
        raise ObservationError(f"expected at most {MOST_ROUNDS} rounds, got {len(first.further) + 1}")
    for number, other in enumerate(first.further, start=2):
        for what, same in (
            ("further rounds", not other.further),
            ("model", other.architecture == first.architecture),
            ("kind of images", other.image == first.image),
            ("precision", other.dtype == first.dtype),
            (f"number of samples ({first.num_samples}, {other.num_samples})", other.num_samples == first.num_samples),
            ("labels", _same_labels(first, other)),
            ("local epochs, mini-batches, loss or optimizer", _plan(first) == _plan(other)),
        ):
            if not same:
                raise ObservationError(
                    f"rounds 1 and {number} differ in their {what}, so they are not rounds of one client on the same "
                    "data; attack each alone"
                )


def _same_labels(first: Observation, other: Observation) -> bool:
    if first.labels is None or other.labels is None:
        return first.labels is other.labels
    return torch.equal(first.labels.cpu(), other.labels.cpu())


def _plan(one: Observation) -> tuple[object, ...]:
    """What must not change between rounds; learning rates may."""
    keys = ("epochs", "batches", "loss", "label_smoothing", "norm_mode", "trained", "optimizer")
    return (*(getattr(one.training, key) for key in keys), one.unknown)
