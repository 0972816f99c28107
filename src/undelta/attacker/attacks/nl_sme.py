"""NL-SME and PI-SME: surrogate models on a learned curve instead of SME's straight line.

NL-SME (Xia et al. 2025, arXiv 2509.22082) takes one gradient at a learned point of a quadratic Bézier curve from θ to
θ⁺; PI-SME (arXiv 2610.03597) integrates gradients along such a curve by Gauss and Legendre's nodes. Their code was not
at hand. Not stated in what was: what NL-SME's factor multiplies (here, the way from θ), how its penalties are
normalized (here, sums of squares), and PI-SME's number of nodes, rates and penalty (here, three, and NL-SME's).
"""

from __future__ import annotations

from undelta.attacker.labels import label_source
from undelta.attacker.method import GradientMatching
from undelta.attacker.optimizers import Adam, three_step
from undelta.attacker.paths import LearnedCurve, QuadraticPath
from undelta.attacker.priors import TotalVariation
from undelta.attacker.replay import ReplayPart


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
    return _on_a_curve(curve, steps, learning_rate, tv, control_rate, labels)


def pi_sme(
    *,
    steps: int = 1_000,
    learning_rate: float = 1.0,
    tv: float = 0.01,
    nodes: int = 3,
    control_rate: float = 1e-3,
    ridge: float = 0.01,
    labels: str = "auto",
) -> GradientMatching:
    """Gradients along a learned curve, integrated."""
    curve = QuadraticPath(nodes=nodes, gauss=True, ridge=ridge)
    return _on_a_curve(curve, steps, learning_rate, tv, control_rate, labels)


def _on_a_curve(
    curve: ReplayPart, steps: int, learning_rate: float, tv: float, path_rate: float, labels: str
) -> GradientMatching:
    return GradientMatching(
        replay=curve,
        priors=(TotalVariation(weight=tv / 2),),  # as in `sme`
        labels=label_source(labels),
        optimizer=Adam(learning_rate=learning_rate),
        schedule=three_step,
        path_rate=path_rate,
        steps=steps,
    )
