"""Gradient matching: move dummy images until their replay explains the observed update.

A paper is a value of `GradientMatching`; papers differ by its fields, not by subclasses. `combine` makes attacks of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from undelta.attacker.attack import UNWATCHED, Run
from undelta.attacker.descent import Descent, Method
from undelta.attacker.reconstruction import Reconstruction
from undelta.attacker.run import optimize
from undelta.observation import Observation
from undelta.seeding import stream


@dataclass(frozen=True, kw_only=True)
class GradientMatching(Method):
    """Minimize Dist_Q(dummy update, target) + priors over the dummy images (AWA eq_weighted_loss).

    Examples:
        >>> from undelta import Scenario, disclose
        >>> from undelta.attacker.priors import TotalVariation
        >>> from undelta.attacker.replays import OneStep
        >>> small = {"width": 4, "hidden": 16}
        >>> scenario = Scenario(data="digits", num_samples=2, model_arguments=small, epochs=2, batches=1)
        >>> observation = disclose(scenario.draw(seed=0), scenario, seed=0)
        >>> attack = GradientMatching(replay=OneStep(position=0.5), priors=(TotalVariation(weight=0.01),), steps=21)
        >>> first, *_, last = attack(observation, seed=0).history
        >>> last.loss < first.loss
        True
    """

    def __call__(
        self,
        observation: Observation,
        *,
        seed: int = 0,
        attempt: int = 0,
        start: Reconstruction | None = None,
        run: Run = UNWATCHED,
    ) -> Reconstruction:
        """Attack; another attempt draws other noise, in whose place comes a start that an earlier phase found."""
        if done := run.finished():
            return done.to(observation.device)
        generator = stream("attacker", seed, attempt, 0)
        return optimize([Descent(self, observation, generator, start, memory=run.memory)], run)
