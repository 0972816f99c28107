"""What a defense costs: the accuracy of the federation that trains with it, on images that no client has.

Measured once per federation, rounds and seed, and kept in the audit's directory:

    DIR/utility/<key>/utility.json          the result; measured if and only if this file is there
    DIR/utility/<key>/lease.json            while somebody works on it (see leases.py)
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from undelta.client.federation import federate
from undelta.client.private import Private
from undelta.client.scenario import Scenario
from undelta.errors import ConfigError, DataError, UndeltaError
from undelta.files import load_json, make_folder, write_bytes
from undelta.observation import ImageSpec
from undelta.schema import parse
from undelta.trials.leases import Leases
from undelta.trials.record import describe_scenario, versions

MOST_TEST_IMAGES = 1000
CHUNK = 250  # test images at a time
POLL_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class Federation:
    """What to train: a scenario's clients for so many rounds."""

    scenario: Scenario
    rounds: int
    seed: int

    @staticmethod
    def of(scenario: Scenario, *, rounds: int, seed: int) -> Federation:
        """Without what only the attacker is concerned with, so that equal federations are measured once."""
        return Federation(
            scenario=replace(scenario, rounds=0, aggregate=1, grant_labels=True), rounds=rounds, seed=seed
        )

    @property
    def key(self) -> str:
        """Names it by its content."""
        content = {"scenario": describe_scenario(self.scenario), "rounds": self.rounds, "seed": self.seed}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def measure(federation: Federation) -> dict[str, Any]:
    """Train and test; the accuracy is null, with the reason, where that cannot be done."""
    began = time.perf_counter()
    scenario, seed = federation.scenario, federation.seed
    result: dict[str, Any] = {"accuracy": None, "test_images": 0, "error": None}
    test = scenario.draw_held_out(seed, MOST_TEST_IMAGES)
    if not len(test):
        result["error"] = f"the clients have all images of {scenario.data}, so none is left to test with"
    else:
        try:
            image = scenario.image_spec()
            training = replace(scenario, rounds=federation.rounds)
            model = federate(training, scenario.draw_all(seed), image, seed=seed, dtype=torch.float32)
            result |= {"accuracy": accuracy(model, test, image, scenario), "test_images": len(test)}
        except UndeltaError as problem:
            result["error"] = str(problem)
    epsilon, delta = scenario.privacy(federation.rounds) or (None, None)
    return {
        **result,
        "epsilon": epsilon,
        "delta": delta,
        "rounds": federation.rounds,
        "seed": seed,
        "scenario": describe_scenario(scenario),
        "seconds": time.perf_counter() - began,
        "versions": versions(),
    }


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


def measure_all(
    directory: Path, federations: Sequence[Federation], *, workers: int, threads: int, say: Callable[[str], None]
) -> dict[str, dict[str, Any]]:
    """The utility of every federation by key; what is there already is not measured again."""
    wanted = {federation.key: federation for federation in federations}
    for key in wanted:
        make_folder(directory / "utility" / key)
    left = _left(directory, wanted)
    if left:
        say(f"Measuring utility: {len(left)} of {len(wanted)} federations to train.")
    while left:
        tables = [asdict(wanted[key]) for key in left]
        if workers == 1:
            _work(str(directory), tables, threads, str(Path.cwd()))
        else:
            context = multiprocessing.get_context("spawn")
            with concurrent.futures.ProcessPoolExecutor(min(workers, len(left)), mp_context=context) as pool:
                jobs = [pool.submit(_work, str(directory), tables, threads, str(Path.cwd())) for _ in range(workers)]
                for job in jobs:
                    job.result()
        left = _left(directory, wanted)
        if left:  # another command in the same directory is at it; should it die, its lease is free
            time.sleep(POLL_SECONDS)
    return {key: _read(directory, key) for key in wanted}


def _work(directory: str, tables: Sequence[dict[str, Any]], threads: int, home: str) -> None:
    """Measure what nobody else is measuring."""
    os.chdir(home)  # relative paths of data and models count from there
    leases = Leases(worker="utility")
    with _threads(threads):
        for table in tables:
            federation = parse(Federation, table, where="federation", error=DataError)
            folder = Path(directory) / "utility" / federation.key
            if (folder / "utility.json").exists():
                continue
            lease = leases.acquire(folder)
            if lease is None:
                continue
            with lease:
                if not (folder / "utility.json").exists():
                    content = json.dumps(measure(federation), indent=1, allow_nan=False).encode()
                    lease.check()
                    write_bytes(folder / "utility.json", content)


def _left(directory: Path, keys: Sequence[str] | dict[str, Federation]) -> list[str]:
    return [key for key in keys if not (directory / "utility" / key / "utility.json").exists()]


def _read(directory: Path, key: str) -> dict[str, Any]:
    path = directory / "utility" / key / "utility.json"
    result = load_json(path)
    if not isinstance(result, dict) or "accuracy" not in result:
        raise DataError(f"{path}: expected an accuracy; delete it to measure again")
    return result


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
