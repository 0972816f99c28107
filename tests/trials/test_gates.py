"""Gates: they pass on measured numbers only, say what came of them, and none lets everything through."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from undelta.errors import ConfigError
from undelta.trials.diagnosis import Thresholds
from undelta.trials.gates import Gate, Gated, apply_gates, parse_gates
from undelta.trials.verdict import Verdict, judge

from .made import image, record, trial


def gated(verdicts: Sequence[Verdict], gates: Sequence[Gate], *, closed: bool = False) -> Gated:
    found = apply_gates(verdicts, gates, closed=closed)
    assert found is not None
    return found


def offenses(verdicts: Sequence[Verdict], gates: Sequence[Gate]) -> tuple[str, ...]:
    found = gated(verdicts, gates)
    assert found.passed == (not found.offenses)
    return found.offenses


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
        ({"ssim": 50}, {}, "--fail-above ssim: expected 0 <= ssim < 1, got 50, which nothing could fail"),
        ({"ssim": 1}, {}, "expected 0 <= ssim < 1, got 1"),
        ({"psnr": 100}, {}, "expected 0 <= psnr < 100, got 100"),
        ({"fraction_recovered": -0.1}, {}, "expected 0 <= fraction_recovered < 1"),
        ({}, {"lpips": 0}, "expected 0 < lpips <= 1, got 0"),
        ({}, {"mse": 2}, "expected 0 < mse <= 1, got 2"),
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
    assert offenses(verdicts, parse_gates({"ssim": 0.5}, {})) == ("bad: ssim 0.61 is above 0.5",)
    assert offenses(verdicts, parse_gates({"fraction_recovered": 0.2}, {})) == (
        "bad: fraction_recovered 0.25 is above 0.2",
    )
    assert offenses(verdicts, parse_gates({}, {"mse": 0.2})) == (
        "bad: mse 0.1 is below 0.2",
        "good: mse 0.1 is below 0.2",
    )
    assert offenses(verdicts, parse_gates({"ssim": 0.7, "psnr": 15}, {"mse": 0.1})) == ()


def test_a_gate_is_not_passed_by_what_was_not_measured() -> None:
    one = trial()
    verdicts = judge([one], {one.key: record(one, image(None, 10.0))}, Thresholds())
    assert offenses(verdicts, parse_gates({"ssim": 0.9}, {})) == (
        "base: ssim was not measured, so the gate cannot be passed",
    )


def test_a_gate_that_was_passed_because_no_attack_worked_says_so() -> None:
    one = trial()
    verdicts = judge([one], {one.key: record(one, image(0.1))}, Thresholds())
    passed = gated(verdicts, parse_gates({"ssim": 0.5}, {}))
    assert passed.passed
    assert passed.text.startswith("Gate passed (ssim at most 0.5), but no attack worked on base")
    closed = gated(verdicts, parse_gates({"ssim": 0.5}, {}), closed=True)
    assert not closed.passed
    assert closed.offenses == (
        "base: attack failed. No attack worked here, and none is known to: this says nothing about safety.",
    )
    assert closed.text == "Gate failed (ssim at most 0.5, an attack known to work)."


def test_a_closed_gate_is_passed_by_what_resisted() -> None:
    plain, defended = trial(), trial(defense="noise", epochs=3)
    records = {plain.key: record(plain, image(0.9)), defended.key: record(defended, image(0.1))}
    _, resisted = judge([plain, defended], records, Thresholds())
    assert gated([resisted], parse_gates({"ssim": 0.5}, {}), closed=True).passed


def test_a_closed_gate_alone_is_not_passed_by_a_leak() -> None:
    one = trial()
    leak = judge([one], {one.key: record(one, image(0.6))}, Thresholds())
    alone = gated(leak, [], closed=True)
    assert not alone.passed
    assert alone.offenses == ("base: leaks. Private images can be recognized in what an attack made of the update.",)
    assert gated(leak, parse_gates({"ssim": 0.7}, {}), closed=True).passed  # within a bound that was chosen


def test_without_gates_nothing_is_said() -> None:
    assert apply_gates([], []) is None
