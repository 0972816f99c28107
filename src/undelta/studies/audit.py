"""A whole audit: check the configuration, run what has no result yet, judge all that has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from undelta.client.private import load_private
from undelta.client.scenario import Scenario
from undelta.errors import ConfigError
from undelta.evaluation.lpips import load_lpips
from undelta.evaluation.metrics import WINDOW
from undelta.files import kind_of, to_json, write_bytes
from undelta.observation.file import digests_of, load_observation
from undelta.studies.bounds import bound_all
from undelta.studies.screen import SILENT, Screen
from undelta.trials.bound_file import BoundFile, read_bounds
from undelta.trials.config import to_document
from undelta.trials.directory import VERDICT, RunDirectory
from undelta.trials.gates import Gate
from undelta.trials.judgment import Judgment, pronounce
from undelta.trials.leases import Leases
from undelta.trials.plan import Plan, make_plan
from undelta.trials.pool import Workers
from undelta.trials.record import FAILED, Record
from undelta.trials.worker import Trials


@dataclass(frozen=True, kw_only=True)
class Audited:
    """What came of an audit."""

    judgment: Judgment
    records: Mapping[str, Record]
    """Of the trials that have one, by key."""
    bounds: Mapping[str, BoundFile]
    """Of the updates that have one, by the keys of the trials that attack them."""

    @property
    def failed(self) -> tuple[Record, ...]:
        return tuple(record for record in self.records.values() if record.status == FAILED)


def plan_recorded(
    sources: Sequence[Path],
    *,
    attacks: Sequence[str] = (),
    arguments: Mapping[str, Any] | None = None,
    seeds: Sequence[int] = (0,),
    truths: Sequence[Path] = (),
    images: Path | None = None,
    model: str | None = None,
) -> Plan:
    """The audit of updates from elsewhere.

    Args:
        sources: Observation files, and folders of them.
        attacks: Names; by default, strongest.
        arguments: Settings of all attacks.
        seeds: Of the attacks.
        truths: Files that `undelta simulate` wrote, and folders of them; each is known by the update it belongs to.
        images: A folder of the private pictures of one update, or of several in folders named like their updates.
        model: A custom model, which the user trusts.
    """
    updates = _of_kind("observation", sources)
    if not updates:
        raise ConfigError(f"expected a .toml or recorded updates, found none in {', '.join(map(str, sources))}")
    known = {load_private(path)[2]: path for path in _of_kind("truth", truths)}
    tables: list[dict[str, Any]] = []
    used: set[str] = set()
    for path in updates:
        own = sorted(digests_of(load_observation(path, model=model)) & known.keys())
        used.update(own)
        truth = _same([known[digest] for digest in own])
        if images is not None:
            truth = images if len(updates) == 1 else images / path.name.removesuffix(".safetensors")
            if not truth.is_dir():
                raise ConfigError(f"--images: expected a folder of the pictures behind {path}, found no {truth}")
        table = {"observation": str(path.resolve()), "truth": str(truth.resolve()) if truth else None, "model": model}
        tables.append({key: value for key, value in table.items() if value is not None})
    if spare := [path for digest, path in known.items() if digest not in used]:
        raise ConfigError(f"--truth {spare[0]} belongs to none of the updates")
    values = {
        "name": "Recorded updates" if len(updates) > 1 else f"The recorded update {updates[0].name}",
        "seeds": list(seeds),
        "recorded": tables,
        "attacks": [{"attack": name, **(arguments or {})} for name in attacks or ("strongest",)],
    }
    return make_plan(to_document(values), values, where="undelta audit")


def _same(truths: Sequence[Path]) -> Path | None:
    """The truth that files of several rounds have in common; None without one."""
    if any(not torch.equal(load_private(truths[0])[0].images, load_private(path)[0].images) for path in truths[1:]):
        raise ConfigError(
            f"{truths[0]} and {truths[1]} belong to rounds that were joined, but hold different images: the client's "
            "data changed; attack each round alone"
        )
    return truths[0] if truths else None


def _of_kind(kind: str, places: Sequence[Path]) -> list[Path]:
    """The files among these, and in these folders, that are of a kind; one that is named must be."""
    found = []
    for place in places:
        if place.is_dir():
            for path in sorted(place.glob("*.safetensors")):
                there = kind_of(path)
                if there is None:  # left out, it would pass every gate
                    raise ConfigError(f"{path}: not a readable file of ours; repair it or move it away")
                found += [path] if there == kind else []
        elif place.is_file():
            found.append(place)
        else:
            raise ConfigError(f"{place}: no such file or folder")
    return found


def run_plan(
    plan: Plan,
    *,
    out: Path,
    only: Sequence[str] | None = None,
    workers: Workers | None = None,
    checkpoint_seconds: float = 30.0,
    retry_failed: bool = False,
    gates: Sequence[Gate] = (),
    closed: bool = False,
    bound: bool = False,
    say: Callable[[str], None] = lambda _: None,
    screen: Screen = SILENT,
) -> Audited:
    """Run all trials of a plan that have no result yet, bound their updates if asked to, and judge all that is there.

    With ``only``, trials other than these wait for another call.

    The same call after a crash or Ctrl-C resumes from the last checkpoints and ends with the same results.
    """
    check_metrics(plan, gates)
    workers = replace(workers or Workers(), slurm=plan.slurm)
    wanted = {trial.key: trial for trial in plan.trials if only is None or trial.key in only}
    keys = tuple(wanted)
    for line in (*plan.repeats(), workers.crowding(len(keys))):
        if line:
            say(f"Note: {line}.")
    store, leases = RunDirectory(out), Leases(worker="start")
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file; choose a directory for --out")
    store.prepare(plan.text, plan.trials, leases, title=plan.name, kind=plan.kind, thresholds=plan.thresholds)
    if retry_failed:
        store.forget_failed(keys, leases)
    if store.unfinished(keys):
        trials = Trials(directory=str(out.resolve()), keys=keys, checkpoint_seconds=checkpoint_seconds)
        with screen.trials(wanted) as show:
            workers.work_off(trials, out, show=show)
    if bound:
        bound_all(out, tuple(wanted.values()), workers, say=say, screen=screen, retry=retry_failed)
    return judge_job(plan, store, gates, closed=closed)


def check_metrics(plan: Plan, gates: Sequence[Gate]) -> None:
    """Refuse a metric that cannot be measured, and a gate that needs one, before hours of work."""
    lpips = load_lpips()  # a damaged file would otherwise be found after the first trial
    if any(gate.metric == "lpips" for gate in gates) and lpips is None:
        raise ConfigError("--fail-below lpips needs LPIPS, whose weights are missing; fetch them: undelta fetch lpips")
    if any(gate.metric == "ssim" for gate in gates):
        sources = [trial.scenario for trial in plan.trials]
        simulated = {(one.data, one.image_size): one for one in sources if isinstance(one, Scenario)}
        for scenario in simulated.values():
            side = min(scenario.image_spec().shape[1:])
            if side < WINDOW:
                raise ConfigError(
                    f"--fail-above ssim: SSIM needs images of {WINDOW} pixels a side, got {side} ({scenario.data}); "
                    "use psnr"
                )


def judge_job(plan: Plan, store: RunDirectory, gates: Sequence[Gate] = (), *, closed: bool = False) -> Audited:
    """Judge what is there, and write it to ``verdict.json`` unless something is left to do."""
    found = {key: store.record(key) for key in plan.keys}
    records = {key: record for key, record in found.items() if record}
    bounds = read_bounds(store.directory, [trial.unmeasured() for trial in plan.trials])
    judgment = pronounce(
        plan.trials,
        records,
        bounds=bounds,
        thresholds=plan.thresholds,
        gates=gates,
        closed=closed,
        auditor=plan.auditor,
    )
    if not store.unfinished(plan.keys):
        write_bytes(store.directory / VERDICT, to_json(judgment))
    return Audited(judgment=judgment, records=records, bounds=bounds)
