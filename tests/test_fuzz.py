"""Fuzzing: no file from outside, however damaged or forged, ends in anything but a result or one clear error.

Every kind of file has a fixed time (``UNDELTA_FUZZ_SECONDS``, or ``UNDELTA_FUZZ_MUTANTS`` in place of it) and a memory
limit, so that a bomb fails loudly. Mutants follow from a seed; the one that failed is kept, and its path is said.
"""

from __future__ import annotations

import copy
import json
import os
import random
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from undelta.attacker.attack import Run
from undelta.attacker.attacks.sme import sme
from undelta.attacker.checkpoint import Checkpoint
from undelta.client.datasets import open_dataset
from undelta.client.disclose import disclose
from undelta.client.private import load_private, save_private
from undelta.client.scenario import Scenario
from undelta.errors import UndeltaError
from undelta.files import load_json, read_tensors, write_tensors
from undelta.observation.assemble import training_from
from undelta.observation.checkpoint import read_checkpoint
from undelta.observation.file import load_observation, save_observation
from undelta.report.pictures import read_pictures
from undelta.report.write import write_report
from undelta.trials.config import load_scenario, load_weights, to_document
from undelta.trials.directory import RunDirectory
from undelta.trials.leases import Leases, scan
from undelta.trials.outcomes import write_outcomes
from undelta.trials.plan import load_plan
from undelta.trials.record import check_scenario
from undelta.trials.trial import Trial, run

SECONDS = float(os.environ.get("UNDELTA_FUZZ_SECONDS", "0.3"))
MUTANTS = int(os.environ.get("UNDELTA_FUZZ_MUTANTS", "0"))
SEED = int(os.environ.get("UNDELTA_FUZZ_SEED", "0"))
LONGEST = 20.0  # seconds for one file: a hang, not a slow machine
SMALL = Scenario(
    data="faces", image_size=8, num_samples=2, model="mlp", model_arguments={"hidden": [2]}, epochs=2, batches=1
)
AUDIT = """
name = "small"
seeds = [0, 1]
[scenario]
data = "digits"
num_samples = 2
[vary]
epochs = [1, 2]
[[attacks]]
attack = "awa"
steps = 3
[[defenses]]
name = "noise"
defenses = [{ defense = "noise", scale = 0.1 }]
"""
SCENARIO = 'data = "digits"\nnum_samples = 3\nlearning_rate = 0.1\nmodel_arguments = { width = 4, hidden = 16 }\n'
WEIGHTS = 'attack = "awa"\nposition = 0.5\n[q]\nconv = 1.0\nnorm = 1.0\nlinear = 1.0\n'
NASTY: list[Any] = [
    *(None, True, 0, 1, -1, 2**31, 2**63, 10**18, 10**30, 10**400, 0.0, -0.0, 5e-324, 1e308, -1e308),
    *("", "0; touch x #", "\x1b[2J", "\u202e", "\r", "=cmd()", "[red]", "<script>", "../../etc", "x" * 5000, "\ud800"),
    *([], {}, [[]], [None], {"": None}, [{}] * 3, {"a": [None, {"b": None}]}, json.loads("[" * 80 + "]" * 80)),
]


SEALED = ("observation", "truth", "pictures")


class Target(NamedTuple):
    """A kind of file: a sound one, who reads it, and what its values are in; sealed ones are sealed again."""

    path: Path
    read: Callable[[Path], object]
    kind: str = ""


def damaged(content: bytes, chance: random.Random) -> bytes:
    """Bytes with a few changes such as disks, networks and people make."""
    out = bytearray(content)
    for _ in range(chance.choice((1, 1, 1, 2, 5, 20))):
        at = chance.randrange(len(out) + 1)
        length = chance.choice((1, 2, 4, 8, chance.randrange(1, 200)))
        change = chance.randrange(6)
        if change == 0 and at < len(out):
            out[at] ^= 1 << chance.randrange(8)
        elif change == 1:
            out[at : at + length] = chance.randbytes(length)
        elif change == 2:
            del out[at : at + length]
        elif change == 3:
            out[at:at] = out[max(0, at - length) : at] * chance.choice((1, 2, 50))
        elif change == 4:
            out[at : at + length] = chance.choice((b"\xff", b"\0", b"9", b"[", b"\x7f")) * length
        else:
            del out[at:]
    return bytes(out)


