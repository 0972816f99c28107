"""Gradient inversion with generative image prior (GIAS: Jeon et al. 2021): latents first, then generator weights."""

from __future__ import annotations

import copy

from torch import nn

from undelta.attacker.canvas import GeneratorWeights, Latents
from undelta.attacker.combine import Phases
from undelta.attacker.labels import label_source
from undelta.attacker.method import GradientMatching
from undelta.attacker.optimizers import Adam, three_step
from undelta.attacker.priors import TotalVariation
from undelta.attacker.replays import OneStep


def gias(
    generator: nn.Module,
    *,
    dim: int,
    steps: int = 1_000,
    weight_steps: int = 1_000,
    latent_rate: float = 0.03,
    weight_rate: float = 1e-3,
    tv: float = 1e-6,
    position: float = 0.0,
    labels: str = "auto",
) -> Phases:
    """Search a generator's latent space, then its weights, image by image.

    Args:
        generator: Any module that maps latents (N, dim) to pixels (N, C, H, W) in [0, 1], trained by the attacker on
            public data. It is not changed.
        dim: Size of a latent.
        steps: Iterations over latents.
        weight_steps: Iterations over weights.
        latent_rate: Adam's rate for latents.
        weight_rate: Adam's rate for weights.
        tv: Weight of total variation.
        position: Where along the path the gradient is taken; 0 in the paper.
        labels: Where labels come from.
    """
    generator = copy.deepcopy(generator).eval()
    latents = GradientMatching(
        replay=OneStep(position=position),
        canvas=Latents(generator=generator, dim=dim),
        priors=(TotalVariation(weight=tv),),
        labels=label_source(labels),
        optimizer=Adam(learning_rate=latent_rate),
        schedule=three_step,
        steps=steps,
    )
    weights = GradientMatching(
        replay=OneStep(position=position),
        canvas=GeneratorWeights(generator=generator, dim=dim),
        priors=(TotalVariation(weight=tv),),
        labels=label_source(labels),
        optimizer=Adam(learning_rate=weight_rate),
        schedule=three_step,
        steps=weight_steps,
    )
    return Phases(phases=(latents, weights))
