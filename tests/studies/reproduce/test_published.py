"""The paper's figures as its LaTeX has them; the numbers below were copied from it by hand, not from the package."""

from __future__ import annotations

import pytest

from undelta.attacker.weights import SEARCH_RANGES
from undelta.studies.reproduce import published
from undelta.studies.reproduce.published import Case, Figures


@pytest.mark.parametrize(
    ("case", "method", "figures"),
    [
        ((8, 8, 4), "iDLG", (8.57, 0.019, 0.992)),
        ((8, 8, 4), "AWA", (13.49, 0.642, 0.573)),
        ((8, 16, 4), "AGIC", (10.47, 0.362, 0.703)),
        ((16, 8, 4), "GENG", (11.08, 0.368, 0.700)),
        ((16, 16, 4), "AWA", (12.33, 0.597, 0.642)),
        ((32, 8, 4), "iDLG", (9.26, 0.030, 1.084)),
        ((32, 16, 4), "AGIC", (9.93, 0.243, 0.747)),
        ((64, 32, 4), "iDLG", None),
        ((64, 32, 4), "AGIC", None),
        ((64, 32, 8), "GENG", (9.14, 0.023, 0.822)),
        ((128, 32, 4), "AWA", (11.67, 0.535, 0.676)),
        ((128, 32, 8), "iDLG", None),
        ((128, 32, 8), "AWA", (10.57, 0.423, 0.702)),
    ],
)
def test_the_comparison_is_that_of_the_paper(
    case: tuple[int, int, int], method: str, figures: tuple[float, float, float] | None
) -> None:
    assert published.COMPARISON[Case(*case)][method] == figures


def test_the_comparison_has_ten_cases_of_four_methods() -> None:
    assert list(published.COMPARISON) == [
        (8, 8, 4),
        (8, 16, 4),
        (16, 8, 4),
        (16, 16, 4),
        (32, 8, 4),
        (32, 16, 4),
        (64, 32, 4),
        (64, 32, 8),
        (128, 32, 4),
        (128, 32, 8),
    ]
    assert {tuple(row) for row in published.COMPARISON.values()} == {("iDLG", "AGIC", "GENG", "AWA")}


def test_awa_is_best_in_every_printed_cell() -> None:
    """The paper prints AWA in bold throughout; a digit copied wrongly would most likely break that."""
    for row in (*published.COMPARISON.values(), *published.FIGURE.values()):
        awa = row["AWA"]
        assert awa is not None
        for figures in row.values():
            assert figures is None or figures is awa or (figures.psnr < awa.psnr and figures.ssim < awa.ssim)
            assert figures is None or figures.lpips >= awa.lpips


def test_the_captions_of_the_figures() -> None:
    figure = published.FIGURE[Case(8, 32, 1)]
    assert figure["iDLG"] == (8.57, 0.018, 0.994)
    assert figure["AGIC"] == (9.59, 0.342, 0.726)
    assert figure["GENG"] == (10.71, 0.468, 0.672)
    assert figure["AWA"] == (15.11, 0.800, 0.508)
    ablation = published.ABLATION[Case(16, 16, 1)]
    assert list(ablation.values()) == [(11.23, 0.491, 0.654), (13.87, 0.678, 0.570), (14.16, 0.710, 0.551)]
    epochs = {case.epochs: row["AWA"] for case, row in published.EPOCHS.items()}
    assert epochs == {
        4: (12.40, 0.600, 0.633),
        8: (12.21, 0.578, 0.636),
        16: (12.04, 0.548, 0.647),
        32: (11.82, 0.528, 0.659),
    }
    assert {(case.samples, case.batches) for case in published.EPOCHS} == {(32, 4)}
    assert dict(published.LARGE) == {(128, 64, 4): {"AWA": (11.799, 0.546, 0.680)}}


def test_figures_that_the_paper_prints_twice_agree() -> None:
    for case in (Case(32, 8, 4), Case(32, 16, 4)):
        assert published.EPOCHS[case]["AWA"] == published.COMPARISON[case]["AWA"]


def test_the_ablations_percentages_are_those_of_the_text() -> None:
    plain, linear, enhanced = (row for row in published.ABLATION[Case(16, 16, 1)].values() if isinstance(row, Figures))
    assert linear.psnr / plain.psnr - 1 == pytest.approx(0.235, abs=5e-4)
    assert linear.ssim / plain.ssim - 1 == pytest.approx(0.381, abs=5e-4)
    assert linear.lpips / plain.lpips - 1 == pytest.approx(-0.128, abs=5e-4)
    assert enhanced.psnr / linear.psnr - 1 == pytest.approx(0.021, abs=5e-4)
    assert enhanced.ssim / linear.ssim - 1 == pytest.approx(0.047, abs=5e-4)
    assert enhanced.lpips / linear.lpips - 1 == pytest.approx(-0.033, abs=5e-4)


def test_settings_and_tuned_weights() -> None:
    assert published.LEARNING_RATE == 0.0001
    assert (published.ATTACK_RATE, published.ITERATIONS, published.LARGE_ITERATIONS) == (0.1, 10000, 50000)
    assert (published.TUNING_CASE, published.TUNING_TRIALS, published.TUNING_RANDOM) == ((16, 32, 4), 50, 12)
    assert dict(published.TUNED_Q) == {
        "conv": 694.99,
        "norm": 898.67,
        "linear": 441.64,
        "enhanced": 789.51,
        "p_mean": 0.497,
        "p_var": 0.314,
    }
    assert list(SEARCH_RANGES.values()) == [(1, 1000)] * 4 + [(0, 0.5)] * 2
