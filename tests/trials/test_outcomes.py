"""What an audit keeps of a trial: the record's fields, the curve, the layers' weights, the pictures."""

from __future__ import annotations

import json
import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from undelta.attacker.weights import FAMILIES, family_of, ramps
from undelta.client.scenario import Scenario
from undelta.evaluation.metrics import psnr, ssim
from undelta.files import to_json
from undelta.trials.outcomes import pictures
from undelta.trials.record import with_result
from undelta.trials.trial import Outcome, Trial, run
from undelta.updates import layers_of

SCENARIO = Scenario(
    data="faces",
    image_size=12,
    num_samples=3,
    model="cnn",
    model_arguments={"width": 2, "hidden": 4},
    epochs=2,
    batches=1,
    learning_rate=0.05,
)
TRIAL = Trial(scenario=SCENARIO, attack="awa", arguments={"steps": 12}, seed=4, name="clinic", defense="blur")


T = TypeVar("T")


def known(value: T | None) -> T:
    assert value is not None
    return value


@pytest.fixture(autouse=True)
def no_lpips_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNDELTA_LPIPS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return run(TRIAL)


def run_with(attack: str, arguments: dict[str, Any], **changes: Any) -> dict[str, float] | None:
    trial = Trial(scenario=replace(SCENARIO, **changes), attack=attack, arguments=arguments)
    return run(trial).record.layer_weights


def test_a_trials_record_says_what_was_asked_and_what_came_of_it(outcome: Outcome) -> None:
    record = outcome.record
    assert (record.key, record.name, record.defense) == (TRIAL.key, "clinic", "blur")
    assert (record.error, record.status, record.arguments) == (None, "completed", {"steps": 12})
    assert record.fraction_recovered is not None
    assert 0 <= record.fraction_recovered <= 1
    json.loads(to_json(record))


def test_an_unmeasured_record_has_no_numbers() -> None:
    record = TRIAL.unmeasured("failed", "it broke").dated()
    assert (record.status, record.error, record.seed) == ("failed", "it broke", 4)
    assert set(record.scenario) == {field.name for field in fields(Scenario)}
    for key in ("psnr", "ssim", "lpips", "mse", "fraction_recovered", "mismatch", "iterations", "seconds"):
        assert getattr(record, key) is None
    assert (len(record.images), len(record.curve), len(record.history)) == (0, 0, 0)


def test_the_curve_measures_the_saved_iterates_in_the_final_order(outcome: Outcome) -> None:
    curve = outcome.record.curve
    iterates = outcome.reconstruction.iterates
    assert [point.iteration for point in curve] == [iterate.iteration for iterate in iterates]
    assert len(curve) >= 5
    order, truth = list(known(outcome.score).order), known(outcome.private).images
    for point, iterate in zip(curve, iterates, strict=True):
        images = iterate.images[order].float() / 255
        assert point.psnr == pytest.approx(float(psnr(images, truth).mean()))
        assert point.ssim == pytest.approx(float(ssim(images, truth).mean()))
        assert point.seconds == iterate.seconds


def test_a_curve_of_images_too_small_for_ssim_has_none(tmp_path: Path) -> None:
    trial = Trial(scenario=replace(SCENARIO, image_size=8), attack="ig", arguments={"steps": 3})
    curve = run(trial).record.curve
    assert curve
    assert all(point.ssim is None and (point.psnr or 0) > 0 for point in curve)


def test_pictures_are_bytes_in_the_order_of_the_originals(outcome: Outcome) -> None:
    found = known(pictures(outcome))
    count = len(outcome.reconstruction.iterates)
    assert found["originals"].shape == found["reconstruction"].shape == (3, 1, 12, 12)
    assert found["iterates"].shape == (count, 3, 1, 12, 12)
    assert found["iterations"].tolist() == [iterate.iteration for iterate in outcome.reconstruction.iterates]
    assert found["iterations"].dtype == torch.int64
    assert all(found[name].dtype == torch.uint8 for name in ("originals", "reconstruction", "iterates"))
    assert (found["originals"].double() / 255 - known(outcome.private).images).abs().max() <= 0.5 / 255 + 1e-6
    matched = found["reconstruction"].double() / 255
    measured = psnr(matched, known(outcome.private).images)
    for value, image in zip(measured.tolist(), known(outcome.score).images, strict=True):
        assert value == pytest.approx(image.psnr, abs=0.1)


def test_an_attack_without_iterates_has_an_empty_stack_of_them() -> None:
    trial = Trial(scenario=replace(SCENARIO, model="mlp", model_arguments={}, epochs=1), attack="analytic")
    outcome = run(trial)
    assert known(pictures(outcome))["iterates"].shape == (0, 3, 1, 12, 12)
    assert outcome.record.curve == ()
    assert outcome.record.layer_weights is None


def test_enhanced_weights_are_ramps_with_some_layers_raised(outcome: Outcome) -> None:
    weights = outcome.record.layer_weights
    assert weights is not None
    layers = layers_of(outcome.observation.model())
    q = FAMILIES[family_of(layers)]
    expected = dict(zip((layer.name for layer in layers), ramps(layers, vars(q)), strict=True))
    assert list(weights) == list(expected)
    for name, weight in weights.items():
        assert weight == pytest.approx(q.enhanced) or weight == pytest.approx(expected[name])


def test_other_weights_are_those_of_the_attacks_last_phase() -> None:
    uniform = run_with("ig", {"steps": 1})
    assert uniform is not None
    assert set(uniform.values()) == {1.0}
    short = {"steps": 1, "rollout_steps": 1}
    rolled_out = run_with("strongest", {**short, "macro_steps": 1, "weights": "flat"})
    assert rolled_out is not None
    assert min(rolled_out.values()) == pytest.approx(0.1)
    rising = run_with("strongest", {**short, "macro_steps": 1, "weights": "rising"})
    assert rising is not None
    assert max(rising.values()) > 100
    one_step = run_with("strongest", {**short, "weights": "flat"}, epochs=1, batches=1)
    assert one_step is not None
    assert set(one_step.values()) == {1.0}


def test_a_diverged_attack_has_no_final_weights(outcome: Outcome) -> None:
    diverged = replace(outcome.reconstruction, status="diverged")
    assert outcome.record.layer_weights
    assert with_result(TRIAL.unmeasured(), diverged, outcome.observation).layer_weights is None


def test_images_that_are_no_numbers_are_black(outcome: Outcome) -> None:
    broken = replace(outcome.reconstruction, images=torch.full_like(outcome.reconstruction.images, torch.nan))
    assert known(pictures(replace(outcome, reconstruction=broken)))["reconstruction"].max() == 0
