"""FedAvg (McMahan et al. 2017; AWA section III-B): rounds over K clients, to reach any stage of training."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import nn

from undelta.client.local import train
from undelta.client.private import Private
from undelta.client.scenario import Scenario
from undelta.errors import ConfigError, ObservationError
from undelta.observation import ImageSpec
from undelta.observation.checkpoint import read_checkpoint
from undelta.observation.fitting import fit
from undelta.seeding import global_stream, stream
from undelta.updates import State

log = logging.getLogger("undelta")


def initial_model(scenario: Scenario, image: ImageSpec, *, seed: int, dtype: torch.dtype) -> nn.Module:
    """The server's model before the first round."""
    scenario.builder()  # imported first: what a module draws when it is imported must not shift the weights
    with global_stream("server", seed, "model"):
        model = scenario.make_model(image).to(dtype)
    if scenario.initial is not None:
        load_initial(model, scenario.initial)
    return model


def load_initial(model: nn.Module, path: str) -> None:
    """Give the model the weights of a checkpoint; prefixes and missing counters are mended as for `observe`."""
    found, notes = read_checkpoint(path)
    try:
        state, more = fit(found, model, where=path)
    except ObservationError as problem:
        raise ConfigError(f"initial: {problem}. Set classes and model_arguments to what was trained") from problem
    for note in (*notes, *more):
        log.info(note)
    model.load_state_dict(state)  # in the model's own precision


def federate(
    scenario: Scenario, clients: Sequence[Private], image: ImageSpec, *, seed: int, dtype: torch.dtype
) -> nn.Module:
    """The global model after the scenario's earlier rounds: what the attacked client is sent."""
    model = initial_model(scenario, image, seed=seed, dtype=dtype)
    selection = stream("server", seed, "selection")
    defenses = scenario.protection
    for number in range(scenario.rounds):
        chosen = torch.randperm(len(clients), generator=selection)[: scenario.participants].tolist()
        states, weights = [], []
        for k in chosen:
            names = ("client", seed, "round", number, k)
            run = train(model, clients[k], scenario.training, image, seed=names, defenses=defenses)
            states.append(run.state)
            weights.append(scenario.weights[k])
        # What no client sends, such as withheld BatchNorm statistics, stays as the server has it.
        model.load_state_dict({**model.state_dict(), **average(states, weights)})
    return model


def advance(
    model: nn.Module,
    attacked: Sequence[State],
    others: Sequence[Private],
    scenario: Scenario,
    image: ImageSpec,
    *,
    seed: int,
    number: int,
) -> None:
    """Make the model the next round's: the attacked clients' states averaged with those of other participants."""
    count = max(scenario.participants - len(attacked), 0)
    chosen = torch.randperm(len(others), generator=stream("server", seed, "selection", "observed", number))[:count]
    states, weights = [*attacked], [*scenario.weights[: len(attacked)]]
    for k in (chosen + len(attacked)).tolist():
        names = ("client", seed, "observed", number, k)
        other = others[k - len(attacked)]
        run = train(model, other, scenario.training, image, seed=names, defenses=scenario.protection)
        states.append(run.state)
        weights.append(scenario.weights[k])
    model.load_state_dict({**model.state_dict(), **average(states, weights)})


def average(states: Sequence[State], weights: Sequence[float]) -> State:
    """Σ ρ_k θ⁽ᵏ⁾ over the participants, their weights scaled to sum to one; counters take their maximum."""
    total = sum(weights)
    if total <= 0:
        raise ConfigError("the clients selected for a round all have weight 0; raise participants or client_weights")
    mean: State = {}
    for name, first in states[0].items():
        if first.is_floating_point():
            parts = [state[name] * (weight / total) for state, weight in zip(states, weights, strict=True)]
            mean[name] = torch.stack(parts).sum(0)
        else:
            mean[name] = torch.stack([state[name] for state in states]).amax(0)
    return mean
