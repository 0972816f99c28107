"""What the command line does, without the command line: simulate, attack, score, demo."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from undelta.attacker.attack import Run, Watch
from undelta.attacker.checkpoint import Checkpoint
from undelta.attacker.reconstruction import Reconstruction
from undelta.client.disclose import disclose, disclose_with_secrets
from undelta.client.private import load_private, save_private
from undelta.client.scenario import Scenario
from undelta.engine import MEMORY, ranks
from undelta.engine.devices import device_of
from undelta.errors import ConfigError, DataError, RankFailure, UndeltaError
from undelta.evaluation.floor import floors
from undelta.evaluation.score import score
from undelta.files import FORMAT, make_folder, read_tensors, write_bytes, write_tensors
from undelta.observation import Observation
from undelta.observation.file import digest_of, load_observation, save_observation
from undelta.studies.audit import judge_job
from undelta.trials.config import load_scenario, make_attack
from undelta.trials.directory import CHECKPOINT, RunDirectory
from undelta.trials.leases import Leases
from undelta.trials.pictures import write_sheet
from undelta.trials.plan import load_plan
from undelta.trials.record import (
    Record,
    describe_observation,
    describe_scenario,
    read_results,
    reset_peak_memory,
    summary,
    with_result,
    with_score,
    write_results,
)
from undelta.trials.trial import checkpoint_key
from undelta.trials.worker import attempt

RECONSTRUCTION = "reconstruction.safetensors"


def simulate_job(
    scenario_path: Path, *, observation_path: Path, truth_path: Path, seed: int, initial: str | None = None
) -> Scenario:
    """Train one client as the scenario says; write what the server sees, and the truth, to separate files."""
    scenario = _scenario(scenario_path, initial)
    if observation_path.resolve() == truth_path.resolve():
        raise ConfigError(f"--observation and --truth are the same file, {truth_path}; they must be two")
    private = scenario.draw(seed)
    observation = disclose(private, scenario, seed=seed)
    save_observation(observation, observation_path)
    save_private(private, truth_path, {**describe_scenario(scenario), "seed": seed}, observation)
    return scenario


def _scenario(path: Path, initial: str | None) -> Scenario:
    scenario = load_scenario(path)
    return scenario if initial is None else replace(scenario, initial=initial)


def attack_job(
    observation_path: Path,
    *,
    attack: str,
    arguments: Mapping[str, Any],
    out: Path,
    seed: int,
    model: str | None = None,
    overwrite: bool = False,
    checkpoint_seconds: float = 30.0,
    device: str = "auto",
    memory: int = MEMORY,
    watch: Watch | None = None,
) -> Record:
    """Attack an observation file; the truth is nowhere near.

    The same call after a crash or Ctrl-C goes on from the last checkpoint and ends with the same images. Under
    ``torchrun`` all processes make this call and share the work; the first one reads and writes the files in ``out``.
    """
    method = make_attack(attack, arguments)
    observation = load_observation(observation_path, model=model)
    key = checkpoint_key(observation, attack, arguments, seed)
    ranks.join(device_of(device))
    observation = observation.to(device_of(device))
    fresh = not out.exists()
    _prepare(out, overwrite=overwrite)
    reset_peak_memory()
    try:
        checkpoint = Checkpoint(out / CHECKPOINT, key=key, seconds=checkpoint_seconds)
        reconstruction = method(observation, seed=seed, run=Run(watch=watch, checkpoint=checkpoint, memory=memory))
    except RankFailure as problem:
        raise RankFailure(f"{problem}; {_resume(out)}") from None
    except UndeltaError:
        if ranks.rank() == 0 and fresh and not any(out.iterdir()):
            out.rmdir()  # refused before any work: leave nothing behind
        raise
    first = ranks.rank() == 0
    ranks.leave()
    scenario = describe_observation(observation)
    record = Record(
        key=hashlib.sha256(key.encode()).hexdigest()[:16],
        name=summary(scenario),
        scenario=scenario,
        attack=attack,
        arguments=dict(arguments),
        seed=seed,
        observation_file=str(observation_path.resolve()),  # where `score` finds it for the floor
    )
    record = with_result(record, reconstruction, observation)
    if not first:
        return record
    write_tensors(
        out / RECONSTRUCTION,
        {"images": reconstruction.images.cpu(), "labels": reconstruction.labels.cpu()},
        {"format": FORMAT, "kind": "reconstruction"},
    )
    write_sheet(out / "reconstruction.png", [("reconstruction", reconstruction.images)])
    write_results(out, [record])
    if reconstruction.status != "interrupted":
        checkpoint.close()
    return record


def _prepare(out: Path, *, overwrite: bool) -> None:
    """Make the run directory; where several processes share the attack, all hear what the first one found."""
    problem = ""
    if ranks.rank() == 0:
        try:
            check_directory(out, overwrite=overwrite)
            make_folder(out)
        except UndeltaError as found:
            problem = str(found)
        else:
            if overwrite:
                (out / CHECKPOINT).unlink(missing_ok=True)
    problem = ranks.same_bytes(problem.encode()).decode()
    if problem:
        raise ConfigError(problem)


def _resume(out: Path) -> str:
    if not (out / CHECKPOINT).exists():
        return "there is no checkpoint here yet"
    return f"the last checkpoint is {out / CHECKPOINT}, and the same command goes on from there"


def score_job(
    directory: Path, *, truth_path: Path, observation_path: Path | None = None, model: str | None = None
) -> Record:
    """Score an attack's run directory against the truth; adds the metrics to its results and its picture.

    The floor needs the observation: the one that was attacked, if it is still where it was, or another copy of it.
    """
    records = read_results(directory)
    if len(records) != 1:
        raise DataError(f"{directory}: expected the results of one attack, got {len(records)} records")
    tensors, _ = read_tensors(directory / RECONSTRUCTION, kind="reconstruction", error=DataError)
    if not {"images", "labels"} <= set(tensors):
        raise DataError(f"{directory / RECONSTRUCTION}: expected images and labels, got {', '.join(sorted(tensors))}")
    private, scenario, digest = load_private(truth_path)
    record = records[0]
    if record.observation != digest:
        raise DataError(f"{truth_path} is the truth of another observation than the one that {directory} attacked")
    reconstruction = Reconstruction(
        images=tensors["images"],
        labels=tensors["labels"],
        mismatch=math.nan if record.mismatch is None else record.mismatch,
        iterations=record.iterations or 0,
        seconds=record.seconds or 0.0,
        status="diverged" if record.status == "diverged" else "completed",
        terms={name: math.nan if value is None else value for name, value in record.terms.items()},
        objective=record.objective,
        learned=record.learned,
    )
    observation = _attacked(record, observation_path, model)
    result = score(reconstruction, private, observation=observation)
    record = with_score(replace(record, scenario=scenario, name=summary(scenario)), result)
    rows = [("original", private.images), (record.attack, reconstruction.images[list(result.order)])]
    write_sheet(directory / "reconstruction.png", rows)
    write_results(directory, [record])
    return record


def _attacked(record: Record, path: Path | None, model: str | None) -> Observation | None:
    """The observation that a run attacked; None if it is not where it was, or a custom model is not named."""
    if path is None:
        try:
            observation = load_observation(str(record.observation_file), model=model)
        except UndeltaError:
            return None
    else:
        observation = load_observation(path, model=model)
    if digest_of(observation) == record.observation:
        return observation
    if path is not None:
        raise DataError(f"{path} is another observation than the one that was attacked")
    return None


def floor_job(
    scenario_path: Path, *, seeds: Sequence[int], initial: str | None = None
) -> dict[str, list[float | None]]:
    """Each replay's mismatch at the private images, one value per seed (see `undelta.evaluation.floor`)."""
    scenario = _scenario(scenario_path, initial)
    columns: dict[str, list[float | None]] = {}
    for seed in seeds:
        private = scenario.draw(seed)
        observation, secrets = disclose_with_secrets(private, scenario, seed=seed)
        order = secrets[0].orders[0] if len(secrets) == 1 else None
        for name, value in floors(private, observation.to(device_of("auto")), order=order).items():
            columns.setdefault(name, []).append(value)
    return columns


