"""The only door from a client's private data to an Observation."""

from __future__ import annotations

import torch

from undelta.client.federation import federate
from undelta.client.local import LocalRun, train
from undelta.client.private import Private
from undelta.client.scenario import Scenario
from undelta.errors import DataError
from undelta.observation import Observation


def disclose(private: Private, scenario: Scenario, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> Observation:
    """Train for one round and reveal what the server sees of it, nothing else.

    Earlier rounds, if any, run over all of the scenario's clients first. Everything revealed is detached and cloned;
    labels are sorted, since their order would reveal a shuffle; permutations and the trajectory stay here.
    """
    return disclose_with_secrets(private, scenario, seed=seed, dtype=dtype)[0]


def disclose_with_secrets(
    private: Private, scenario: Scenario, *, seed: int = 0, dtype: torch.dtype = torch.float32
) -> tuple[Observation, LocalRun]:
    """The same, and the hidden run behind it: for tests and for the client's own diagnosis."""
    if len(private) != scenario.num_samples:
        raise DataError(f"the scenario has num_samples={scenario.num_samples}, but {len(private)} images were given")
    image = scenario.image_spec()
    others = scenario.draw_all(seed)[1:] if scenario.rounds and scenario.clients > 1 else ()
    model = federate(scenario, (private, *others), image, seed=seed, dtype=dtype)
    initial = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    run = train(model, private, scenario.training, image, seed=("client", seed, "attacked"))
    observation = Observation(
        architecture=scenario.architecture,
        initial=initial,
        received={name: tensor.clone() for name, tensor in run.state.items()},
        training=scenario.training,
        num_samples=len(private),
        image=image,
        labels=private.labels.sort().values.clone() if scenario.grant_labels else None,
        builder=scenario.builder(),
    )
    return observation, run
