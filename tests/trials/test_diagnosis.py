"""Diagnoses without the truth: what an attack's own evidence says of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from undelta.attacker.resolution import fit_of
from undelta.client.disclose import disclose
from undelta.client.scenario import Scenario
from undelta.evaluation.floor import Floor
from undelta.observation.withhold import mistaken, pure_noise
from undelta.seeding import stream
from undelta.trials.config import make_attack
from undelta.trials.diagnosis import DEFAULT, diagnose, troubles
from undelta.trials.record import Record, Step, with_result

from .made import image, record, trial

SCENARIO = Scenario(
    data="digits", num_samples=1, model_arguments={"width": 4, "hidden": 16}, epochs=2, batches=1, learning_rate=0.05
)


def unscored(**fields: Any) -> Record:
    settled = tuple(Step(iteration=10 * step, mismatch=0.05) for step in range(11))
    return replace(record(trial()), **{"mismatch": 0.05, "history": settled, **fields})


@pytest.mark.parametrize(
    ("fields", "level", "word"),
    [
        ({}, "not compared", "compare them with the originals"),
        ({"mismatch": 0.51}, "attack failed", "unexplained (mismatch 0.51)"),
        ({"mismatch": 0.15}, "attack failed", "unexplained"),
        ({"mismatch": 0.15, "resolution": 0.1}, "not compared", "explain the update"),
        ({"mismatch": 0.15, "resolution": 0.01}, "attack failed", "its replay resolves 0.01"),
        ({"status": "diverged"}, "attack failed", "NaN or infinite"),
        ({"status": "failed", "error": "no memory"}, "not measured", "no memory"),
        ({"mismatch": 0.03}, "not compared", "still falling at the end"),
        ({"mismatch": 0.51, "stretch": 0.02}, "attack failed", "50 times longer than the declared training makes it"),
        ({"stretch": 30.0}, "not compared", "30 times shorter than the declared training"),
    ],
)
def test_the_attackers_own_evidence_decides_where_there_is_no_truth(
    fields: dict[str, Any], level: str, word: str
) -> None:
    found = diagnose(unscored(**fields), DEFAULT)
    assert (found.level, found.reassuring) == (level, False)
    assert word in found.text


def test_the_length_of_a_failed_attacks_path_says_little() -> None:
    assert "declared" not in diagnose(unscored(mismatch=0.51, stretch=14.0), DEFAULT).text


def test_with_the_truth_recognizable_images_decide_and_the_floor_says_why_there_are_none() -> None:
    low = Floor(mismatch=0.01, terms={"distance": 0.01}, level="far above")
    poor = replace(record(trial(), image(0.2)), mismatch=0.5, floor=low)
    found = diagnose(poor, DEFAULT)
    assert found.level == "attack failed"
    assert low.text in found.text
    assert len(troubles(poor)) == 2
    assert diagnose(replace(poor, images=(image(0.8),)), DEFAULT).level == "leaks"


def test_images_that_were_found_tell_noise_and_wrong_hyperparameters_from_the_declared_training() -> None:
    observation = disclose(SCENARIO.draw(0), SCENARIO, seed=0)
    attack = make_attack("strongest", {"steps": 20, "rollout_steps": 5})

    def diagnosed(seen: Any) -> tuple[str, Record]:
        found = attack(seen, seed=0)
        made = with_result(trial().unmeasured(), found, seen, fit_of(found, seen))
        return diagnose(made, DEFAULT).level, made

    level, right = diagnosed(observation)
    assert level == "not compared"
    assert right.resolution is not None
    assert right.resolution < 0.05
    assert right.stretch == pytest.approx(1, rel=0.3)
    assert diagnosed(pure_noise(observation, stream("test")))[0] == "attack failed"
    _, wrong = diagnosed(mistaken(observation, learning_rate=0.05))
    assert wrong.stretch is not None
    assert wrong.stretch < 0.2  # the update is much longer than so small a rate would make it
    assert "the learning rate" in diagnose(wrong, DEFAULT).text