def forged(values: Any, chance: random.Random) -> Any:
    """Values with one of them replaced, removed, renamed or doubled, at any depth."""
    out = copy.deepcopy(values)
    for _ in range(chance.choice((1, 1, 2, 4))):
        place = out
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = chance.choice(keys)
            if isinstance(place[key], dict | list) and place[key] and chance.random() < 0.7:
                place = place[key]
                continue
            change = chance.randrange(8)
            if change == 0:
                del place[key]
            elif change == 1 and isinstance(place, dict):
                place[chance.choice(("", "x", "\x1b", "a" * 300))] = place.pop(key)
            elif change == 2 and isinstance(place, list):
                place.extend(place * 3)
            else:
                place[key] = copy.deepcopy(chance.choice(NASTY))
            break
    return out


def mutants(target: Target, chance: random.Random) -> Iterator[bytes]:
    """Damaged and forged copies of a file, without end."""
    content = target.path.read_bytes()
    aside = target.path.with_name("sealed")
    while True:
        try:
            if target.kind.endswith("json") and chance.random() < (0.8 if target.kind == "json" else 1.1):
                yield json.dumps(forged(json.loads(content), chance)).encode("utf-8", "surrogatepass")
            elif target.kind == "toml" and chance.random() < 0.6:
                yield to_document(forged(tomllib.loads(content.decode()), chance)).encode("utf-8", "surrogatepass")
            elif target.kind in SEALED and chance.random() < 0.9:
                tensors, metadata = read_tensors(target.path, kind=target.kind, error=UndeltaError)
                metadata = forged(metadata, chance)
                if chance.random() < 0.3:
                    name = chance.choice(sorted(tensors))
                    tensors[name] = retyped(tensors[name], chance)
                write_tensors(aside, tensors, metadata)
                yield aside.read_bytes()
                aside.unlink()
            else:
                yield damaged(content, chance)
        except (ValueError, TypeError, RuntimeError, NotImplementedError):
            continue  # what cannot be written down is not a file


