"""FedLeak (Fan et al. 2025, USENIX Security): match a part of the gradient's entries, along steps that look ahead.

Its authors blame failed attacks on their optimization. Each parameter is matched where the dummy gradient is large, and
every step follows the gradient here and, in part, the one a step further on, which penalizes steep places. As in the
authors' released code, gradients are signed. That code moves the weights of an untrained image generator at a rate of
0.01, takes 10 000 steps, and attacks one gradient at θ; here, pixels move, as in `ig`, and of a longer training the
whole update takes the place of that gradient. Their l1 term, of raw gradients, is in units of the target's own size
here. The total variation is ours (theirs: 1e-5), and images are not filtered.
"""

from __future__ import annotations

from undelta.attacker.distances import larger_entries
from undelta.attacker.labels import label_source
from undelta.attacker.method import GradientMatching
from undelta.attacker.optimizers import LookAheadAdam, cosine_decay
from undelta.attacker.priors import TotalVariation
from undelta.attacker.replays import OneStep


def fedleak(
    *,
    steps: int = 1_000,
    learning_rate: float = 0.1,
    tv: float = 0.01,
    ahead: float = 0.3,
    labels: str = "auto",
) -> GradientMatching:
    """Match the larger half of every parameter's entries; an iteration takes two gradients."""
    return GradientMatching(
        replay=OneStep(),
        distance=larger_entries,
        priors=(TotalVariation(weight=tv),),
        labels=label_source(labels),
        optimizer=LookAheadAdam(learning_rate=learning_rate, ahead=ahead),
        schedule=cosine_decay,
        signed=True,
        steps=steps,
    )
