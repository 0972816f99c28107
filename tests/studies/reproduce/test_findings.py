"""Claims on records made up for the purpose, so that each comes out both ways."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import pytest
from scipy.stats import ttest_1samp

from undelta.evaluation.score import ImageScore
from undelta.studies.reproduce.finding import Finding
from undelta.studies.reproduce.findings import findings_of
from undelta.studies.reproduce.reproductions import (
    ABLATION,
    COMPARISON,
    EPOCHS,
    GRANTED,
    INFERRED,
    JOINT,
    LABELS,
    LARGE,
    REPRODUCTIONS,
    STAGES,
    TUNED,
    TUNING,
    Reproduction,
    cells_of,
)
from undelta.studies.reproduce.results import Cell, Results, advantage, gather
from undelta.studies.reproduce.scales import SMOKE
from undelta.trials.record import Record
from undelta.trials.tuning_file import Evaluation

Q = {"conv": 2.0, "norm": 3.0, "linear": 4.0, "enhanced": 5.0, "p_mean": 0.1, "p_var": 0.2, "other": 1.0}
SEEDS = (0, 1, 2)
WHOLE = replace(SMOKE, most_samples=None, cases={})
"""With every case."""
Quality = Callable[[Cell, int], tuple[float, float, float] | None]
"""PSNR, SSIM and LPIPS of a cell's trial with a seed; None fails it."""


def record(cell: Cell, place: int, figures: tuple[float, float, float] | None) -> Record:
    trial = cell.trials[place]
    if not figures:
        return trial.unmeasured("failed", "RuntimeError: too bad")
    psnr, ssim, lpips = figures
    return replace(
        trial.unmeasured("completed"),
        psnr=psnr,
        ssim=ssim,
        lpips=lpips,
        iterations=10,
        seconds={"awa": 1.0, "idlg_fedavg": 8.0}.get(trial.attack, 2.0),
        images=(ImageScore(label=0, mse=None, psnr=None, ssim=ssim, lpips=None),),
    )


def results(reproduction: Reproduction, quality: Quality, seeds: tuple[int, ...] = SEEDS) -> Results:
    cells = cells_of(reproduction, WHOLE, data="faces", seeds=seeds, tuned=Q)
    records = [
        record(cell, place, quality(cell, seed)) for cell in cells if cell.trials for place, seed in enumerate(seeds)
    ]
    return gather(cells, records)


def by_method(values: Mapping[str, float]) -> Quality:
    """Methods as good as these numbers, each seed a little different from the others."""

    def quality(cell: Cell, seed: int) -> tuple[float, float, float]:
        value = values.get(cell.method, 1.0)
        return value + seed, value / 100 + seed / 1000, 1 - value / 100 + seed / 1000

    return quality


def claims(reproduction: Reproduction, quality: Quality, tuning: tuple[Evaluation, ...] = ()) -> tuple[Finding, ...]:
    return tuple(findings_of(reproduction, results(reproduction, quality), tuning))


def test_an_advantage_is_paired_by_seed_and_knows_its_spread() -> None:
    found = results(ABLATION, by_method({"AWA": 12, "linear weights": 11, "approximation only": 10}))
    row = found.rows[0]
    clear = advantage(found.at(row, "AWA"), found.at(row, "linear weights"), "psnr")
    assert clear is not None
    # Seeds differ by 1 dB, but by the same in both, so the difference has no spread at all.
    assert clear.mean == pytest.approx(1)
    assert clear.error == pytest.approx(0)
    assert (clear.seeds, clear.images, clear.sign) == (3, 3, 1)
    worse = advantage(found.at(row, "linear weights"), found.at(row, "AWA"), "lpips")
    assert worse is not None
    assert worse.sign == -1  # a larger LPIPS is a worse image

    # Better by -0.9, 0.1 and 1.1 dB: better in the mean, but not beyond the spread.
    noisy = results(ABLATION, lambda cell, seed: (10 + (seed - 0.9) * (cell.method == "AWA"), 0.5, 0.5))
    spread = advantage(noisy.at(row, "AWA"), noisy.at(row, "linear weights"), "psnr")
    assert spread is not None
    assert spread.mean == pytest.approx(0.1)
    assert spread.error == pytest.approx(1 / math.sqrt(3))  # differences deviate by 1 dB, their mean by less
    assert spread.sign == 0
    # Better by -0.3, 0.7 and 1.7 dB: beyond one standard error, but chance alone does that often.
    noisy = results(ABLATION, lambda cell, seed: (10 + (seed - 0.3) * (cell.method == "AWA"), 0.5, 0.5))
    beyond = advantage(noisy.at(row, "AWA"), noisy.at(row, "linear weights"), "psnr")
    assert beyond is not None
    assert beyond.mean > beyond.error
    assert beyond.chance == pytest.approx(ttest_1samp([-0.3, 0.7, 1.7], 0).pvalue)
    assert beyond.sign == 0
    assert advantage(noisy.at(row, "AWA"), replace(noisy.at(row, "AWA"), records=()), "psnr") is None


