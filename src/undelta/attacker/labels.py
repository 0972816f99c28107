"""Where an attack's labels come from: granted, inferred from the last layer's update, or optimized jointly.

With a softmax output the gradient of the last layer's row c is Σ_k (p_kc − y_kc)·a_k / N, where a_k ≥ 0 is the layer's
input after a ReLU or sigmoid. Rows of absent classes are positive, those of present ones pulled down: all
methods below read that off.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from undelta.attacker.replays import decayed, observed_update, without
from undelta.engine import Network
from undelta.errors import ConfigError, MissingKnowledge
from undelta.observation import Observation
from undelta.schema import unknown
from undelta.updates import Update, along, layers_of

PROBES = 64  # random inputs that stand for the unknown images where a statistic of the outputs is needed
POINTS = 5  # along the path, where a statistic changes during training


class LabelSource(Protocol):
    """Any callable that gives labels for the dummy images, in an order of the attacker's own.

    (N,) classes; or (N, classes) logits, which are then optimized along with the images.
    """

    def __call__(self, observation: Observation, generator: torch.Generator) -> Tensor:
        """The labels."""


def disclosed(observation: Observation, generator: torch.Generator) -> Tensor:
    """The granted multiset of labels, in random order: sorted ones would make mini-batches of one class."""
    if observation.labels is None:
        raise MissingKnowledge(
            "this attack takes the labels as known, but the observation grants none. Grant them in the scenario "
            "(grant_labels = true), or infer them (labels = auto, yin, geng or dlfa)."
        )
    return _shuffled(observation.labels, generator)


def joint(observation: Observation, generator: torch.Generator) -> Tensor:
    """Random logits, to be optimized with the images (DLG: Zhu et al. 2019)."""
    shape = (observation.num_samples, observation.image.classes)
    return torch.randn(shape, generator=generator, dtype=observation.dtype).to(observation.device)


def idlg(observation: Observation, generator: torch.Generator) -> Tensor:
    """The one class whose row of the last layer's gradient is negative (iDLG: Zhao et al. 2020)."""
    if observation.num_samples != 1:
        raise MissingKnowledge(
            f"iDLG recovers one label, but this client reported num_samples={observation.num_samples}. "
            "Use labels = geng or dlfa, or grant labels in the scenario."
        )
    rows = -last_layer(observation).weight  # the gradient's direction
    return rows.sum(1).argmin()[None]


def yin(observation: Observation, generator: torch.Generator) -> Tensor:
    """The N classes with the smallest row minima, each once (GradInversion: Yin et al. 2021)."""
    if observation.num_samples > observation.image.classes:
        raise MissingKnowledge(
            f"Yin's rule gives every class once, but {observation.num_samples} samples of "
            f"{observation.image.classes} classes must repeat. Use labels = geng or dlfa."
        )
    rows = -last_layer(observation).weight
    return _shuffled(rows.amin(1).argsort()[: observation.num_samples].sort().values, generator)


def geng(observation: Observation, generator: torch.Generator) -> Tensor:
    """Counts of every class from one mean gradient at θ (Geng et al. 2023).

    λ_c = Σ_k p̂_kc − (N/Ō)·Σ_m ∂W_cm, with p̂ and Ō (the last layer's mean input, summed) measured on random inputs.
    """
    return _shuffled(_fill(_row_counts(observation, generator, steps=1), observation.num_samples), generator)


def dlfa(observation: Observation, generator: torch.Generator) -> Tensor:
    """The same counts averaged over all E·B steps, p̂ and Ō interpolated between θ and θ⁺ (Dimitrov et al. 2022)."""
    steps = observation.epochs * observation.batches
    return _shuffled(_fill(_row_counts(observation, generator, steps=steps), observation.num_samples), generator)


def bias(observation: Observation, generator: torch.Generator) -> Tensor:
    """Counts from the last layer's bias, whose mean gradient p̄ − ȳ does not depend on the layer's input at all.

    Ours: count_c = N·(p̄_c − ∂b_c) with p̄ averaged along the path; needs a last layer with a bias.
    """
    last = last_layer(observation)
    if last.bias is None:
        raise MissingKnowledge("the last layer has no bias. Use labels = dlfa.")
    gradient = -last.bias / observation.path_length
    shares = torch.stack([_probe(last, place, generator).shares for place in _along_path()]).mean(0)
    counts = _unsmoothed(observation.num_samples * (shares - gradient), observation)
    return _shuffled(_fill(counts, observation.num_samples), generator)


def auto(observation: Observation, generator: torch.Generator) -> Tensor:
    """Granted labels where there are any; else what the last layer's bias, or else its weights, tell.

    Where E, B or η is unknown, or steps do not grow with the gradients (Adam, clipping), only signs can be read, and
    every label is taken to occur once; more samples than classes cannot be, and their labels are optimized.
    """
    if observation.labels is not None:
        return disclosed(observation, generator)
    training = observation.training
    if observation.unknown or training.adaptive or training.clip_norm is not None:  # no scale: signs must do
        if observation.num_samples > observation.image.classes:
            return joint(observation, generator)
        return (idlg if observation.num_samples == 1 else yin)(observation, generator)
    return (dlfa if last_layer(observation).bias is None else bias)(observation, generator)


