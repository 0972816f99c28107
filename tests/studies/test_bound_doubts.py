"""Where a bound's assumptions do not hold, it says so, wherever its number is shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from undelta.client.scenario import Scenario
from undelta.studies.bound_case import Question, determine
from undelta.trials.bound_file import Bounded, BoundFile, highest

DROPPING = """
from torch import nn


def dropping() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 10))
"""
NOISE = ({"defense": "noise", "scale": 0.01},)
CLIENT = Scenario(
    data="digits", num_samples=2, model="mlp", model_arguments={"hidden": [8]}, epochs=2, batches=1, learning_rate=0.05
)


def doubts(scenario: Scenario) -> tuple[str, ...]:
    return determine(scenario, 0, Question(products=20)).doubts


@pytest.mark.parametrize("defenses", [(), NOISE], ids=["undefended", "noise"])
def test_dropout_is_a_reason_for_doubt_with_and_without_defenses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defenses: tuple[dict[str, object], ...]
) -> None:
    (tmp_path / "model_that_drops.py").write_text(DROPPING)
    monkeypatch.syspath_prepend(tmp_path)
    scenario = replace(CLIENT, defenses=defenses)
    assert doubts(scenario) == ()
    (doubt,) = doubts(replace(scenario, model="model_that_drops:dropping", model_arguments={}))
    assert "do not trust this" in doubt


def test_mini_batches_drawn_by_chance_are_a_reason_for_doubt() -> None:
    private = {"defense": "dp_sgd", "noise_multiplier": 1.0}
    (doubt,) = doubts(replace(CLIENT, defenses=(private,)))
    assert "drawn by chance" in doubt
    assert doubts(replace(CLIENT, defenses=({**private, "sampling": "shuffled"},))) == ()


def found(seed: int, bound: float, *doubts: str) -> BoundFile:
    row = Bounded(
        seed=seed,
        sigma=0.1,
        update_rms=1.0,
        least_mse=bound,
        bound=bound,
        error=0.0,
        gap=0.0,
        images=(bound,),
        linear=(bound,),
        fixed=0.5,
        products=20,
    )
    return BoundFile(scenario={}, rows=(row,), doubts=doubts)


def test_the_highest_ceiling_carries_the_doubts_of_every_seed() -> None:
    limit = highest({"a": found(0, 15.0, "dropout"), "b": found(1, 16.0)}, [])
    assert limit is not None
    assert (limit.ceiling, limit.doubts) == ("16.0?", ("dropout",))
    assert "But dropout." in limit.text


def test_seeds_without_a_bound_are_not_passed_over() -> None:
    limit = highest({"a": found(0, 15.0), "b": BoundFile(scenario={}, error="MemoryError: full")}, [])
    assert limit is not None
    assert limit.doubts == ("other seeds have no bound (MemoryError: full)",)
    sure = highest({"a": found(0, 15.0)}, [])
    assert sure is not None
    assert (sure.ceiling, sure.doubts) == ("15.0", ())