def with_images(quality: Callable[[Cell, int, int], float], seeds: tuple[int, ...] = SEEDS) -> Results:
    """The ablation with eight images for each seed, as good by PSNR as these numbers."""
    found = results(ABLATION, lambda cell, seed: (10.0, 0.5, 0.5), seeds)
    cells = [
        replace(cell, records=tuple(pictured(record, cell, quality) for record in cell.records)) for cell in found.cells
    ]
    return Results(cells=tuple(cells))


def pictured(record: Record, cell: Cell, quality: Callable[[Cell, int, int], float]) -> Record:
    values = [quality(cell, record.seed, index) for index in range(8)]
    images = tuple(ImageScore(label=0, mse=None, psnr=value, ssim=0.5, lpips=0.5) for value in values)
    return replace(record, psnr=sum(values) / 8, images=images)


def test_a_difference_is_tested_over_all_images_of_all_seeds() -> None:
    def small_but_steady(cell: Cell, seed: int, index: int) -> float:
        return 10 + seed + index + (cell.method == "AWA") * (0.1 if index % 2 else 0.3 + seed / 1000)

    found = with_images(small_but_steady)
    row = found.rows[0]
    gain = advantage(found.at(row, "AWA"), found.at(row, "linear weights"), "psnr")
    assert gain is not None
    assert (gain.images, gain.seeds, gain.sign) == (24, 3, 1)
    assert gain.mean == pytest.approx(0.2005)
    differences = [[0.3 + seed / 1000, 0.1] * 4 for seed in SEEDS]
    means = [sum(own) / 8 for own in differences]
    pooled = [value for own in differences for value in own]
    by_image, by_seed = (ttest_1samp(values, 0).pvalue for values in (pooled, means))
    assert gain.chance == pytest.approx(max(by_image, by_seed))
    few = with_images(small_but_steady, seeds=(0, 1))
    gain = advantage(few.at(row, "AWA"), few.at(row, "linear weights"), "psnr")
    assert gain is not None
    assert (gain.seeds, gain.sign) == (2, 0)  # two draws are too few, however many images they have


def gaining(gains: Mapping[int, float], cell: Cell, seed: int, index: int) -> float:
    return 10 + (gains[seed] if cell.method == "AWA" else 0.0)


def test_images_that_agree_do_not_outvote_seeds_that_do_not() -> None:
    """One seed of eight good images is one good draw."""
    for others in (-0.1, 0.1):
        gains = {0: 3.0, 1: others, 2: others}
        found = with_images(partial(gaining, gains))
        row = found.rows[0]
        gain = advantage(found.at(row, "AWA"), found.at(row, "linear weights"), "psnr")
        assert gain is not None
        assert ttest_1samp([3.0] * 8 + [others] * 16, 0).pvalue < 0.05
        assert gain.chance == pytest.approx(ttest_1samp([3.0, others, others], 0).pvalue)
        assert gain.sign == 0


