"""Pruned entries are recognized by what was sent, left out of the match, and told apart from natural zeros."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from undelta.attacker.attacks import strongest
from undelta.attacker.descent import Descent
from undelta.attacker.distances import Distance, Weights, cosine, l2
from undelta.attacker.method import GradientMatching
from undelta.attacker.pruned import sent_entries
from undelta.attacker.replays import OneStep, observed_update
from undelta.client.disclose import disclose
from undelta.client.scenario import Scenario
from undelta.observation import Observation
from undelta.seeding import stream
from undelta.updates import Update

SCENARIO = Scenario(
    data="digits", num_samples=4, model_arguments={"width": 16, "hidden": 128}, epochs=2, batches=2, learning_rate=0.02
)


def seen(dtype: torch.dtype = torch.float32, **defense: Any) -> Observation:
    tables = ({**defense},) if defense else ()
    return disclose(SCENARIO.draw(0), replace(SCENARIO, defenses=tables), dtype=dtype)


def target(observation: Observation) -> Update:
    return observed_update(observation)[2]


@pytest.mark.parametrize("ratio", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("per_tensor", [False, True])
def test_pruning_is_recognized(ratio: float, per_tensor: bool) -> None:
    update = target(seen(defense="pruning", ratio=ratio, per_tensor=per_tensor))
    mask = sent_entries(update)
    assert mask is not None
    large = [name for name, value in update.items() if int((value != 0).sum()) >= 100] if per_tensor else list(update)
    assert large
    for name in large:
        assert torch.equal(mask[name] == 1, update[name] != 0)


@pytest.mark.parametrize(
    "defense",
    [
        {},
        {"defense": "clipping", "norm": 0.01},
        {"defense": "noise", "scale": 0.01},
        {"defense": "quantization", "bits": 8},
        {"defense": "quantization", "bits": 1},
        {"defense": "soteria", "ratio": 0.5},
    ],
)
def test_what_was_not_pruned_is_matched_whole(defense: dict[str, Any]) -> None:
    update = target(seen(**defense))
    assert sent_entries(update) is None


def test_dead_units_are_not_taken_for_pruned_ones() -> None:
    update = target(seen())
    share = sum(int((value == 0).sum()) for value in update.values()) / sum(map(torch.numel, update.values()))
    assert share > 0.05, "there must be natural zeros, or the test is blind"
    assert sent_entries(update) is None


def apart(dummy: Update, target: Update, weights: Weights) -> Tensor:
    """A distance that has a slope also where both are zero."""
    return torch.stack([weights[name] * (dummy[name] - target[name] + 1).square().sum() for name in dummy]).sum()


@pytest.mark.parametrize("distance", [cosine, l2, apart])
def test_the_masked_loss_does_not_depend_on_pruned_entries_and_its_gradient_is_right(distance: Distance) -> None:
    observation = seen(dtype=torch.float64, defense="pruning", ratio=0.9)
    method = GradientMatching(replay=OneStep(position=0.5), distance=distance, masked=True)
    descent = Descent(method, observation, stream("test"))
    loss = descent._closure(record=True)
    slope = descent.variables["images"].grad
    assert slope is not None
    direction = torch.randn(slope.shape, generator=stream("direction"), dtype=slope.dtype)
    start, values = descent.variables["images"].clone(), []
    for side in (1, -1):
        descent.variables["images"].copy_(start + side * 1e-5 * direction)
        values.append(descent._closure(record=False))
    assert (values[0] - values[1]) / 2e-5 == pytest.approx(float((slope * direction).sum()), rel=1e-4)
    if distance is apart:
        return
    # The same match by hand, over the sent entries only.
    descent.variables["images"].copy_(start)
    labels = descent.soft_labels(None)
    update, sent = descent.problem.rounds[0].replay(start, labels).update, target(observation)
    ones = dict.fromkeys(update, torch.ones((), dtype=torch.float64))
    kept = {name: (value[sent[name] != 0], sent[name][sent[name] != 0]) for name, value in update.items()}
    left = {name: pair[0] for name, pair in kept.items()}
    right = {name: pair[1] for name, pair in kept.items()}
    assert loss == pytest.approx(float(distance(left, right, ones)), rel=1e-9)


def test_the_strongest_attack_masks_and_is_the_better_for_it() -> None:
    observation = seen(defense="pruning", ratio=0.95)
    masked, plain = (strongest(steps=20, rollout_steps=5, masked=masked)(observation) for masked in (True, False))
    assert masked.mismatch < plain.mismatch / 2


def test_the_mask_changes_nothing_where_nothing_was_pruned() -> None:
    observation = seen()
    masked, plain = (strongest(steps=3, rollout_steps=2, masked=masked)(observation) for masked in (True, False))
    assert torch.equal(masked.images, plain.images)