DEMO_TOML = """# What `undelta demo` runs; `undelta audit` takes files like this one.
name = "Eight photographs, one update"
seeds = [{seed}]

[scenario]
data = "photos"
image_size = 32
num_samples = 8
model = "cnn"
epochs = 10
batches = 4
learning_rate = 0.004

[[attacks]]
attack = "awa"
steps = 120

[[attacks]]
attack = "strongest"
rollout_steps = 100
"""


def demo_job(out: Path, *, seed: int = 0, watch: Callable[[str], Watch] | None = None) -> list[Record]:
    """Eight private photographs, one update, two attacks side by side: an audit of two trials, in this process.

    An interrupted demo goes on where it was; a finished one runs again.
    """
    make_folder(out)
    configuration = out / "audit.toml"
    write_bytes(configuration, DEMO_TOML.format(seed=seed).encode())
    plan, store, leases = load_plan(configuration), RunDirectory(out), Leases(worker="demo")
    if not all(leases.is_free(store.folder(key)) for key in plan.keys if store.folder(key).exists()):
        raise ConfigError(f"another demo is running in {out}; choose another --out")
    for key in plan.keys:
        (store.folder(key) / "record.json").unlink(missing_ok=True)  # a finished demo runs again
    store.prepare(plan.text, plan.trials, leases, title=plan.name)
    records: list[Record] = []
    rows: list[tuple[str, Tensor]] = []
    for trial in plan.trials:
        lease = leases.acquire(store.folder(trial.key))
        if lease is None:
            raise ConfigError(f"another demo is running in {out}; choose another --out")
        with lease:
            outcome = attempt(store, trial, lease, watch=watch(trial.attack) if watch else None)
        if outcome is None:
            record = store.record(trial.key)
            raise DataError(f"the demo's attack {trial.attack} failed: {record.error if record else 'no result'}")
        if not rows:
            rows.append(("private originals, which the attacks never see", outcome.private.images))
        caption = f"{trial.attack}: reconstructed from the shared update, PSNR {outcome.score.psnr:.1f} dB"
        rows.append((caption, outcome.reconstruction.images[list(outcome.score.order)]))
        records.append(outcome.record)
        if outcome.reconstruction.status == "interrupted":
            break
    write_sheet(out / "reconstruction.png", rows)
    write_results(out, records)
    judge_job(plan, store)
    return records


def check_directory(out: Path, *, overwrite: bool) -> None:
    """Refuse to write over a finished run; an interrupted one has a checkpoint and goes on."""
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file; choose a directory for --out")
    if overwrite or not (out / "results.json").exists():
        return
    try:
        finished = read_results(out)[0].status != "interrupted"
    except DataError:  # damaged, or another version's: somebody's results all the same
        finished = True
    if finished:
        raise ConfigError(f"{out} already holds results; choose another --out, or pass --overwrite")
