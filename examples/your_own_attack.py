"""An attack, a prior and a model of your own; nothing has to be registered anywhere.

    python examples/your_own_attack.py --out own-attack

The model is named as a scenario names it, ``module:function``. The attack is a value built from parts; one of them is a
prior that is defined here: faces are nearly symmetric. Whether that helps, the script measures rather than promises.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from undelta import GradientMatching, Observation, Phases, Private, Scenario, disclose, score, write_sheet
from undelta.attacker.optimizers import Adam, cosine_decay
from undelta.attacker.priors import Penalty, Prior, TotalVariation
from undelta.attacker.replay import Replay
from undelta.attacker.replays import CoarseRollout, OneStep
from undelta.client.datasets import open_dataset


def face_or_not(width: int = 16) -> nn.Module:
    """A model of your own: any function that returns a module for the data's images, here 25 x 25 gray ones."""
    return nn.Sequential(
        nn.Conv2d(1, width, 5, stride=2, padding=2),
        nn.GELU(),
        nn.Conv2d(width, width, 3, padding=1),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(width * 13 * 13, 2),
    )


@dataclass(frozen=True, kw_only=True)
class MirrorSymmetry:
    """A prior of your own: weight · mean |x − mirrored x|."""

    weight: float

    def __call__(self, observation: Observation, replay: Replay) -> Penalty:
        """Prepare the penalty for an observation; this one needs nothing of it."""
        return lambda images, labels: self.weight * (images - images.flip(-1)).abs().mean()


def own_attack(*priors: Prior, steps: int) -> Phases:
    """An attack of your own: match a gradient at the path's midpoint, then roll the path out in four steps."""
    midpoint = GradientMatching(
        replay=OneStep(position=0.5),
        priors=priors,
        optimizer=Adam(learning_rate=0.5),
        schedule=cosine_decay,
        steps=steps,
    )
    rollout = GradientMatching(
        replay=CoarseRollout(steps=4),
        priors=priors,
        optimizer=Adam(learning_rate=0.2),
        schedule=cosine_decay,
        steps=steps,
    )
    return Phases(phases=(midpoint, rollout))


def main() -> None:
    """Run the example."""
    options = argparse.ArgumentParser(description="Attack a model of your own with an attack of your own.")
    options.add_argument("--num-samples", type=int, default=4)
    options.add_argument("--steps", type=int, default=100, help="iterations of each phase")
    options.add_argument("--out", type=Path, default=Path("own-attack"))
    given = options.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)

    scenario = Scenario(
        data="faces",
        num_samples=given.num_samples,
        model=f"{Path(__file__).stem}:face_or_not",
        model_arguments={"width": 16},
        epochs=4,
        batches=2,
        learning_rate=0.01,
    )
    # Pictures of your own are two tensors; here the first faces of the set, of which the other half is background.
    faces = open_dataset("faces")
    chosen = range(given.num_samples)
    private = Private(images=faces.draw(chosen, 25), labels=faces.labels[list(chosen)])
    observation = disclose(private, scenario, seed=0)
    attacks = {
        "total variation": own_attack(TotalVariation(weight=0.01), steps=given.steps),
        "total variation, symmetry": own_attack(
            TotalVariation(weight=0.01), MirrorSymmetry(weight=0.01), steps=given.steps
        ),
    }
    rows = [("private", private.images)]
    for name, attack in attacks.items():
        reconstruction = attack(observation, seed=0)
        result = score(reconstruction, private)
        caption = f"{name}: " + ("n/a" if result.psnr is None else f"{result.psnr:.1f} dB")
        print(f"{caption}, mismatch {reconstruction.mismatch:.4f}, {reconstruction.seconds:.0f} s")
        rows.append((caption, reconstruction.images[list(result.order)]))
    write_sheet(given.out / "reconstruction.png", rows)
    print(f"pictures: {given.out / 'reconstruction.png'}")


if __name__ == "__main__":
    main()
