"""What `undelta tune` does: observe, evaluate all places in line, conclude, and run the winner at full length."""

from __future__ import annotations

import contextlib
import inspect
import socket
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from undelta.attacker.attack import Watch
from undelta.attacker.attacks import ATTACKS
from undelta.client.datasets import origin_of
from undelta.client.disclose import disclose
from undelta.client.scenario import Scenario
from undelta.engine import MEMORY
from undelta.engine.devices import device_of
from undelta.errors import ConfigError, UndeltaError
from undelta.files import make_folder
from undelta.observation import Observation
from undelta.observation.file import digest_of, load_observation, save_observation
from undelta.studies.audit import ended_by_sigterm
from undelta.studies.single import attack_job
from undelta.studies.tuning.objective import Objective
from undelta.studies.tuning.outcome import Tuned, conclude, write_outcome
from undelta.studies.tuning.overview import Line
from undelta.studies.tuning.plan import OBSERVATION, PLAN, ObjectiveName, Plan, read_plan, settle
from undelta.studies.tuning.space import choose_space, names
from undelta.studies.tuning.study import Slots
from undelta.studies.tuning.worker import CHECKPOINTS, Job, evaluate, join, make_objective, work
from undelta.trials.backends import Processes
from undelta.trials.config import load_scenario
from undelta.trials.directory import CHECKPOINT
from undelta.trials.record import Record, read_results
from undelta.trials.trial import Trial

POLL_SECONDS = 0.5
MOST_DEATHS = 3  # of workers in a row, without a finished trial between them


class TuningError(UndeltaError):
    """Workers die again and again."""


def tune_job(
    source: Path,
    *,
    out: Path,
    trials: int = 50,
    random: int = 12,
    steps: int = 1000,
    box: str = "paper",
    objective: ObjectiveName = "mismatch",
    public: str | None = None,
    shadow_draws: int = 2,
    prune: bool = True,
    attack: str = "awa",
    arguments: Mapping[str, Any] | None = None,
    seed: int = 0,
    model: str | None = None,
    storage: str | None = None,
    workers: int = 1,
    threads: int | None = None,
    device: str = "auto",
    memory: int = MEMORY,
    checkpoint_seconds: float = 30.0,
    line: Line | None = None,
) -> Tuned:
    """Tune an attack's layer weights on one update (AWA alg_DataRecAttack), and write what was found to ``out``.

    The same call after a crash or Ctrl-C goes on where it was. One with more trials goes on from there, too.

    Args:
        source: A scenario (.toml), which is simulated and of which the update alone is used; or a recorded update.
        out: The directory of this tuning.
        trials: How many points to evaluate, the random ones included.
        random: How many of them are random.
        steps: Attack iterations of each evaluation.
        box: "paper", "weights" or "wide".
        objective: "mismatch", f(Q) of the paper; or "shadow", image quality on clients of the attacker's own.
        public: Where the images of those clients come from; they must not be the real client's.
        shadow_draws: How many such clients.
        prune: Whether to end evaluations early that are worse than the median.
        attack: An attack that has a Q.
        arguments: Its settings that are not tuned.
        seed: Makes everything repeatable; also draws the scenario.
        model: A custom model of a recorded update, which the user trusts.
        storage: The URL of a database, for workers on several machines; a journal file in ``out`` if None.
        workers: Evaluations at a time.
        threads: Of each evaluation; None leaves torch's number for one worker, and is one for several.
        device: Where attacks run.
        memory: Bytes that they may keep in order to save time.
        checkpoint_seconds: What a kill may cost.
        line: Shows progress.
    """
    if trials < 1 or workers < 1:
        raise ConfigError(f"expected --trials >= 1 and --workers >= 1, got {trials} and {workers}")
    fixed = dict(arguments or {})
    if "steps" in fixed:
        raise ConfigError("--set steps: use --steps for the trials and --final-steps for the last run")
    scenario = _scenario(source, model=model, public=public) if source.suffix == ".toml" else None
    key = None if scenario is None else _key(scenario, seed)
    if scenario is None:
        observation = load_observation(source, model=model)
    else:
        model = scenario.model if scenario.architecture.custom else None
        observation = _observe(scenario, key, out, seed=seed, model=model)
    plan = Plan(
        observation=digest_of(observation),
        scenario=key,
        attack=attack,
        arguments=fixed,
        steps=steps,
        box=box,
        searched=names(choose_space(box, observation, attack, fixed)),
        objective=objective,
        public=public,
        shadow_draws=shadow_draws,
        random=random,
        prune=prune,
        seed=seed,
    )
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file; choose a directory for --out")
    measure = make_objective(plan, observation.to(device_of(device)))  # complains before anything is written
    make_folder(out)
    settle(plan, out)
    save_observation(observation, out / OBSERVATION)
    job = Job(
        directory=str(out.resolve()),
        storage=storage,
        worker=socket.gethostname(),
        total=trials,
        threads=threads or (1 if workers > 1 else None),
        checkpoint_seconds=checkpoint_seconds,
        model=model,
        device=device,
        memory=memory,
        home=str(Path.cwd()),
    )
    slots = join(job, plan)
    line = line or Line(plan, trials)
    with line, ended_by_sigterm():
        if workers > 1:
            _employ(job, slots, workers, line)
        elif slots.unfinished():
            _work_here(job, slots, measure, out, line)
    tuned = conclude(plan, slots.finished(), model=model)
    write_outcome(tuned, out)
    with contextlib.suppress(OSError):  # not there, or not empty: somebody else's
        (out / CHECKPOINTS).rmdir()
    return tuned


