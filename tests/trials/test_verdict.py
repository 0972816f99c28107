"""Verdicts: the worst case in plain words, with its numbers and limits; gates that pass on measured numbers only."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from undelta.client.scenario import Scenario
from undelta.errors import ConfigError
from undelta.evaluation.score import ImageScore
from undelta.trials.record import Record
from undelta.trials.trial import Trial
from undelta.trials.verdict import Gate, Thresholds, Verdict, judge, offenses, parse_gates

SCENARIO = Scenario(num_samples=4)


def trial(attack: str = "awa", seed: int = 0, name: str = "base", defense: str = "none", epochs: int = 2) -> Trial:
    return Trial(scenario=Scenario(num_samples=4, epochs=epochs), attack=attack, seed=seed, name=name, defense=defense)


def image(ssim: float | None, psnr: float | None = 15.0) -> ImageScore:
    return ImageScore(label=0, ssim=ssim, psnr=psnr, mse=0.1, lpips=None)


def record(of: Trial, *images: ImageScore, status: str = "completed", recovered: float | None = 0.0) -> Record:
    return replace(
        of.unmeasured(status),
        iterations=260 if images else None,
        images=images,
        fraction_recovered=recovered if images else None,
    )


def verdict_on(*pairs: tuple[Trial, Record | None], thresholds: Thresholds | None = None) -> Verdict:
    trials = [pair[0] for pair in pairs]
    records = {pair[0].key: pair[1] for pair in pairs if pair[1]}
    (verdict,) = judge(trials, records, thresholds or Thresholds())
    return verdict


def test_a_verdict_is_the_worst_case_over_attacks_and_seeds() -> None:
    mild, bad, other = trial("awa"), trial("strongest", seed=1), trial("ig")
    verdict = verdict_on(
        (mild, record(mild, image(0.9), image(0.1), image(0.1), image(0.1))),
        (bad, record(bad, image(0.81), image(0.5), image(0.6, 24.0), image(0.49))),
        (other, record(other, image(0.2), image(0.2), image(0.2), image(0.2))),
    )
    assert (verdict.level, verdict.recognizable, verdict.images) == ("recognizable", 3, 4)
    assert verdict.worst_trial is not None
    assert (verdict.worst_trial["attack"], verdict.worst_trial["seed"]) == ("strongest", 1)
    assert verdict.worst["ssim"] == 0.9  # of any image in any trial
    assert verdict.worst["psnr"] == 24.0
    assert verdict.worst["mse"] == 0.1
    assert verdict.worst["lpips"] is None
    assert verdict.text == (
        "Recognizable: 3 of 4 images (SSIM >= 0.5; attack strongest, 260 iterations, seed 1). "
        "Worst of any image: SSIM 0.90, PSNR 24.0 dB. Worst case of 3 attacks and 2 seeds (3 trials completed). "
        "This shows leakage; it does not prove that the other images are safe."
    )


def test_nothing_recognizable_is_no_proof_of_safety() -> None:
    one = trial()
    verdict = verdict_on((one, record(one, image(0.3), image(0.2))))
    assert (verdict.level, verdict.recognizable) == ("not recognized", 0)
    assert "Recognizable: 0 of 2 images" in verdict.text
    assert "SSIM 0.30" in verdict.text
    assert "does not prove absence of leakage" in verdict.text


def test_everything_recognizable_leaves_nothing_to_doubt() -> None:
    one = trial()
    assert verdict_on((one, record(one, image(0.8), image(0.9)))).text.endswith("This shows leakage.")


def test_without_results_nothing_is_claimed() -> None:
    lost, failed, useless = trial("awa"), trial("ig"), trial("idlg")
    verdict = verdict_on(
        (lost, None),
        (failed, record(failed, status="failed")),
        (useless, record(useless, status="not applicable")),
    )
    assert (verdict.level, verdict.recognizable, verdict.images, verdict.worst_trial) == ("not measured",) + (None,) * 3
    assert set(verdict.worst.values()) == {None}
    assert verdict.trials == {"not finished": 1, "failed": 1, "not applicable": 1}
    assert "Nothing was measured (1 trial not finished, 1 trial failed, 1 trial not applicable)" in verdict.text


def test_a_verdict_says_what_it_does_not_rest_on() -> None:
    good, failed = trial("awa"), trial("ig")
    verdict = verdict_on((good, record(good, image(0.8))), (failed, record(failed, status="failed")))
    assert "(1 trial completed, 1 trial failed)" in verdict.text


def test_small_images_are_judged_by_psnr_and_large_ones_are_not() -> None:
    one = trial()
    small = verdict_on((one, record(one, image(None, 20.0), image(None, 19.9))))
    assert small.recognizable == 1
    assert "PSNR >= 20 dB" in small.text
    assert "SSIM" not in small.text
    # A flat grey may have a high PSNR on a picture of little contrast, but no structure.
    assert verdict_on((one, record(one, image(0.1, 25.0)))).recognizable == 0


def test_thresholds_can_be_moved() -> None:
    one = trial()
    pair = (one, record(one, image(0.6), image(None, 20.0)))
    assert verdict_on(pair).recognizable == 2
    assert verdict_on(pair, thresholds=Thresholds(ssim=0.7)).recognizable == 1
    assert verdict_on(pair, thresholds=Thresholds(ssim=0.7, psnr=21)).recognizable == 0


def test_a_diverged_image_is_not_recognizable() -> None:
    one = trial()
    verdict = verdict_on((one, record(one, image(None, None), status="diverged")))
    assert (verdict.level, verdict.recognizable) == ("not recognized", 0)
    assert "no number, since every image diverged" in verdict.text


def test_scenarios_and_defenses_are_judged_apart_and_share_equal_trials() -> None:
    plain = trial(name="a", epochs=1)
    same = trial(name="b", defense="one epoch", epochs=1)
    other = trial(name="b", epochs=3)
    assert plain.key == same.key
    records = {plain.key: record(plain, image(0.9)), other.key: record(other, image(0.1))}
    verdicts = judge([plain, other, same], records, Thresholds())
    assert [(verdict.scenario, verdict.defense, verdict.recognizable) for verdict in verdicts] == [
        ("a", "none", 1),
        ("b", "none", 0),
        ("b", "one epoch", 1),
    ]
    assert [verdict.title for verdict in verdicts] == ["a", "b", "b, one epoch"]


def test_a_verdict_is_plain_json() -> None:
    one = trial()
    values = json.loads(json.dumps(asdict(verdict_on((one, record(one, image(0.6))))), allow_nan=False))
    assert (values["scenario"], values["defense"], values["level"]) == ("base", "none", "recognizable")
    assert values["thresholds"] == {"ssim": 0.5, "psnr": 20.0}


# Gates


def test_gates_are_read_with_their_direction() -> None:
    assert parse_gates({"ssim": 0.5, "psnr": 20}, {"lpips": 0.2}) == [
        Gate(metric="ssim", bound=0.5, above=True),
        Gate(metric="psnr", bound=20.0, above=True),
        Gate(metric="lpips", bound=0.2, above=False),
    ]


@pytest.mark.parametrize(
    ("above", "below", "complaint"),
    [
        ({"lpips": 0.2}, {}, "--fail-above lpips: a smaller lpips is worse; use --fail-below lpips=0.2"),
        ({}, {"ssim": 0.2}, "--fail-below ssim: a larger ssim is worse; use --fail-above ssim=0.2"),
        ({"sim": 0.2}, {}, "--fail-above: unknown metric 'sim'; did you mean 'ssim'? choose from"),
        ({"ssim": "high"}, {}, "--fail-above ssim: expected a number, got 'high'"),
        ({"ssim": float("nan")}, {}, "expected a number, got nan"),
        ({"ssim": True}, {}, "expected a number, got True"),
    ],
)
def test_a_gate_that_makes_no_sense_is_refused(above: dict[str, Any], below: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_gates(above, below)
    assert complaint in str(caught.value)


def test_a_gate_looks_at_the_worst_image_of_every_scenario() -> None:
    bad, good = trial(name="bad", epochs=1), trial(name="good", epochs=2)
    records = {
        bad.key: record(bad, image(0.2), image(0.61), recovered=0.25),
        good.key: record(good, image(0.5), image(0.1), recovered=0.0),
    }
    verdicts = judge([bad, good], records, Thresholds())
    assert offenses(verdicts, parse_gates({"ssim": 0.5}, {})) == ["bad: ssim 0.61 is above 0.5"]
    assert offenses(verdicts, parse_gates({"fraction_recovered": 0.2}, {})) == [
        "bad: fraction_recovered 0.25 is above 0.2"
    ]
    assert offenses(verdicts, parse_gates({}, {"mse": 0.2})) == [
        "bad: mse 0.1 is below 0.2",
        "good: mse 0.1 is below 0.2",
    ]
    assert offenses(verdicts, parse_gates({"ssim": 0.7, "psnr": 15}, {"mse": 0.1})) == []


def test_a_gate_is_not_passed_by_what_was_not_measured() -> None:
    one = trial()
    verdicts = judge([one], {one.key: record(one, image(None, 10.0))}, Thresholds())
    assert offenses(verdicts, parse_gates({"ssim": 0.9}, {})) == [
        "base: ssim was not measured, so the gate cannot be passed"
    ]
