"""What a defense costs: the accuracy of the federation that trains with it, on images that no client has.

Measured once per federation, rounds and seed, and kept in the audit's directory:

    DIR/utility/<key>/utility.json          the result; measured if and only if this file is there
    DIR/utility/<key>/lease.json            while somebody works on it
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from undelta.client.federation import federate
from undelta.client.private import Private
from undelta.client.scenario import Scenario
from undelta.errors import ConfigError, DataError, UndeltaError
from undelta.files import make_folder, sweep, to_json, write_bytes
from undelta.observation import ImageSpec
from undelta.schema import read_json
from undelta.trials.leases import Lease
from undelta.trials.pool import PoolError, Workers
from undelta.trials.record import describe_scenario, versions
from undelta.trials.tasks import FolderTasks
from undelta.trials.tradeoff import Utility

MOST_TEST_IMAGES = 1000
CHUNK = 250  # test images at a time
UTILITY = "utility.json"


@dataclass(frozen=True, kw_only=True)
class Federation:
    """What to train: a scenario's clients for so many rounds."""

    scenario: Scenario
    rounds: int
    seed: int

    @staticmethod
    def of(scenario: Scenario, *, rounds: int, seed: int) -> Federation:
        """Without what only the attacker is concerned with, so that equal federations are measured once."""
        plain = replace(scenario, rounds=0, observed_rounds=1, aggregate=1, grant_labels=True)
        return Federation(scenario=plain, rounds=rounds, seed=seed)

    @property
    def key(self) -> str:
        content = {"scenario": describe_scenario(self.scenario), "rounds": self.rounds, "seed": self.seed}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def measure(federation: Federation) -> Utility:
    """Train and test; without an accuracy where that cannot be done, and why."""
    began = time.perf_counter()
    scenario, seed = federation.scenario, federation.seed
    epsilon, delta = scenario.privacy(federation.rounds) or (None, None)
    unmeasured = Utility(
        accuracy=None,
        epsilon=epsilon,
        delta=delta,
        rounds=federation.rounds,
        seed=seed,
        scenario=describe_scenario(scenario),
        versions=versions(),
    )
    test = scenario.draw_held_out(seed, MOST_TEST_IMAGES)
    if not len(test):
        reason = f"the clients have all images of {scenario.data}, so none is left to test with"
        return replace(unmeasured, error=reason)
    try:
        image = scenario.image_spec()
        training = replace(scenario, rounds=federation.rounds)
        model = federate(training, scenario.draw_all(seed), image, seed=seed, dtype=torch.float32)
        measured = accuracy(model, test, image, scenario)
    except UndeltaError as problem:
        return replace(unmeasured, error=str(problem))
    return replace(unmeasured, accuracy=measured, test_images=len(test), seconds=time.perf_counter() - began)


def accuracy(model: nn.Module, test: Private, image: ImageSpec, scenario: Scenario) -> float:
    """The share of test images that the model classifies correctly.

    BatchNorm uses the server's running statistics. Where clients train by their batches' own and keep their running
    ones, the server's are those of a model that has seen nothing; then each chunk of test images is normalized by its
    own, as clients would do with their data.
    """
    model.eval()
    withheld = any(not getattr(defense, "sends_buffers", True) for defense in scenario.protection)
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    by_chunk = withheld and scenario.norm_mode == "train"
    if norms and by_chunk and len(test) < 2:
        raise ConfigError("expected at least two test images: without running statistics one has none of its own")
    for module in norms:
        module.train(by_chunk)
    correct, chunks = 0, -(-len(test) // CHUNK)  # of about equal sizes: statistics of a single image say nothing
    with torch.no_grad():
        for images, labels in zip(test.images.tensor_split(chunks), test.labels.tensor_split(chunks), strict=True):
            correct += int((model(image.normalize(images)).argmax(1) == labels).sum())
    return correct / len(test)


@dataclass(kw_only=True)
class Measurements(FolderTasks):
    """Federations to be measured, as tasks."""

    place = "utility"
    federations: Mapping[str, Federation]
    """By key."""

    def status(self, key: str) -> str | None:
        return "completed" if (self.folder(key) / UTILITY).exists() else None

    def attempt(self, key: str, lease: Lease) -> None:
        result = measure(self.federations[key])
        lease.check()
        write_bytes(self.folder(key) / UTILITY, to_json(asdict(result)))

    def fail(self, key: str, reason: str, lease: Lease) -> None:
        """A measurement that kills its workers would leave the comparison without an answer."""
        raise PoolError(f"the utility of {self.federations[key].scenario.defenses or 'no defense'}: {reason}")

    def tidy(self, key: str) -> None:
        sweep(self.folder(key), UTILITY, seconds=0.0)

    def result(self, key: str) -> Utility:
        path = self.folder(key) / UTILITY
        try:
            return read_json(Utility, path)
        except DataError as problem:
            raise DataError(f"{problem}; delete it to measure again") from problem


def measure_all(
    directory: Path, federations: Sequence[Federation], workers: Workers, *, say: Callable[[str], None]
) -> dict[str, Utility]:
    """The utility of every federation by key; what is there already is not measured again."""
    wanted = {federation.key: federation for federation in federations}
    tasks = Measurements(directory=str(directory.resolve()), keys=tuple(wanted), federations=wanted)
    for key in wanted:
        make_folder(tasks.folder(key))
    if left := tasks.unfinished():
        say(f"Measuring utility: {len(left)} of {len(wanted)} federations to train.")
        workers.work_off(tasks, directory, apart=False)
    return {key: tasks.result(key) for key in wanted}
