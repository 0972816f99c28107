"""The only door from a client's private data to an Observation."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from undelta.client.federation import advance, average, federate
from undelta.client.local import LocalRun, train
from undelta.client.private import Private
from undelta.client.scenario import Scenario
from undelta.errors import DataError
from undelta.observation import ImageSpec, Observation, together
from undelta.training import LocalTraining


def disclose(private: Private, scenario: Scenario, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> Observation:
    """Train under the scenario's defenses, for one round or several, and reveal what the server sees, nothing else.

    Earlier rounds, if any, run over all of the scenario's clients first, equally defended. Everything revealed is
    detached and cloned; labels are sorted, since their order would reveal a shuffle; permutations and the trajectory
    stay here.

    Examples:
        >>> small = {"width": 4, "hidden": 16}
        >>> scenario = Scenario(data="digits", num_samples=2, model_arguments=small, epochs=2, batches=1)
        >>> private = scenario.draw(seed=0)
        >>> observation = disclose(private, scenario, seed=0)
        >>> observation.num_samples, observation.training.epochs
        (2, 2)
        >>> hasattr(observation, "images")
        False
    """
    return disclose_with_secrets(private, scenario, seed=seed, dtype=dtype)[0]


def disclose_with_secrets(
    private: Private, scenario: Scenario, *, seed: int = 0, dtype: torch.dtype = torch.float32
) -> tuple[Observation, tuple[LocalRun, ...]]:
    """The same, and the hidden runs of the attacked clients behind it: for tests and for a client's own diagnosis."""
    sizes = list(scenario.samples[: scenario.aggregate])
    if len(private) != sum(sizes):
        raise DataError(f"the scenario's attacked clients have {sum(sizes)} images, but {len(private)} were given")
    attacked = tuple(
        Private(images=images, labels=labels)
        for images, labels in zip(private.images.split(sizes), private.labels.split(sizes), strict=True)
    )
    image = scenario.image_spec()
    alone = scenario.participants <= len(attacked) or scenario.observed_rounds == 1
    others = scenario.draw_all(seed)[len(attacked) :] if scenario.rounds or not alone else ()
    model = federate(scenario, (*attacked, *others), image, seed=seed, dtype=dtype)
    rounds, secrets = [], tuple[LocalRun, ...]()
    for number in range(scenario.observed_rounds):
        initial = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        runs = _train_all(model, attacked, scenario, image, seed=seed, number=number)
        secrets = secrets or runs
        # One client is not averaged: its weight may be zero, and its state is what the server sees.
        states = [run.state for run in runs]
        received = states[0] if len(states) == 1 else average(states, scenario.weights[: len(states)])
        rounds.append(
            Observation(
                architecture=scenario.architecture,
                initial=initial,
                received={name: tensor.clone() for name, tensor in received.items()},
                training=_told(scenario),
                num_samples=len(private),
                image=image,
                labels=private.labels.sort().values.clone() if scenario.grant_labels else None,
                builder=scenario.builder(),
            )
        )
        if number + 1 < scenario.observed_rounds:
            advance(model, states, others, scenario, image, seed=seed, number=number)
    return together(rounds), secrets


def _train_all(
    model: nn.Module, attacked: tuple[Private, ...], scenario: Scenario, image: ImageSpec, *, seed: int, number: int
) -> tuple[LocalRun, ...]:
    """One round of the attacked clients."""
    later: tuple[int | str, ...] = ("round", number) if number else ()
    return tuple(
        train(
            model,
            client,
            scenario.training,
            image,
            seed=("client", seed, "attacked", *([k] if k else []), *later),
            defenses=scenario.protection,
        )
        for k, client in enumerate(attacked)
    )


def _told(scenario: Scenario) -> LocalTraining:
    """The training of a single client; an average of several is taken for one with as many mini-batches."""
    if scenario.aggregate == 1:
        return scenario.training
    return replace(scenario.training, batch_size=None, drop_last=False)