def retyped(tensor: torch.Tensor, chance: random.Random) -> torch.Tensor:
    """Another type or shape."""
    kinds = (torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.int64, torch.bool, torch.complex64)
    changes: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda one: one.to(chance.choice((*kinds, torch.float8_e4m3fn, torch.float8_e5m2))),
        lambda one: one.reshape(-1),
        lambda one: one[:0],
        lambda one: one[None],
        lambda one: torch.full_like(one, float("nan")) if one.is_floating_point() else one - 1,
    ]
    return chance.choice(changes)(tensor)


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Target]:
    """One sound file of every kind."""
    folder = tmp_path_factory.mktemp("targets")

    def path(name: str) -> Path:
        place = folder / name.replace(".", "-")
        place.mkdir()
        return place / name

    found: dict[str, Target] = {}
    private = SMALL.draw(0)
    observation = disclose(private, SMALL)
    seen, truth = path("seen.safetensors"), path("truth.safetensors")
    save_observation(observation, seen)
    found["observation"] = Target(seen, lambda one: load_observation(one).model(), "observation")
    save_private(private, truth, {**asdict(SMALL), "seed": 0}, observation)
    found["truth"] = Target(truth, lambda one: check_scenario(load_private(one)[1], str(one)), "truth")

    state = dict(observation.model().state_dict())
    for suffix in (".pt", ".npz", ".safetensors"):
        file = path(f"state{suffix}")
        if suffix == ".pt":
            torch.save({"state_dict": state, "epoch": 3}, file)
        elif suffix == ".npz":
            np.savez_compressed(file, **{name: value.numpy() for name, value in state.items()})
        else:
            save_file(state, file)
        found[f"checkpoint{suffix}"] = Target(file, read_checkpoint)

    arrays = path("data.npz")
    np.savez_compressed(arrays, images=np.zeros((2, 5, 5), np.uint8), labels=np.arange(2))
    found["data set"] = Target(arrays, lambda one: open_dataset(str(one)).draw([0], 4))
    for kind in ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF"):
        file = path(f"a{kind}.png")
        Image.effect_noise((16, 12), 60).convert("RGB").save(file, format=kind)
        found[f"picture {kind}"] = Target(file, lambda one: open_dataset(str(one.parent)).draw([0], 8))

    for name, text, read in (
        ("scenario.toml", SCENARIO, load_scenario),
        ("audit.toml", AUDIT, load_plan),
        ("weights.toml", WEIGHTS, load_weights),
    ):
        file = path(name)
        file.write_text(text)
        found[name] = Target(file, read, "toml")

    directory = folder / "run"
    trial = Trial(scenario=SMALL, attack="sme", arguments={"steps": 3})
    write_outcomes(directory, [trial], [run(trial)])
    own = RunDirectory(directory).folder(trial.key)
    found["record"] = Target(own / "record.json", lambda one: write_report(one.parents[2]), "json")
    found["run"] = Target(directory / "run.json", lambda one: write_report(one.parent), "json")
    found["trial"] = Target(own / "trial.json", lambda one: RunDirectory(directory).trial(trial.key), "json")
    found["pictures"] = Target(own / "pictures.safetensors", read_pictures, "pictures")
    config = path("config.json")
    config.write_text(json.dumps({"epochs": 2, "batch-size": 4, "lr": 0.1, "loss": "l2", "norm_mode": "eval"}))
    found["configuration"] = Target(config, lambda one: training_from(load_json(one), 10), "forged json")

    lease = Leases(worker="test").acquire(path("lease.json").parent)
    assert lease is not None
    os.close(lease._handle)
    found["lease"] = Target(lease.path, lambda one: scan(one.parent), "json")
    saved = path("checkpoint.pt")
    sme(steps=2)(observation, run=Run(checkpoint=Checkpoint(saved, key="key", seconds=0)))
    found["attack's checkpoint"] = Target(saved, lambda one: Checkpoint(one, key="key"))
    return found


NAMES = (
    *("observation", "truth", "checkpoint.pt", "checkpoint.npz", "checkpoint.safetensors", "data set"),
    *(f"picture {kind}" for kind in ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF")),
    *("scenario.toml", "audit.toml", "weights.toml", "record", "run", "trial", "pictures", "configuration", "lease"),
    "attack's checkpoint",
)


@pytest.mark.usefixtures("bounded_memory")
@pytest.mark.filterwarnings("ignore")  # of libraries, on files that are damaged
@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_or_forged_file_gives_a_result_or_one_clear_error(
    name: str, targets: dict[str, Target], tmp_path: Path
) -> None:
    target = targets[name]
    sound = target.path.read_bytes()
    chance = random.Random(f"{SEED} {name}")  # noqa: S311
    started, count = time.monotonic(), 0
    try:
        for content in mutants(target, chance):
            if count >= MUTANTS if MUTANTS else time.monotonic() - started >= SECONDS:
                break
            count += 1
            target.path.write_bytes(content)
            began = time.monotonic()
            try:
                target.read(target.path)
                said = ""
            except UndeltaError as problem:
                said = str(problem)
            except BaseException as problem:
                (tmp_path / "mutant").write_bytes(content)
                problem.add_note(f"mutant {count} of {name}, seed {SEED}: {tmp_path / 'mutant'}")
                raise
            assert len(said) < 3000
            assert time.monotonic() - began < LONGEST
            target.path.write_bytes(sound)  # forged copies are made of it
    finally:
        target.path.write_bytes(sound)
    assert count