def test_the_order_of_methods_holds_if_it_is_the_papers() -> None:
    best, order, tuned_best, tuned_order, scaling, ours = claims(
        COMPARISON, by_method({"AWA": 14, TUNED: 10, "AGIC": 12, "GENG": 11, "iDLG": 9, "strongest (ours)": 20})
    )
    assert [best.outcome, order.outcome, scaling.outcome, ours.outcome] == ["holds"] * 4
    # Where the paper ran one rival alone, nothing is best of all.
    assert best.numbers.startswith("AWA is clearly best in 6 of 6 by PSNR, 6 of 6 by SSIM, 6 of 6 by LPIPS.")
    assert best.numbers.endswith("n = 3 images, 3 seeds.")
    assert order.says == "The order by PSNR is AWA > AGIC > GENG > iDLG"
    assert order.numbers == (
        "Mean PSNR over 6 scenarios: AWA 15.00, AGIC 13.00, GENG 12.00, iDLG 10.00 dB (n = 18 images, 3 seeds)."
    )
    assert [tuned_best.outcome, tuned_order.outcome] == ["does not hold"] * 2
    assert tuned_order.says == "The order by PSNR is AWA, Q tuned here > AGIC > GENG > iDLG"
    assert "ahead in 12 of 12" in scaling.numbers
    assert "iDLG 8.0 to 8.0, AGIC 2.0 to 2.0, GENG 2.0 to 2.0" in scaling.numbers
    assert "+6.00 dB" in ours.numbers


def test_an_order_within_the_spread_holds_in_part_and_one_seed_is_not_measured() -> None:
    def close(cell: Cell, seed: int) -> tuple[float, float, float]:
        places = {"AWA": 14.0, "AGIC": 12.0, "GENG": 11.9, "iDLG": 9.0}
        wobble = (seed - 1) * (cell.method == "GENG")
        return places.get(cell.method, 1.0) + wobble, 0.5, 0.5

    assert claims(COMPARISON, close)[1].outcome == "holds in part"
    alone = findings_of(COMPARISON, results(COMPARISON, close, seeds=(0,)))
    assert {one.outcome for one in alone} == {"not measured"}


def test_the_order_of_methods_fails_if_it_is_another() -> None:
    best, order, *_, scaling, ours = claims(COMPARISON, by_method({"AWA": 9, "AGIC": 12, "GENG": 11, "iDLG": 14}))
    assert [one.outcome for one in (best, order, scaling, ours)] == ["does not hold"] * 4
    assert order.numbers.startswith("Mean PSNR over 6 scenarios: iDLG 15.00, AGIC 13.00, GENG 12.00, AWA 10.00 dB")
    between = claims(COMPARISON, by_method({"AWA": 11.5, "AGIC": 12, "GENG": 11, "iDLG": 9}))
    assert between[0].numbers.startswith("AWA is clearly best in 0 of 6 by PSNR, 0 of 6 by SSIM, 0 of 6 by LPIPS.")
    swapped = claims(COMPARISON, by_method({"AWA": 14, "AGIC": 11, "GENG": 12, "iDLG": 9}))
    assert swapped[1].outcome == "holds in part"  # the winner is the same, the others are not

    def only_small(cell: Cell, seed: int) -> tuple[float, float, float]:
        good = cell.method == "AWA" and cell.row.startswith("N=8,")
        return (14, 0.6, 0.4) if good else (10, 0.5, 0.5)

    partly = claims(COMPARISON, only_small)
    assert partly[0].outcome == "does not hold"
    assert partly[0].numbers.startswith("AWA is clearly best in 2 of 6 by PSNR")


def test_a_claim_holds_in_part_from_half_of_the_comparisons_on() -> None:
    def best_in(count: int) -> Quality:
        cases = {str(case) for case in list(COMPARISON.table)[:count]}
        return lambda cell, _: (14, 0.6, 0.4) if cell.method == "AWA" and cell.row in cases else (10, 0.5, 0.5)

    outcomes = [claims(COMPARISON, best_in(count))[0].outcome for count in (6, 5, 3, 2, 1)]
    assert outcomes == ["holds", "holds in part", "holds in part", "does not hold", "does not hold"]


def test_a_case_in_which_a_rival_failed_is_not_counted() -> None:
    good = by_method({"AWA": 14, "AGIC": 12, "GENG": 11, "iDLG": 9})

    def without(cell: Cell, seed: int) -> tuple[float, float, float] | None:
        return None if (cell.row, cell.method) == ("N=8, E=8, B=4", "AGIC") else good(cell, seed)

    best, order, *_ = claims(COMPARISON, without)
    assert best.numbers.startswith("AWA is clearly best in 5 of 5 by PSNR")
    assert "over 5 scenarios" in order.numbers


