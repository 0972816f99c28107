"""PI-SME (arXiv 2610.03597): the update as an integral of gradients along a learned curve.

The integral along a quadratic Bézier curve is taken by Gauss and Legendre's nodes. Its code was not at hand. Not stated
in what was: the number of nodes, rates and penalty (here, three, and those of NL-SME).
"""

from __future__ import annotations

from undelta.attacker.attacks.sme import surrogate
from undelta.attacker.method import GradientMatching
from undelta.attacker.paths import QuadraticPath


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
    return surrogate(curve, steps=steps, learning_rate=learning_rate, tv=tv, path_rate=control_rate, labels=labels)
