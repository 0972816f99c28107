"""Fixtures shared by all tests: one thread, and one small case of every stage."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from undelta.client.disclose import disclose
from undelta.client.private import Private
from undelta.client.scenario import Scenario
from undelta.observation import Observation


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Sums over several threads are not reproducible, and small models only lose by them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def scenario() -> Scenario:
    """Scenario 4 of the paper in small: several epochs of several mini-batches, the last one uneven."""
    return Scenario(
        data="digits",
        num_samples=5,
        model="cnn",
        model_arguments={"width": 4, "hidden": 16},
        epochs=2,
        batches=2,
        learning_rate=0.05,
    )


@pytest.fixture
def private(scenario: Scenario) -> Private:
    """The attacked client's data."""
    return scenario.draw(0)


@pytest.fixture
def observation(private: Private, scenario: Scenario) -> Observation:
    """What the server sees of it."""
    return disclose(private, scenario)
