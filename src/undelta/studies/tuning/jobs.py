"""What `undelta tune` does: observe, evaluate all places in line, conclude, and run the winner at full length."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from undelta.attacker.attack import Watch
from undelta.attacker.attacks import ATTACKS
from undelta.client.datasets import origin_of
from undelta.client.disclose import disclose
from undelta.client.private import Private, save_private
from undelta.client.scenario import Scenario
from undelta.engine import MEMORY
from undelta.engine.devices import device_of
from undelta.errors import ConfigError
from undelta.files import make_folder
from undelta.observation import Observation
from undelta.observation.file import digest_of, load_observation, save_observation
from undelta.schema import find
from undelta.studies.screen import SILENT, Screen
from undelta.studies.single import attack_job
from undelta.studies.tuning.outcome import Tuned, best_value, conclude, write_outcome
from undelta.studies.tuning.plan import OBSERVATION, ObjectiveName, Plan, read_plan, settle
from undelta.studies.tuning.proposals import Kernel
from undelta.studies.tuning.space import choose_space
from undelta.studies.tuning.worker import CHECKPOINTS, Evaluations, make_objective
from undelta.trials.config import load_scenario, make_attack
from undelta.trials.directory import PLAN
from undelta.trials.pool import Workers
from undelta.trials.record import Record, describe_scenario
from undelta.trials.trial import Trial

TRUTH = "truth.safetensors"
"""The private images of a simulated scenario, for the score of the last run; nothing that tunes or attacks reads it."""
ONE = Workers(count=1, threads=None)


def tune_job(
    source: Path,
    *,
    out: Path,
    trials: int = 50,
    random: int = 12,
    steps: int = 1000,
    space: str = "paper",
    objective: ObjectiveName = "mismatch",
    public: str | None = None,
    shadow_draws: int = 2,
    prune: bool = True,
    kernel: str = "matern",
    attack: str = "awa",
    arguments: Mapping[str, Any] | None = None,
    seed: int = 0,
    model: str | None = None,
    storage: str | None = None,
    workers: Workers = ONE,
    device: str = "auto",
    memory: int = MEMORY,
    checkpoint_seconds: float = 30.0,
    screen: Screen = SILENT,
) -> Tuned:
    """Tune an attack's layer weights on one update (AWA alg_DataRecAttack), and write what was found to ``out``.

    The same call after a crash or Ctrl-C resumes. One with more trials continues from there, too.

    Args:
        source: A scenario (.toml), which is simulated and of which the update alone is used; or a recorded update.
        out: The directory of this tuning.
        trials: How many points to evaluate, the random ones included.
        random: How many of them are random.
        steps: Attack iterations of each evaluation.
        space: "paper", "weights" or "wide".
        objective: "mismatch", f(Q) of the paper; or "shadow", image quality on clients of the attacker's own.
        public: Where the images of those clients come from; they must not be the real client's.
        shadow_draws: How many such clients.
        prune: Whether to end evaluations early that are worse than the median.
        kernel: Of the Gaussian process: "matern", or the paper's "gaussian", which needs scikit-learn.
        attack: An attack that has a Q.
        arguments: Its settings that are not tuned.
        seed: Random seed; also draws the scenario.
        model: A custom model of a recorded update, which the user trusts.
        storage: The URL of a database, for workers on several machines; a SQLite file in ``out`` if None.
        workers: Who evaluates; one at a time, in this process, by default.
        device: Where attacks run.
        memory: Bytes that they may keep in order to save time.
        checkpoint_seconds: What a kill may cost.
        screen: Shows progress.
    """
    if trials < 1:
        raise ConfigError(f"expected --trials >= 1, got {trials}")
    if workers.backend == "slurm" and storage is None:
        raise ConfigError("--backend slurm needs --storage: a SQLite file on a network file system is no good")
    fixed = dict(arguments or {})
    if "steps" in fixed:
        raise ConfigError("--set steps: use --steps for the trials and --final-steps for the last run")
    key = None
    if source.suffix == ".toml":
        scenario = _scenario(source, model=model, public=public)
        key = Trial(scenario=scenario, attack="", seed=seed).key
        model = scenario.model if scenario.architecture.custom else None
        observation, private = _observe(scenario, key, out, seed=seed, model=model)
    else:
        observation, private = load_observation(source, model=model), None
    plan = Plan(
        observation=digest_of(observation),
        scenario=key,
        attack=attack,
        arguments=fixed,
        steps=steps,
        space=space,
        searched=tuple(choose_space(space, observation, attack, fixed)),
        public=public,
        seed=seed,
        random=random,
        kernel=cast("Kernel", kernel),  # a plan checks it
        objective=objective,
        shadow_draws=shadow_draws,
        prune=prune,
    )
    make_attack(attack, {**fixed, "steps": steps})  # complains about wrong settings now
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file; choose a directory for --out")
    make_objective(plan, observation.to(device_of(device)))  # complains before anything is written
    make_folder(out)
    settle(plan, out)
    save_observation(observation, out / OBSERVATION)
    if private:
        save_private(private, out / TRUTH, {**describe_scenario(scenario), "seed": seed}, observation)
    evaluations = Evaluations(
        directory=str(out.resolve()),
        storage=storage,
        total=trials,
        checkpoint_seconds=checkpoint_seconds,
        model=model,
        device=device,
        memory=memory,
    )
    with screen.tuning(trials) as line:

        def update(_: object) -> None:
            finished = evaluations.slots.finished()
            line.update(len(finished), best_value(plan, finished))

        def show(slot: int) -> Watch:
            update(slot)
            return line.watch(slot)

        evaluations.show = show if workers.here else None
        if evaluations.unfinished():
            workers.work_off(evaluations, out, show=update, apart=False)
    tuned = conclude(plan, evaluations.slots.finished(), model=model)
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


def _observe(
    scenario: Scenario, key: str, out: Path, *, seed: int, model: str | None
) -> tuple[Observation, Private | None]:
    """The update of a simulated client, and its private images, unless both were simulated before."""
    if (out / PLAN).exists() and (out / OBSERVATION).exists() and read_plan(out).scenario == key:
        # Rounds take time, and another number of threads would round differently.
        return load_observation(out / OBSERVATION, model=model), None
    private = scenario.draw(seed)
    return disclose(private, scenario, seed=seed), private


def final_job(tuned: Tuned, *, out: Path, steps: int | None, **options: Any) -> Record:
    """Attack the observed update at full length with the best settings; writes what `undelta attack` writes to ``out``.

    Args:
        tuned: The tuning that ``out`` holds.
        out: Its directory.
        steps: Iterations; None is the attack's own number.
        **options: Others of `attack_job`.
    """
    plan = tuned.plan
    number = steps or inspect.signature(find("attack", plan.attack, ATTACKS)).parameters["steps"].default
    return attack_job(
        out / OBSERVATION,
        attack=plan.attack,
        arguments={**plan.arguments, **tuned.settings, "steps": number},
        out=out,
        seed=plan.seed,
        model=tuned.model,
        keep=True,
        **options,
    )