def test_a_case_with_too_few_seeds_is_left_out_and_named() -> None:
    """Else the first trial of a case would undo what the finished ones have shown."""
    good = by_method({"AWA": 14, "AGIC": 12, "GENG": 11, "iDLG": 9, "strongest (ours)": 20})

    def begun(cell: Cell, seed: int) -> tuple[float, float, float] | None:
        return None if cell.row in ("N=16, E=8, B=4", "N=64, E=32, B=4") and seed > 1 else good(cell, seed)

    best, order, _, _, scaling, ours = claims(COMPARISON, begun)
    assert best.numbers.startswith("AWA is clearly best in 5 of 5 by PSNR")
    assert "over 5 scenarios" in order.numbers
    assert [one.outcome for one in (best, order, scaling, ours)] == ["holds"] * 4
    for one in (best, order, ours):
        assert "Left out, with fewer than 3 seeds so far: N=3, E=2, B=2" in one.numbers
    assert "ahead in 9 of 9" in scaling.numbers
    assert "Left out, with fewer than 3 seeds so far: N=6, E=8, B=2" in scaling.numbers


def test_gains_of_layer_weights_are_told_apart() -> None:
    rising = claims(ABLATION, by_method({"approximation only": 10, "linear weights": 12, "AWA": 13, TUNED: 15}))
    assert [one.outcome for one in rising] == ["holds", "holds", "holds"]
    assert "PSNR 11.00 to 13.00 (+18.2%; paper +23.5%)" in rising[0].numbers
    hump = claims(ABLATION, by_method({"approximation only": 10, "linear weights": 14, "AWA": 13, TUNED: 9}))
    assert [one.outcome for one in hump] == ["holds", "does not hold", "does not hold"]

    def without_ssim(cell: Cell, seed: int) -> tuple[float, float, float]:
        better = cell.method == "linear weights"
        return 12 + better, 0.5, 0.5 - 0.1 * better

    partly = claims(ABLATION, without_ssim)[0]
    assert partly.outcome == "holds in part"
    assert "SSIM 0.500 to 0.500 (+0.0%; paper +38.1%), within the spread" in partly.numbers


def test_changes_are_over_the_seeds_that_both_have() -> None:
    """Else images that one of the two was spared would look like a gain or a loss."""
    good = by_method({"approximation only": 10, "linear weights": 12, "AWA": 13})

    def half(cell: Cell, seed: int) -> tuple[float, float, float] | None:
        return None if cell.method == "linear weights" and seed > 0 else good(cell, seed)

    linear = claims(ABLATION, half)[0]
    assert linear.outcome == "not measured"  # one draw proves nothing
    assert "PSNR 10.00 to 12.00 (+20.0%; paper +23.5%) over 1 of 3 seeds" in linear.numbers
    assert "n = 1 image, 1 seed. That is too few" in linear.numbers


def test_labels_are_as_good_as_granted_ones_unless_they_are_clearly_worse() -> None:
    inferred, joint = claims(LABELS, by_method({GRANTED: 14, INFERRED: 14, JOINT: 9}))
    assert (inferred.outcome, joint.outcome) == ("holds", "does not hold")
    assert "PSNR 15.00 to 10.00" in joint.numbers
    # Better by 2, worse by 2, the same: seeds differ too much to say that they do as well.
    doubtful = claims(LABELS, lambda cell, seed: (14 + (2 * seed - 2) * (cell.method == INFERRED), 0.5, 0.5))[0]
    assert doubtful.outcome == "not decided"


def epochs_of(cell: Cell) -> int:
    return int(cell.row.split("E=")[1].split(",")[0])


def test_a_decline_with_epochs_is_seen_and_so_is_none() -> None:
    falling = claims(EPOCHS, lambda cell, seed: (20 - epochs_of(cell) / 8, 0.9 - epochs_of(cell) / 200, 0.1))[0]
    assert falling.outcome == "holds in part"  # LPIPS stays where it is
    assert "PSNR 19.50, 19.00, 18.00, 16.00 (-17.9%; paper -4.7%, steadily worse)" in falling.numbers
    assert "LPIPS 0.100, 0.100, 0.100, 0.100 (+0.0%; paper +4.1%, steadily worse, ends within the spread)" in (
        falling.numbers
    )
    rising = claims(EPOCHS, lambda cell, seed: (epochs_of(cell), epochs_of(cell) / 100, 1 / epochs_of(cell)))[0]
    assert rising.outcome == "does not hold"
    assert "PSNR 4.00, 8.00, 16.00, 32.00 (+700.0%; paper -4.7%, not steadily)" in rising.numbers