LABELS: dict[str, LabelSource] = {
    "disclosed": disclosed,
    "joint": joint,
    "idlg": idlg,
    "yin": yin,
    "geng": geng,
    "dlfa": dlfa,
    "bias": bias,
    "auto": auto,
}


def label_source(name: str) -> LabelSource:
    """The source of that name."""
    if name not in LABELS:
        raise ConfigError(unknown("labels", name, LABELS))
    return LABELS[name]


class LastLayer(NamedTuple):
    """The last linear layer: its observed update, and what is needed to probe it."""

    observation: Observation
    name: str
    weight: Tensor  # (classes, features), its update
    bias: Tensor | None
    network: Network
    start: Update
    update: Update

    def seen(self, place: float, images: Tensor) -> tuple[Tensor, Tensor]:
        """The layer's inputs (n, features) and the network's outputs on normalized images, at a point of the path."""
        seen: list[Tensor] = []
        module = self.network.model.get_submodule(self.name)
        hook = module.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
        try:
            with torch.no_grad():
                outputs = self.network.outputs(along(self.start, self.update, place), images)
        finally:
            hook.remove()
        return seen[0].flatten(1), outputs


def last_layer(observation: Observation) -> LastLayer:
    """The layer that the classes come out of."""
    if observation.training.loss != "cross_entropy":
        raise MissingKnowledge(
            f"labels are inferred from a softmax and cross-entropy, but the loss is {observation.training.loss!r}. "
            "Grant labels in the scenario."
        )
    network, start, update = observed_update(observation)
    classes = observation.image.classes
    for layer in reversed(layers_of(network.model)):
        weight = f"{layer.name}.weight" if layer.name else "weight"
        if layer.kind == "linear" and weight in start and start[weight].shape[0] == classes:
            if weight not in update:
                break
            key = weight.removesuffix("weight") + "bias"
            told = without(update, decayed(observation, start, update))
            return LastLayer(observation, layer.name, told[weight], told.get(key), network, start, update)
    raise MissingKnowledge(
        f"labels are inferred from the update of a last linear layer with {classes} outputs, which this observation "
        "lacks. Grant labels in the scenario."
    )


class _Probed(NamedTuple):
    shares: Tensor  # (classes,) mean softmax outputs
    inputs: Tensor  # () mean input of the last layer, summed over its entries
    magnitude: Tensor  # () the same of absolute values


def _probe(last: LastLayer, place: float, generator: torch.Generator) -> _Probed:
    """Softmax outputs and last-layer inputs on random images, at a point of the path."""
    observation = last.observation
    images = torch.randn((PROBES, *observation.image.shape), generator=generator, dtype=observation.dtype)
    features, outputs = last.seen(place, images.to(observation.device))
    shares = outputs.softmax(1).mean(0)
    return _Probed(shares, features.sum(1).mean(), features.abs().sum(1).mean())


def _row_counts(observation: Observation, generator: torch.Generator, steps: int) -> Tensor:
    """Mean over the steps of Σ p̂ − (N/Ō)·Σ ∂W, statistics interpolated between both ends; one step is θ alone."""
    last = last_layer(observation)
    rows = (-last.weight / observation.path_length).sum(1)
    first, final = _probe(last, 0.0, generator), _probe(last, 1.0, generator)
    places = torch.arange(steps).to(rows) / steps
    shares = first.shares + places.mean() * (final.shares - first.shares)
    inputs = first.inputs + places * (final.inputs - first.inputs)  # (steps,)
    if min(first.inputs, final.inputs) < 0.1 * first.magnitude:
        raise MissingKnowledge(
            "the last layer's inputs are not positive (no ReLU before it, as in a ViT), so its rows do not count "
            "labels. Use labels = bias, or grant labels in the scenario."
        )
    return _unsmoothed(observation.num_samples * (shares - rows * (1 / inputs).mean()), observation)


def _unsmoothed(counts: Tensor, observation: Observation) -> Tensor:
    """The counts of labels from those of smoothed ones."""
    smoothing = observation.training.label_smoothing
    return (counts - smoothing * observation.num_samples / len(counts)) / (1 - smoothing)


def _along_path() -> list[float]:
    return [(index + 0.5) / POINTS for index in range(POINTS)]


def _fill(counts: Tensor, num_samples: int) -> Tensor:
    """Whole counts that sum to N: the surest classes first, as Geng et al. do it, and the largest remainders last."""
    counts = counts.double().cpu()
    rounded = counts.round().clamp_min(0)
    doubt = (counts - rounded).abs() / rounded.clamp_min(1)
    taken = torch.zeros_like(rounded)
    for index in doubt.argsort(stable=True).tolist():
        taken[index] = min(float(rounded[index]), num_samples - float(taken.sum()))
    while taken.sum() < num_samples:
        taken[(counts - taken).argmax()] += 1
    return torch.arange(len(counts)).repeat_interleave(taken.long())


def _shuffled(labels: Tensor, generator: torch.Generator) -> Tensor:
    order = torch.randperm(len(labels), generator=generator)
    return labels[order.to(labels.device)]
