"""Verdicts: the worst case in plain words, with its numbers and limits; only a twin makes one reassuring."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

from undelta.evaluation.baselines import Baseline, Guess
from undelta.trials.diagnosis import Thresholds
from undelta.trials.record import Record
from undelta.trials.trial import Trial
from undelta.trials.verdict import Verdict, headline, judge

from .made import image, record, trial


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
    assert (verdict.level, verdict.recognizable, verdict.images) == ("leaks", 3, 4)
    assert verdict.worst_trial is not None
    assert (verdict.worst_trial["attack"], verdict.worst_trial["seed"]) == ("strongest", 1)
    assert verdict.worst["ssim"] == 0.9  # of any image in any trial
    assert verdict.worst["psnr"] == 24.0
    assert verdict.worst["mse"] == 0.1
    assert verdict.worst["lpips"] is None
    assert verdict.exposed is not None
    assert (verdict.exposed.attack, verdict.exposed.image, verdict.exposed.ssim) == ("awa", 0, 0.9)
    assert verdict.text == (
        "3 of 4 images can be recognized. "
        "Most exposed: image 1, SSIM 0.90, PSNR 15.0 dB (attack awa, seed 0; recognizable from SSIM >= 0.5). "
        "Worst case of 3 attacks and 2 seeds (3 trials completed)."
    )


def test_numbers_of_the_most_exposed_image_are_its_own() -> None:
    """The largest SSIM and the largest PSNR may belong to two images; together they describe none."""
    one = trial()
    verdict = verdict_on((one, record(one, image(0.94, 23.7), image(0.87, 31.7))))
    assert "image 1, SSIM 0.94, PSNR 23.7 dB" in verdict.text
    assert "31.7" not in verdict.text
    assert verdict.worst["psnr"] == 31.7  # which gates look at, each by itself


def test_nothing_recognizable_is_no_proof_of_safety() -> None:
    one = trial()
    verdict = verdict_on((one, record(one, image(0.3), image(0.2))))
    assert (verdict.level, verdict.recognizable) == ("attack failed", 0)
    assert not verdict.diagnosis.reassuring
    assert "SSIM 0.30" in verdict.text
    assert "This says nothing about safety." in verdict.text


def test_only_an_attack_that_works_on_the_undefended_twin_makes_a_poor_result_reassuring() -> None:
    plain, defended, other = trial(), trial(defense="noise", epochs=3), trial("ig", defense="noise", epochs=3)
    found = {defended.key: record(defended, image(0.1)), other.key: record(other, image(0.1))}

    def level(*images: float, of: Trial = plain, asked: tuple[Trial, ...] = (defended,)) -> str:
        records = found | {of.key: record(of, *map(image, images))}
        *_, last = judge([of, *asked], records, Thresholds())
        return last.level

    assert level(0.9) == "resisted"
    assert level(0.1) == "attack failed"  # it works nowhere
    assert level(0.9, asked=(other,)) == "attack failed"  # another attack than the one that works
    assert level(0.9, of=trial(name="elsewhere")) == "attack failed"  # no twin
    assert level(0.9, of=trial(defense="clipping")) == "attack failed"  # a twin without a defense is needed


def test_an_attack_that_diverged_was_not_resisted() -> None:
    """NaN on the defended update is the attack's own fault."""
    plain, defended = trial(), trial(defense="noise", epochs=3)
    records = {
        plain.key: record(plain, image(0.9)),
        defended.key: record(defended, image(None, None), status="diverged"),
    }
    assert judge([plain, defended], records, Thresholds())[1].level == "attack failed"
    records |= {plain.key: record(plain, image(0.9), status="diverged"), defended.key: record(defended, image(0.1))}
    assert judge([plain, defended], records, Thresholds())[1].level == "attack failed"


def test_a_twin_of_other_images_is_none() -> None:
    """Another seed draws other private images, which may be easier."""
    plain, defended = trial(seed=1), trial(defense="noise", epochs=3)
    records = {plain.key: record(plain, image(0.9)), defended.key: record(defended, image(0.1))}
    assert judge([plain, defended], records, Thresholds())[1].level == "attack failed"


