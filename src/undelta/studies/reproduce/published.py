"""The figures that the paper prints, with the LaTeX labels they stand under (Song, Wang and Zuazua).

Nothing here was measured by this project. Tables and captions are in ``published.csv``. A dash in the paper's table
(iDLG and AGIC "become impractical" for N >= 64) is a line without numbers there, and None here.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from undelta.attacker.weights import PAPER_Q, SEARCH_RANGES


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


Row = Mapping[str, Figures | None]
"""By method; None is where the paper has a dash, and a method that is not there has no figure in the paper."""
Table = Mapping[Case, Row]

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


def _read_tables() -> dict[str, Table]:
    tables: dict[str, dict[Case, dict[str, Figures | None]]] = {}
    with Path(__file__).with_suffix(".csv").open(encoding="utf-8") as file:
        for label, samples, epochs, batches, method, *numbers in list(csv.reader(file))[1:]:
            row = tables.setdefault(label, {}).setdefault(Case(int(samples), int(epochs), int(batches)), {})
            row[method] = Figures(*map(float, numbers)) if all(numbers) else None
    return {label: MappingProxyType(table) for label, table in tables.items()}


TABLES = _read_tables()
"""By label."""
COMPARISON = TABLES["tab_compare_methods"]
FIGURE = TABLES["fig_compare_full"]
ABLATION = TABLES["fig_awa_woQ"]
EPOCHS = TABLES["fig_awa_vary_E"]
LARGE = TABLES["fig_awa_128_64"]

# tab_search_ranges_BO and the section around it
TUNING_CASE = Case(16, 32, 4)
TUNING_TRIALS = 50
TUNING_RANDOM = 12
TUNED_Q: Mapping[str, float] = MappingProxyType({name: getattr(PAPER_Q, name) for name in SEARCH_RANGES})
