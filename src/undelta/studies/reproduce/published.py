"""The figures that the paper prints, with the LaTeX labels they stand under (Song, Wang and Zuazua).

Nothing here was measured by this project. A dash in the paper's table (iDLG and AGIC "become impractical" for N >= 64)
is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from undelta.attacker.weights import PAPER_Q


class Figures(NamedTuple):
    """One cell of a table: means over the client's images."""

    psnr: float
    ssim: float
    lpips: float


class Case(NamedTuple):
    """N images, E epochs, B mini-batches per epoch, as the paper has them."""

    samples: int
    epochs: int
    batches: int

    def __str__(self) -> str:
        return f"N={self.samples}, E={self.epochs}, B={self.batches}"


PRINTED = Figures._fields
"""Metrics that the paper prints."""
IDLG, AGIC, GENG, AWA = "iDLG", "AGIC", "GENG", "AWA"
APPROXIMATION, LINEAR = "approximation only", "linear weights"

# tab_gradinv_scenario, and the section around it
LEARNING_RATE = 1e-4
"""Of the client's SGD."""
ATTACK_RATE = 0.1
ITERATIONS = 10_000
LARGE_ITERATIONS = 50_000
IMAGE_SIZE = 224

# tab_compare_methods
_COMPARISON: dict[Case, tuple[Figures | None, Figures | None, Figures | None, Figures | None]] = {
    Case(8, 8, 4): (
        Figures(8.57, 0.019, 0.992),
        Figures(11.13, 0.510, 0.659),
        Figures(10.31, 0.414, 0.690),
        Figures(13.49, 0.642, 0.573),
    ),
    Case(8, 16, 4): (
        Figures(8.57, 0.018, 0.993),
        Figures(10.47, 0.362, 0.703),
        Figures(10.07, 0.345, 0.723),
        Figures(12.42, 0.561, 0.611),
    ),
    Case(16, 8, 4): (
        Figures(9.20, 0.038, 0.992),
        Figures(10.82, 0.362, 0.687),
        Figures(11.08, 0.368, 0.700),
        Figures(12.13, 0.569, 0.646),
    ),
    Case(16, 16, 4): (
        Figures(9.21, 0.039, 0.997),
        Figures(10.45, 0.318, 0.707),
        Figures(10.31, 0.311, 0.702),
        Figures(12.33, 0.597, 0.642),
    ),
    Case(32, 8, 4): (
        Figures(9.26, 0.030, 1.084),
        Figures(10.16, 0.311, 0.717),
        Figures(9.65, 0.237, 0.732),
        Figures(12.21, 0.578, 0.636),
    ),
    Case(32, 16, 4): (
        Figures(9.27, 0.030, 1.046),
        Figures(9.93, 0.243, 0.747),
        Figures(9.53, 0.220, 0.744),
        Figures(12.04, 0.548, 0.647),
    ),
    Case(64, 32, 4): (None, None, Figures(9.14, 0.023, 0.804), Figures(11.87, 0.555, 0.680)),
    Case(64, 32, 8): (None, None, Figures(9.14, 0.023, 0.822), Figures(10.95, 0.451, 0.694)),
    Case(128, 32, 4): (None, None, Figures(9.06, 0.028, 0.804), Figures(11.67, 0.535, 0.676)),
    Case(128, 32, 8): (None, None, Figures(9.06, 0.028, 0.816), Figures(10.57, 0.423, 0.702)),
}
Row = Mapping[str, Figures | None]
"""By method; None is where the paper has a dash, and a method that is not there has no figure in the paper."""

COMPARISON: Mapping[Case, Row] = MappingProxyType(
    {case: dict(zip((IDLG, AGIC, GENG, AWA), row, strict=True)) for case, row in _COMPARISON.items()}
)

# fig_compare_full: N = 8, E = 32, B = 1
FIGURE: Mapping[Case, Row] = MappingProxyType(
    {
        Case(8, 32, 1): {
            IDLG: Figures(8.57, 0.018, 0.994),
            AGIC: Figures(9.59, 0.342, 0.726),
            GENG: Figures(10.71, 0.468, 0.672),
            AWA: Figures(15.11, 0.800, 0.508),
        }
    }
)

# fig_awa_woQ: 16 images, 16 epochs, a single mini-batch
ABLATION: Mapping[Case, Row] = MappingProxyType(
    {
        Case(16, 16, 1): {
            APPROXIMATION: Figures(11.23, 0.491, 0.654),
            LINEAR: Figures(13.87, 0.678, 0.570),
            AWA: Figures(14.16, 0.710, 0.551),
        }
    }
)

# fig_awa_vary_E
EPOCHS: Mapping[Case, Row] = MappingProxyType(
    {
        Case(32, 4, 4): {AWA: Figures(12.40, 0.600, 0.633)},
        Case(32, 8, 4): {AWA: Figures(12.21, 0.578, 0.636)},
        Case(32, 16, 4): {AWA: Figures(12.04, 0.548, 0.647)},
        Case(32, 32, 4): {AWA: Figures(11.82, 0.528, 0.659)},
    }
)

# fig_awa_128_64
LARGE: Mapping[Case, Row] = MappingProxyType({Case(128, 64, 4): {AWA: Figures(11.799, 0.546, 0.680)}})

# tab_search_ranges_BO and the section around it
TUNING_CASE = Case(16, 32, 4)
TUNING_TRIALS = 50
TUNING_RANDOM = 12
SEARCH_RANGES: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "conv": (1, 1000),
        "norm": (1, 1000),
        "linear": (1, 1000),
        "enhanced": (1, 1000),
        "p_mean": (0, 0.5),
        "p_var": (0, 0.5),
    }
)
TUNED_Q: Mapping[str, float] = MappingProxyType({name: getattr(PAPER_Q, name) for name in SEARCH_RANGES})
