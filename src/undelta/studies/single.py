"""One update: simulate it, attack it, and how well each replay explains it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from undelta.attacker.attack import Run, Watch
from undelta.attacker.checkpoint import Checkpoint
from undelta.client.disclose import disclose, disclose_with_secrets
from undelta.client.private import save_private
from undelta.client.scenario import Scenario
from undelta.engine import MEMORY, ranks
from undelta.engine.devices import device_of
from undelta.errors import ConfigError, RankFailure, UndeltaError
from undelta.evaluation.floor import floors
from undelta.files import FORMAT, make_folder, make_way, write_tensors
from undelta.observation.file import save_observation
from undelta.trials.config import load_scenario, make_attack
from undelta.trials.directory import CHECKPOINT, CONFIGURATION, RECONSTRUCTION, RECORD, RUN, RunDirectory
from undelta.trials.judgment import judge_directory
from undelta.trials.leases import Lease, LeaseLost, Leases
from undelta.trials.outcomes import pictures
from undelta.trials.pictures import write_sheet
from undelta.trials.record import Record, describe_scenario, summary
from undelta.trials.trial import Recorded, Trial, run

SHEET = "reconstruction.png"
WAIT_SECONDS = 10.0


def simulate_job(
    scenario_path: Path, *, observation_path: Path, truth_path: Path, seed: int, initial: str | None = None
) -> Scenario:
    """Train one client as the scenario says; write what the server sees, and the truth, to separate files."""
    scenario = _scenario(scenario_path, initial)
    if observation_path.resolve() == truth_path.resolve():
        raise ConfigError(f"--observation and --truth are the same file, {truth_path}; they must be two")
    for path in (observation_path, truth_path):
        make_way(path)
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
    keep: bool = False,
    checkpoint_seconds: float = 30.0,
    device: str = "auto",
    memory: int = MEMORY,
    watch: Watch | None = None,
) -> Record:
    """Attack an observation file; the truth is nowhere near.

    The same call after a crash or Ctrl-C resumes from the last checkpoint and ends with the same images. Other attacks
    with the same ``out`` accumulate there. Under ``torchrun`` all processes make this call and share the work; the
    first one reads and writes the files in ``out``.

    Args:
        observation_path: A recorded update.
        attack: A name.
        arguments: Settings of the attack.
        out: The run directory.
        seed: Of the attack.
        model: A custom model, which the user trusts.
        overwrite: Whether to run it again if it is finished, which is an error otherwise.
        keep: Whether to return what is there instead.
        checkpoint_seconds: What a kill may cost.
        device: Where the attack runs.
        memory: Bytes that it may keep in order to save time.
        watch: Is told of progress.
    """
    make_attack(attack, arguments)  # complains before anything is read
    recorded = Recorded.of(observation_path, model=model)
    trial = Trial(scenario=recorded, attack=attack, arguments=arguments, seed=seed, name=summary(recorded.about))
    store = RunDirectory(out)
    folder = store.folder(trial.key)
    # Beside a checkpoint, whoever wrote the result was killed before it could say so.
    keep = keep or (not overwrite and (folder / CHECKPOINT).exists())
    if keep and store.status(trial.key) is not None and (earlier := store.record(trial.key)):
        store.tidy(trial.key)
        judge_directory(store)
        return earlier
    ranks.join(device_of(device))
    try:
        with _begin(store, trial, overwrite=overwrite) as check:

            def open_run(key: str) -> Run:
                checkpoint = Checkpoint(folder / CHECKPOINT, key=key, seconds=checkpoint_seconds, check=check)
                return Run(watch=watch, checkpoint=checkpoint, memory=memory)

            try:
                outcome = run(trial, open_run=open_run, device=device)
            except RankFailure as problem:
                raise RankFailure(f"{problem}; {_resume(folder)}") from None
            except UndeltaError:
                if ranks.rank() == 0 and not (folder / CHECKPOINT).exists() and not (folder / RECORD).exists():
                    _take_back(store, trial)  # refused before any work: leave nothing behind
                raise
            first = ranks.rank() == 0
            ranks.leave()
            if first:
                check()
                found = outcome.reconstruction
                tensors = {
                    "images": found.images.cpu(),
                    "labels": found.labels.cpu(),
                    **{f"iterate {one.iteration} {one.seconds!r}": one.images for one in found.iterates},
                }
                about = {"format": FORMAT, "kind": "reconstruction"}
                write_tensors(folder / RECONSTRUCTION, tensors, about, private=True)
                write_sheet(out / SHEET, [(attack, found.images)])
                store.finish(outcome.record, pictures(outcome), check)
                judge_directory(store)
    except LeaseLost:
        raise ConfigError(f"another process has taken this attack over in {out}, since we were silent") from None
    return outcome.record


@contextmanager
def _begin(store: RunDirectory, trial: Trial, *, overwrite: bool) -> Iterator[Callable[[], None]]:
    """Lease a trial's folder; where several processes share the attack, all hear what the first one found."""
    problem, lease = "", None
    if ranks.rank() == 0:
        try:
            lease = _lease(store, trial, overwrite=overwrite)
        except UndeltaError as found:
            problem = str(found)
    problem = ranks.same_bytes(problem.encode()).decode()
    if problem:
        raise ConfigError(problem)
    with lease or nullcontext():
        yield lease.check if lease else lambda: None


def _lease(store: RunDirectory, trial: Trial, *, overwrite: bool) -> Lease:
    out = store.directory
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file; choose a directory for --out")
    if (out / CONFIGURATION).exists():
        raise ConfigError(f"{out} holds an audit; choose another --out")
    make_folder(out)
    with _alone(out):
        store.add(trial)
        lease = Leases(worker="attack").acquire(store.folder(trial.key))
    if lease is None:
        raise ConfigError(f"the same attack is running in {out}; choose another --out")
    try:
        if not overwrite and store.status(trial.key) is not None:
            raise ConfigError(f"{out} already holds this attack's results; choose another --out, or pass --overwrite")
    except UndeltaError:
        lease.release()
        raise
    store.unjudge()
    return lease


def _take_back(store: RunDirectory, trial: Trial) -> None:
    with _alone(store.directory):
        store.remove(trial.key)
        if (store.directory / RUN).exists():
            judge_directory(store)
    with suppress(OSError):  # not empty: somebody else's
        store.directory.rmdir()


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Let no other command change what a directory holds, for a moment."""
    leases, deadline = Leases(worker="attack"), time.monotonic() + WAIT_SECONDS
    while (lease := leases.acquire(directory)) is None:
        if time.monotonic() > deadline:
            raise ConfigError(f"another command is changing {directory}; try again")
        time.sleep(0.05)
    with lease:
        yield


def _resume(folder: Path) -> str:
    if not (folder / CHECKPOINT).exists():
        return "there is no checkpoint here yet"
    return f"the last checkpoint is {folder / CHECKPOINT}, and the same command resumes from there"


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
