"""Records: what record.json holds, and what is refused."""

from __future__ import annotations

import datetime
import json
import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

import undelta.trials.record as record_module
from undelta.attacker.reconstruction import Moment, Reconstruction, Status
from undelta.client.disclose import disclose
from undelta.client.private import Private
from undelta.client.scenario import Scenario
from undelta.errors import DataError
from undelta.evaluation.floor import Floor
from undelta.evaluation.score import score
from undelta.files import to_json
from undelta.trials.record import (
    Quality,
    Record,
    describe_observation,
    describe_scenario,
    from_json,
    peak_memory_mb,
    with_result,
    with_score,
)

SCENARIO = Scenario(
    data="faces", image_size=4, num_samples=2, model="mlp", model_arguments={"hidden": [2]}, epochs=3, batches=2
)


@pytest.fixture(autouse=True)
def no_lpips_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNDELTA_LPIPS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def reconstruction(status: Status = "completed", loss: float = 0.5, iterations: int = 4) -> Reconstruction:
    return Reconstruction(
        images=torch.rand(2, 1, 12, 12, generator=torch.Generator().manual_seed(0)),
        labels=torch.tensor([1, 0]),
        mismatch=0.25,
        iterations=iterations,
        seconds=2.0,
        status=status,
        history=(Moment(0, 0.5, 1.0, 1.5), Moment(iterations, 2.0, 0.25, loss)),
    )


def record(result: Reconstruction) -> Record:
    asked = Record(
        key="0" * 16,
        name="base",
        attack="awa",
        arguments={"steps": 4},
        scenario=describe_scenario(SCENARIO),
        seed=5,
    )
    return with_result(asked, result, disclose(SCENARIO.draw(5), SCENARIO, seed=5))


def scored() -> Record:
    result = reconstruction()
    truth = Private(images=result.images.flip(0) + 0.1, labels=torch.tensor([0, 1]))
    return with_score(record(result), score(result, truth))


def as_values(one: Record) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(to_json(one))
    return values


def test_a_record_is_what_the_schema_says() -> None:
    schema = json.loads((Path(record_module.__file__).parent / "record.schema.json").read_text())
    assert set(schema["properties"]) == set(schema["required"]) == {field.name for field in fields(Record)}
    floor = Floor(mismatch=0.1, terms={"distance": 0.1}, level="near")
    whole = replace(scored(), floor=floor, curve=(Quality(iteration=3, psnr=4.0),), layer_weights={"conv": 1.0})
    for one in (whole, record(reconstruction()), record(reconstruction("diverged", loss=math.nan))):
        jsonschema.validate(as_values(one), schema)
    wrong: list[dict[str, Any]] = [
        {"psnr": "high"},
        {"images": {}},
        {"more": 1},
        {"seed": 1.5},
        {"floor": {"mismatch": 1}},
    ]
    for broken in wrong:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**as_values(whole), **broken}, schema)


def test_a_record_is_read_as_it_was_written() -> None:
    floor = Floor(mismatch=0.1, terms={"distance": 0.1}, level="near")
    whole = replace(scored(), floor=floor, curve=(Quality(iteration=3, psnr=4.0),), layer_weights={"conv": 1.0})
    assert as_values(from_json(as_values(whole), "here")) == as_values(whole)


def test_a_record_of_another_schema_is_refused() -> None:
    with pytest.raises(DataError, match="here: expected a record of schema 3, got 1"):
        from_json({**as_values(scored()), "schema": 1}, "here")


def test_a_record_repeats_what_was_run() -> None:
    made = record(reconstruction())
    assert set(made.scenario) == {field.name for field in fields(Scenario)}
    assert set(made.versions) == {"undelta", "python", "torch", "numpy", "scipy", "scikit-image"}
    assert (made.attack, made.arguments, made.seed) == ("awa", {"steps": 4}, 5)
    assert (made.mismatch, made.iterations, made.seconds, made.status) == (0.25, 4, 2.0, "completed")
    assert [(step.iteration, step.mismatch) for step in made.history] == [(0, 1.0), (4, 0.25)]
    assert made.threads == torch.get_num_threads()
    assert made.versions["torch"] == torch.__version__
    assert datetime.datetime.fromisoformat(made.date or "").tzinfo is not None


def test_metrics_are_null_until_scored() -> None:
    made = record(reconstruction())
    assert [made.psnr, made.ssim, made.lpips, made.mse, made.fraction_recovered] == [None] * 5
    assert made.images == ()
    assert not made.scored


def test_a_scored_record_holds_means_and_every_image() -> None:
    made = scored()
    assert made.scored
    assert made.psnr == pytest.approx(20, abs=1e-4)
    assert made.mse == pytest.approx(0.01, rel=1e-4)
    assert made.lpips is None
    assert made.fraction_recovered in (0, 0.5, 1)
    assert [image.label for image in made.images] == [0, 1]


def test_an_observation_says_nothing_of_the_data_or_the_round() -> None:
    observed = describe_observation(disclose(SCENARIO.draw(0), SCENARIO))
    assert observed["data"] is None
    assert observed["rounds"] is None
    planned = describe_scenario(SCENARIO)
    for key in ("model", "model_arguments", "num_samples", "epochs", "batches", "learning_rate", "grant_labels"):
        assert observed[key] == planned[key]


def test_records_come_back_as_they_were_written() -> None:
    for made in (record(reconstruction()), record(reconstruction("diverged"))):
        assert from_json(json.loads(to_json(made)), "here") == made


@pytest.mark.parametrize("loss", [math.nan, math.inf])
@pytest.mark.parametrize("status", ["diverged", "interrupted"])
def test_a_run_that_ended_without_a_finite_loss_is_still_written(status: Status, loss: float) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    written = json.loads(to_json(record(reconstruction(status, loss))), parse_constant=refuse)
    assert written["status"] == status


@pytest.mark.parametrize("values", [[], None, 1, {}, {"schema": 1}, {"schema": "3"}, {"schema": 3}])
def test_what_is_no_record_is_refused(values: object) -> None:
    with pytest.raises(DataError, match="here: "):
        from_json(values, "here")


def test_the_peak_memory_is_that_of_a_process_with_torch() -> None:
    assert 50 < peak_memory_mb() < 1e6


def test_a_scenario_is_plain_json() -> None:
    described: dict[str, Any] = describe_scenario(SCENARIO)
    assert json.loads(json.dumps(described))["model_arguments"] == {"hidden": [2]}