def test_a_scored_failure_does_not_hide_images_that_explain_the_update() -> None:
    scored, better, worse = trial("awa"), trial("ig"), trial("strongest")
    pairs = (better, replace(record(better), mismatch=0.01)), (worse, replace(record(worse), mismatch=0.05))
    verdict = verdict_on((scored, record(scored, image(0.1))), *pairs)
    assert verdict.level == "not compared"
    assert "mismatch 0.01" in verdict.text
    assert verdict_on((scored, record(scored, image(0.9))), *pairs).level == "leaks"


def test_a_defense_that_leaks_did_not_resist() -> None:
    plain, defended = trial(), trial(defense="noise", epochs=3)
    records = {plain.key: record(plain, image(0.9)), defended.key: record(defended, image(0.6))}
    assert [verdict.level for verdict in judge([plain, defended], records, Thresholds())] == ["leaks", "leaks"]


def test_what_a_flat_picture_reaches_is_not_recognized() -> None:
    """A dark, even image has a high SSIM with its own mean color."""
    one = trial()
    guess = Baseline(psnr=30.0, ssim=0.7, images=(Guess(psnr=30.0, ssim=0.7),))
    for ssim, level in ((0.69, "attack failed"), (0.71, "leaks")):
        made = replace(record(one, image(ssim, 29.0)), baselines={"mean color": guess})
        verdict = verdict_on((one, made))
        assert verdict.level == level
        assert "its mean color alone has SSIM 0.70, PSNR 30.0 dB" in verdict.text


def test_epsilon_is_part_of_the_verdict() -> None:
    one = trial()
    verdict = verdict_on((one, replace(record(one, image(0.1)), epsilon=8.0, delta=1e-5)))
    assert (verdict.epsilon, verdict.delta) == (8.0, 1e-5)


def test_all_scenarios_in_one_sentence() -> None:
    bad, good = trial(name="bad", epochs=1), trial(name="good", epochs=2)
    records = {bad.key: record(bad, image(0.9)), good.key: record(good, image(0.1))}
    verdicts = judge([bad, good], records, Thresholds())
    assert headline(verdicts) == (
        "Of 2 scenarios and defenses, 1 leaks private images; on 1 no attack worked, which says nothing about safety."
    )
    assert headline(verdicts[:1]) == "The client's update leaks private images: 1 of 1 can be recognized."
    assert "says nothing" in headline(verdicts[1:])
    missing = judge([good], {}, Thresholds())
    explained = judge([bad], {bad.key: replace(record(bad), mismatch=0.01)}, Thresholds())
    assert headline([*missing, *explained]) == (
        "Of 2 scenarios and defenses, 1 probably leaks private images; 1 was not measured."
    )
    assert "2 were not measured" in headline([*missing, *missing])


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
    assert "Nothing was measured" in verdict.text
    assert "(1 trial failed, 1 trial not applicable, 1 trial not finished)" in verdict.text


def test_a_verdict_says_what_it_does_not_rest_on() -> None:
    good, failed = trial("awa"), trial("ig")
    verdict = verdict_on((good, record(good, image(0.8))), (failed, record(failed, status="failed")))
    assert "(1 trial completed, 1 trial failed)" in verdict.text


def test_an_interrupted_attack_says_what_it_found_and_never_reassures() -> None:
    one, shielded = trial(), trial(defense="shield", epochs=3)
    leaks = verdict_on((one, record(one, image(0.8), image(0.1), status="interrupted")))
    assert (leaks.level, leaks.recognizable) == ("leaks", 1)
    assert "1 of 2 images can be recognized, although the attack was interrupted after 260 iterations" in leaks.text
    records = {
        one.key: record(one, image(0.8)),
        shielded.key: record(shielded, image(0.1), status="interrupted"),
    }
    _, failed = judge([one, shielded], records, Thresholds())
    assert failed.level == "attack failed"
    assert "the attack was interrupted after 260 iterations; the same command resumes it" in failed.text


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
    assert (verdict.level, verdict.recognizable) == ("attack failed", 0)
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
    assert (values["scenario"], values["defense"], values["diagnosis"]["level"]) == ("base", "none", "leaks")
    assert values["thresholds"] == {"ssim": 0.5, "psnr": 20.0}