def _scenario(path: Path, *, model: str | None, public: str | None) -> Scenario:
    scenario = load_scenario(path)
    if model is not None:
        raise ConfigError("--model is for a recorded update; a scenario names its model itself")
    if public is not None and origin_of(public) == origin_of(scenario.data):
        raise ConfigError(
            f"--public {public} is where the scenario's private images come from (data = {scenario.data!r}); "
            "the attacker has other images"
        )
    return scenario


def _key(scenario: Scenario, seed: int) -> str:
    return Trial(scenario=scenario, attack="", seed=seed).key


def _observe(scenario: Scenario, key: str | None, out: Path, *, seed: int, model: str | None) -> Observation:
    """The update of a simulated client; its private images end here. What was simulated before is read."""
    if (out / PLAN).exists() and (out / OBSERVATION).exists() and read_plan(out).scenario == key:
        # Rounds take time, and another number of threads would round differently.
        return load_observation(out / OBSERVATION, model=model)
    return disclose(scenario.draw(seed), scenario, seed=seed)


def _work_here(job: Job, slots: Slots, objective: Objective, out: Path, line: Line) -> None:
    """One worker: this process."""
    if job.threads is not None:
        torch.set_num_threads(job.threads)

    def show(slot: int) -> Watch:
        line.update(slots.finished())
        return line.watch(slot)

    while slots.unfinished():
        evaluate(slots, objective, out, checkpoint_seconds=job.checkpoint_seconds, memory=job.memory, show=show)
        line.update(slots.finished())
        if slots.unfinished():  # others are at the rest, here or elsewhere
            time.sleep(POLL_SECONDS)


def _employ(job: Job, slots: Slots, workers: int, line: Line) -> None:
    """Several workers, each a process; one that dies is replaced, and its trial repeated."""
    engine = Processes(work)
    running: set[str] = set()
    started, deaths, done = 0, 0, -1
    try:
        while True:
            finished = slots.finished()
            if len(finished) > done:
                done, deaths = len(finished), 0
                line.update(finished)
            for ended in engine.ended():
                running.discard(ended.worker)
                deaths += ended.problem is not None
                if deaths >= MOST_DEATHS:
                    raise TuningError(f"{deaths} workers in a row died before a trial was finished: {ended.problem}")
            if done == slots.total and not running:
                return
            for _ in range(min(workers - len(running), slots.free())):
                started += 1
                worker = f"{job.worker}-{started}"
                engine.start(replace(job, worker=worker))
                running.add(worker)
            time.sleep(POLL_SECONDS)
    finally:
        engine.stop()


def final_job(
    tuned: Tuned,
    *,
    out: Path,
    steps: int | None,
    device: str = "auto",
    memory: int = MEMORY,
    checkpoint_seconds: float = 30.0,
    watch: Watch | None = None,
) -> Record:
    """Attack the observed update at full length with the best settings; writes what `undelta attack` writes to ``out``.

    Args:
        tuned: The tuning that ``out`` holds.
        out: Its directory.
        steps: Iterations; None is the attack's own number.
        device: Where it runs.
        memory: Bytes that it may keep in order to save time.
        checkpoint_seconds: What a kill may cost.
        watch: Is told of progress.
    """
    plan = tuned.plan
    number = steps or inspect.signature(ATTACKS[plan.attack]).parameters["steps"].default
    arguments = {**plan.arguments, **tuned.settings, "steps": number}
    earlier = read_results(out)[0] if (out / "results.json").exists() else None
    same = earlier is not None and earlier.arguments == arguments
    if earlier and same and earlier.status != "interrupted":
        return earlier
    run = partial(
        attack_job,
        out / OBSERVATION,
        attack=plan.attack,
        arguments=arguments,
        out=out,
        seed=plan.seed,
        model=tuned.model,
        checkpoint_seconds=checkpoint_seconds,
        device=device,
        memory=memory,
        watch=watch,
    )
    try:
        return run(overwrite=earlier is not None and not same)
    except ConfigError:
        # A last run was killed, and more trials have found better settings since: its checkpoint is worth nothing.
        if not (out / CHECKPOINT).exists():
            raise
        return run(overwrite=True)
