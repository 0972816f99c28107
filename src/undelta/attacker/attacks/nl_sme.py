"""NL-SME (Xia et al. 2025, arXiv 2509.22082): a surrogate model on a learned curve instead of SME's straight line.

It takes one gradient at a learned point of a quadratic Bézier curve from θ to θ⁺. Its code was not at hand. Not stated
in what was: what its factor multiplies (here, the way from θ), and how its penalties are normalized (here, sums of
squares).
"""

from __future__ import annotations

from undelta.attacker.attacks.sme import surrogate
from undelta.attacker.method import GradientMatching
from undelta.attacker.paths import LearnedCurve


def nl_sme(
    *,
    steps: int = 1_000,
    learning_rate: float = 1.0,
    tv: float = 0.01,
    position: float = 0.5,
    position_rate: float = 1e-2,
    control_rate: float = 1e-3,
    factor_rate: float = 1e-4,
    ridge: float = 0.01,
    labels: str = "auto",
) -> GradientMatching:
    """One gradient at a learned point of a learned curve."""
    curve = LearnedCurve(
        position=position,
        position_rate=position_rate,
        control_rate=control_rate,
        factor_rate=factor_rate,
        ridge=ridge,
    )
    return surrogate(curve, steps=steps, learning_rate=learning_rate, tv=tv, path_rate=control_rate, labels=labels)
