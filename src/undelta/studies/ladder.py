"""The default ladder: every defense at several strengths, fitted to a scenario.

How long an update is depends on model, data and training. So bounds and noise are chosen relative to the update
that the first client of the scenario sends, with the scenario's own defenses if it has any, and the noise of DP-SGD by
the epsilon that it gives. The numbers end up in the audit's TOML.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from undelta.client.defenses import DpSgd
from undelta.client.disclose import disclose
from undelta.client.federation import initial_model
from undelta.client.scenario import Scenario
from undelta.errors import ConfigError, UndeltaError
from undelta.models import MODELS
from undelta.trials.record import REFERENCE
from undelta.updates import difference, inner, parameters_of

Rung = dict[str, Any]
"""A named set of scenario fields, as in an audit's ``[[defenses]]``."""

CLIPPING = (0.5, 0.1)  # of the update's norm
NOISE = (0.3, 1.0, 3.0)  # of the root mean square of its entries
PRUNING = (0.9, 0.99)
BITS = {"8 bits": 8, "4 bits": 4, "signs": 1}
SOTERIA = (0.4, 0.8)
MIXUP = (1.0,)
EPSILONS = (50.0, 8.0, 1.0)  # of one round
AGGREGATES = (2, 4)


def reference(scenario: Scenario) -> Rung:
    """An update that carries no information: what an attack makes of it is the level of noise."""
    return _rung(scenario, REFERENCE, {"defense": "pure_noise"})


def ladder(scenario: Scenario, *, seed: int) -> tuple[list[Rung], list[str]]:
    """The rungs, and notes on what is left out."""
    image = scenario.image_spec()
    model = initial_model(scenario, image, seed=seed, dtype=torch.float32)
    normed = any(isinstance(module, _BatchNorm) for module in model.modules())
    norm, spread = _size_of_update(scenario, seed)
    rungs = [
        *_rungs(scenario, "clipping", "norm", [_round(share * norm) for share in CLIPPING]),
        *_rungs(scenario, "noise", "scale", [_round(share * spread) for share in NOISE]),
        *_rungs(scenario, "pruning", "ratio", PRUNING),
        *(_rung(scenario, name, {"defense": "quantization", "bits": bits}) for name, bits in BITS.items()),
        *([_rung(scenario, "no BatchNorm statistics", {"defense": "withholding"})] if normed else []),
        *_rungs(scenario, "mixup", "alpha", MIXUP),
        *_rungs(scenario, "soteria", "ratio", SOTERIA),
    ]
    notes: list[str] = []
    grouped: dict[str, Any] = {}
    builder = MODELS.get(scenario.model)
    if normed and builder and "norm" in inspect.signature(builder).parameters:
        grouped = {"model_arguments": {**scenario.model_arguments, "norm": "group"}}
        rungs.append({"name": "GroupNorm", **grouped})
    try:
        if normed and not grouped:
            raise ConfigError("BatchNorm mixes examples, and this model takes no other norm")
        rungs += _private(scenario, grouped)
    except UndeltaError as problem:
        notes.append(f"DP-SGD is left out: {problem}")
    rungs += _plain_fields(scenario)
    usable = []
    for rung in rungs:  # a scenario may have a defense of its own that does not go with another
        fields = {key: value for key, value in rung.items() if key != "name"}
        try:
            defended = replace(scenario, **fields)
            for defense in defended.protection:
                defense.check(initial_model(defended, image, seed=seed, dtype=torch.float32))
        except UndeltaError as problem:
            notes.append(f"{rung['name']} is left out: {problem}")
            continue
        usable.append(rung)
    return usable, notes


def _rung(scenario: Scenario, name: str, *defenses: dict[str, Any], **fields: Any) -> Rung:
    return {"name": name, **fields, "defenses": [*map(dict, scenario.defenses), *defenses]}


def _rungs(scenario: Scenario, defense: str, setting: str, strengths: Sequence[float]) -> Iterator[Rung]:
    for value in strengths:
        yield _rung(scenario, f"{defense} {value:g}", {"defense": defense, setting: value})


def _size_of_update(scenario: Scenario, seed: int) -> tuple[float, float]:
    """The norm of what the first client sends, and the root mean square of its entries."""
    plain = replace(scenario, aggregate=1)
    observation = disclose(plain.draw(seed), plain, seed=seed)
    update = difference(observation.received, observation.initial, list(parameters_of(observation.model())))
    norm = float(inner(update, update).sqrt())
    if norm == 0:
        raise ConfigError("the scenario's own update is zero, so nothing can be learned from it or with it")
    return norm, norm / math.sqrt(sum(value.numel() for value in update.values()))


def _private(scenario: Scenario, fields: dict[str, Any]) -> Iterator[Rung]:
    for epsilon in EPSILONS:
        multiplier = noise_for(scenario, epsilon)
        name = f"dp_sgd, epsilon {epsilon:g} a round"
        yield _rung(scenario, name, {"defense": "dp_sgd", "noise_multiplier": multiplier}, **fields)


def noise_for(scenario: Scenario, epsilon: float) -> float:
    """The noise multiplier, to one percent, at which one round costs at most this epsilon."""
    training = scenario.training

    def spent(multiplier: float) -> float:
        return DpSgd(noise_multiplier=multiplier).epsilon(training, rounds=1) or math.inf

    low = high = 1.0
    while spent(high) > epsilon:
        high *= 2
    while spent(low) <= epsilon:
        low /= 2
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if spent(middle) <= epsilon else (middle, high)
    return math.ceil(high * 1000) / 1000


def _plain_fields(scenario: Scenario) -> Iterator[Rung]:
    """What protects without being a defense."""
    counted = scenario.batch_size is None  # a loader's size would count more than a number of mini-batches
    if counted and scenario.batches > 1:
        yield {"name": "one mini-batch", "batches": 1}
    if counted and 2 * scenario.batches <= min(scenario.samples):
        yield {"name": "twice the mini-batches", "batches": 2 * scenario.batches}
    yield {"name": "twice the epochs", "epochs": 2 * scenario.epochs}
    yield {"name": "a quarter of the learning rate", "learning_rate": scenario.learning_rate / 4}
    for count in sorted({min(number, scenario.clients) for number in AGGREGATES}):
        if count > scenario.aggregate:
            yield {"name": f"secure aggregation of {count}", "aggregate": count}


def _round(value: float) -> float:
    """To two digits: a bound that people can say."""
    return float(f"{value:.2g}")
