"""Fixtures shared by all tests: one thread, and one small case of every stage."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from pathlib import Path

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
def bounded_memory() -> Iterator[None]:
    """No more than 1 GB beyond what the process has: whatever allocates what a file claims fails loudly."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.fixture
def limit_files() -> Iterator[Callable[[int | None], None]]:
    """Sets how many bytes a file may have, for this process and those it starts: as good as a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size: int | None) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before[0] if size is None else size, before[1]))

    yield limit
    limit(None)


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