def test_a_decline_by_more_than_a_quarter_is_not_moderate() -> None:
    def losing(share: float) -> Quality:
        def quality(cell: Cell, seed: int) -> tuple[float, float, float]:
            lost = share * (epochs_of(cell) - 4) / 28
            return 20 * (1 - lost), 0.8 * (1 - lost), 0.4 * (1 + lost)

        return quality

    assert [claims(EPOCHS, losing(share))[0].outcome for share in (0.05, 0.24, 0.26, 0.9)] == [
        "holds",
        "holds",
        "does not hold",
        "does not hold",
    ]
    collapse = claims(EPOCHS, losing(0.9))[0]
    assert "SSIM 0.800, 0.697, 0.491, 0.080 (-90.0%; paper -12.0%, steadily worse)" in collapse.numbers


@pytest.mark.parametrize("reproduction", [LARGE, STAGES])
def test_images_are_recognized_in_all_some_or_no_cases(reproduction: Reproduction) -> None:
    assert claims(reproduction, lambda cell, seed: (20, 0.6, 0.1))[0].outcome == "holds"
    some = claims(reproduction, lambda cell, seed: (20, 0.6 if seed == 0 else 0.4, 0.1))[0]
    assert some.outcome == "holds in part"
    assert "33% of the images have an SSIM of 0.5 or more" in some.numbers
    assert claims(reproduction, lambda cell, seed: (20, 0.1, 0.1))[0].outcome == "does not hold"


def test_a_few_recognized_images_are_no_part() -> None:
    few = claims(STAGES, lambda cell, seed: (20, 0.9 if (cell.row[-1], seed) == ("0", 0) else 0.1, 0.1))[0]
    assert few.outcome == "does not hold"


def test_images_recognized_at_one_stage_alone_are_a_part() -> None:
    one = claims(STAGES, lambda cell, seed: (20, 0.9 if cell.row.endswith("round 0") else 0.1, 0.1))[0]
    assert one.outcome == "holds in part"


def tuning_trials(*values: float | None) -> tuple[Evaluation, ...]:
    return tuple(Evaluation(number=number, value=value, parameters={}) for number, value in enumerate(values))


def test_tuning_helps_if_later_trials_are_better_than_the_random_ones() -> None:
    quality = by_method({})
    found = claims(TUNING, quality, tuning_trials(*[0.5] * 11, 0.4, 0.3, None, 0.35))[0]
    assert found.outcome == "holds"
    assert found.numbers.startswith(
        "Smallest f(Q) of 12 random trials 0.4, of the 2 trials after them 0.3; medians 0.5 and"
    )
    by_chance = tuning_trials(*[0.5, 0.4] * 6, 0.39, 0.5, 0.6)  # the least of more trials, and no lower otherwise
    assert claims(TUNING, quality, by_chance)[0].outcome == "holds in part"
    assert claims(TUNING, quality, tuning_trials(*[0.5] * 11, 0.2, 0.3))[0].outcome == "does not hold"
    assert claims(TUNING, quality)[0].outcome == "not measured"


def test_weights_carry_over_if_they_help_where_they_were_not_tuned() -> None:
    def only_at_home(cell: Cell, seed: int) -> tuple[float, float, float]:
        home = cell.row == "N=16, E=32, B=4" and cell.method == TUNED
        return (20, 0.9, 0.1) if home else (10, 0.5, 0.5)

    assert claims(TUNING, only_at_home)[1].outcome == "does not hold"
    _, tuned, papers = claims(TUNING, by_method({"approximation only": 10, TUNED: 12, "AWA": 9}))
    assert (tuned.outcome, papers.outcome) == ("holds", "does not hold")
    assert "N=3, E=8, B=2" not in tuned.numbers  # the scenario in which it was tuned
    assert "N=3, E=8, B=2" in papers.numbers


@pytest.mark.parametrize("reproduction", REPRODUCTIONS.values(), ids=REPRODUCTIONS)
def test_without_numbers_nothing_is_claimed(reproduction: Reproduction) -> None:
    found = claims(reproduction, lambda cell, seed: None)
    assert {one.outcome for one in found} == {"not measured"}
