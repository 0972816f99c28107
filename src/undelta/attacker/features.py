"""The last linear layer's inputs, image by image, solved for from its update: nothing is optimized over images.

With labels y_i known and distinct, the layer's gradient, summed over images, is G = Σ_i (p_i − y_i) f_iᵀ. Given the
probabilities p_i this is linear least squares for the inputs f_i, and given the f_i, p_i = softmax(W f_i + b). Both are
iterated, from what the bias tells of the mean of the p_i, with the layer as it was halfway along the path. One gradient
gives the inputs exactly; of longer training they are means, nearly.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from undelta.attacker.labels import LastLayer, last_layer
from undelta.errors import MissingKnowledge
from undelta.observation import Observation

MOST = 500  # rounds
DAMPING = 0.5  # of a step: whole ones overshoot
SETTLED = 1e-9  # of a probability: smaller changes are rounding


@dataclass(frozen=True, kw_only=True)
class Features:
    """What the last layer saw of each image."""

    labels: Tensor
    """(N,), rising: the image of each row."""
    inputs: Tensor = field(repr=False)
    """(N, features)."""
    place: float
    """The point of the path, from 0 to 1, for which they stand."""
    settled: bool
    """Whether the rounds came to an end; if not, do not trust the inputs."""


def last_inputs(observation: Observation) -> Features:
    """The inputs of the last linear layer, from an update with known and distinct labels.

    Examples:
        >>> from undelta import Scenario, disclose
        >>> scenario = Scenario(data="digits", num_samples=1, model="mlp", epochs=1, batches=1)
        >>> found = last_inputs(disclose(scenario.draw(seed=0), scenario, seed=0))
        >>> found.inputs.shape[0], found.settled
        (1, True)
    """
    labels = observation.labels
    if labels is None:
        raise MissingKnowledge("the labels are not granted")
    if len(labels.unique()) < len(labels):
        raise MissingKnowledge("two images have the same label, so that only the sum of their inputs can be solved for")
    labels = labels.cpu()  # it is a small problem, and no GPU has the solver
    last, steps = last_layer(observation), observation.epochs * observation.batches
    place = (steps - 1) / (2 * steps)  # of the points at which gradients were taken, the mean
    gradient, sums = (
        None if one is None else -observation.num_samples / observation.path_length * one.double().cpu()
        for one in (last.weight, last.bias)
    )
    assert gradient is not None  # noqa: S101
    classes, smoothing = len(gradient), observation.training.label_smoothing
    targets = F.one_hot(labels.sort().values, classes).double() * (1 - smoothing) + smoothing / classes
    shares = torch.full_like(targets, 1 / classes)
    if sums is not None:
        known = (sums + targets.sum(0)).clamp_min(SETTLED)  # Σ p_i
        shares = (known / known.sum()).expand_as(targets)
    weight, bias = _halfway(last, place)
    inputs, change = gradient.new_zeros(len(labels), gradient.shape[1]), torch.inf
    for _ in range(MOST):
        inputs = torch.linalg.lstsq((shares - targets).T, gradient, driver="gelsd").solution
        step = (inputs @ weight.T + bias).softmax(1) - shares
        shares, change = shares + DAMPING * step, float(step.abs().max())
        if change < SETTLED:
            break
    return Features(labels=labels.sort().values, inputs=inputs, place=place, settled=change < 1e-3)


def _halfway(last: LastLayer, place: float) -> tuple[Tensor, Tensor]:
    """The layer's weight and bias at a point of the path."""
    name = f"{last.name}." if last.name else ""
    weight, bias = (
        (last.start[key] + place * last.update[key]).double().cpu() if key in last.update else last.start.get(key)
        for key in (f"{name}weight", f"{name}bias")
    )
    assert weight is not None  # noqa: S101
    return weight.cpu(), weight.new_zeros(len(weight)).cpu() if bias is None else bias.double().cpu()
