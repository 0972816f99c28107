"""The closed form: a linear layer with bias reveals its input, since dW = g xᵀ and db = g (Phong et al. 2017)."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from undelta.attacker.attack import UNWATCHED, Run
from undelta.attacker.distances import mismatch
from undelta.attacker.labels import LabelSource, label_source
from undelta.attacker.needs import check_room
from undelta.attacker.objective import Objective
from undelta.attacker.reconstruction import Moment, Reconstruction
from undelta.attacker.remember import network_of
from undelta.attacker.replay import prepare
from undelta.attacker.replays import OneStep, spanned_update
from undelta.errors import MissingKnowledge
from undelta.observation import Observation
from undelta.seeding import stream
from undelta.updates import Update, layers_of

MOST_SWAPS = 2000  # tries at giving images their labels
MOST_PAIRS = 10**6  # looked at for them


@dataclass(frozen=True, kw_only=True)
class LinearInversion:
    """Read images off the first layer's update, if that layer is linear and has a bias.

    Exact for one sample and one step. With several samples a row gives a mixture of the images that excite it; the N
    rows are taken that lie in the range of pixels and differ most, which is exact for neurons that one image excites.
    """

    labels: LabelSource

    def __call__(self, observation: Observation, *, seed: int = 0, run: Run = UNWATCHED) -> Reconstruction:
        began = time.perf_counter()
        check_room(Objective(replay=OneStep()), observation, run.memory)
        generator = stream("attacker", seed, "analytic")
        weight, bias = _first_linear(observation)
        rows = torch.where(bias.abs() > bias.abs().max() * 1e-6)[0]
        if len(rows) == 0:
            raise MissingKnowledge("the first layer's update is zero, so it reveals nothing. Use another round.")
        candidates = (weight[rows] / bias[rows, None]).view(-1, *observation.image.shape)
        pixels = observation.image.denormalize(candidates)
        outside = (pixels - pixels.clamp(0, 1)).abs().flatten(1).mean(1)
        chosen = _most_different(pixels, outside, bias[rows].abs(), observation.num_samples)
        images = pixels[chosen].clamp(0, 1)
        labels, final = _best_order(observation, images, self.labels(observation, generator), run.memory)
        seconds = time.perf_counter() - began
        moment = Moment(1, seconds, final, final)
        run.tell(moment, 1)
        return Reconstruction(
            images=images,
            labels=labels,
            mismatch=final,
            iterations=1,
            seconds=seconds,
            status="completed",
            history=(moment,),
        )


def analytic(*, labels: str = "auto") -> LinearInversion:
    """Read images off the update of a linear first layer, without any optimization."""
    return LinearInversion(labels=label_source(labels))


def _best_order(observation: Observation, images: Tensor, labels: Tensor, memory: int) -> tuple[Tensor, float]:
    """Which label goes with which image: swap pairs while that explains the update better."""
    replay = prepare(OneStep(), observation, stream("attacker", "order"), memory)
    inputs = observation.image.normalize(images)

    def explained(order: Tensor) -> float:
        return mismatch(replay(inputs, order).update, replay.target)

    best, budget = explained(labels), MOST_SWAPS
    improved = True
    while improved and budget > 0:
        improved = False
        known = labels.tolist()
        for i, j in itertools.islice(itertools.combinations(range(len(known)), 2), MOST_PAIRS):
            if known[i] == known[j] or budget <= 0:
                continue
            budget -= 1
            swapped = labels.clone()
            swapped[[i, j]] = labels[[j, i]]
            if (value := explained(swapped)) < best:
                labels, known, best, improved = swapped, swapped.tolist(), value, True
    return labels, best


def _first_linear(observation: Observation) -> tuple[Tensor, Tensor]:
    update = spanned_update(observation)
    first = layers_of(network_of(observation).model)[0]
    parameters: Update = {name.rpartition(".")[2]: update[name] for name in first.parameters if name in update}
    pixels = torch.Size(observation.image.shape).numel()
    if first.kind != "linear" or set(parameters) != {"weight", "bias"} or parameters["weight"].shape[1] != pixels:
        raise MissingKnowledge(
            f"the closed form needs the update of a linear first layer with a bias, but the first layer here is "
            f"{first.name!r} ({first.kind}). Use a matching attack."
        )
    return parameters["weight"], parameters["bias"]


def _most_different(pixels: Tensor, outside: Tensor, strength: Tensor, count: int) -> Tensor:
    """Indices of ``count`` candidates: the most plausible first, then always the farthest from those taken."""
    plausible = outside <= outside.min() + 0.01
    taken = [int(torch.where(plausible, strength, strength.new_tensor(-1.0)).argmax())]
    flat = pixels.flatten(1)
    while len(taken) < count:
        distances = torch.cdist(flat, flat[taken]).amin(1)
        distances = torch.where(plausible, distances, distances - outside.new_tensor(1e6) * outside)
        distances[taken] = -torch.inf
        if torch.isinf(distances).all():
            taken += [taken[-1]] * (count - len(taken))  # fewer candidates than samples
        else:
            taken.append(int(distances.argmax()))
    return torch.tensor(taken, device=pixels.device)
