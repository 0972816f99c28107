"""`undelta defend`: an audit of every defense at several strengths, and what each costs in accuracy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from undelta.client.scenario import Scenario
from undelta.errors import ConfigError
from undelta.files import to_json, write_bytes
from undelta.schema import parse
from undelta.studies.audit import Audited, run_plan
from undelta.studies.ladder import Rung, ladder, reference
from undelta.studies.screen import SILENT, Screen
from undelta.studies.utility import Federation, measure_all
from undelta.trials.config import read_toml, to_document
from undelta.trials.diagnosis import Thresholds
from undelta.trials.directory import DEFEND
from undelta.trials.plan import Plan, make_plan
from undelta.trials.pool import Workers
from undelta.trials.record import REFERENCE
from undelta.trials.tradeoff import Point, Tradeoff, Utility, compare, make_point
from undelta.trials.verdict import judge

Table = Mapping[str, Any]
ROUNDS = 20


@dataclass(frozen=True, kw_only=True)
class DefendFile:
    """The keys of the TOML; a file without ``[scenario]`` is a scenario itself."""

    name: str = "Defenses"
    seeds: tuple[int, ...] = (0,)
    rounds: int = ROUNDS
    """Of the federation whose accuracy is measured."""
    scenario: Table
    attacks: tuple[Table, ...] = ({"attack": "strongest"},)
    defenses: tuple[Table, ...] = ()
    """Named sets of scenario fields, in place of the default ladder."""
    verdict: Thresholds = field(default_factory=Thresholds)
    slurm: Table = field(default_factory=dict)
    """What submitit is told of the cluster, for ``--backend slurm``."""

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ConfigError(f"expected rounds >= 1, got rounds={self.rounds}")


@dataclass(frozen=True, kw_only=True)
class Defended:
    """What came of it."""

    tradeoff: Tradeoff
    audited: Audited


def defend_job(
    path: Path,
    *,
    out: Path,
    attacks: Sequence[str] = (),
    rounds: int | None = None,
    seeds: Sequence[int] = (),
    workers: Workers | None = None,
    retry_failed: bool = False,
    bound: bool = False,
    say: Callable[[str], None] = lambda _: None,
    screen: Screen = SILENT,
) -> Defended:
    """Measure leakage and utility of every defense, and bound its updates if asked to; the same call resumes."""
    file = load_file(path)
    file = replace(
        file,
        attacks=tuple({"attack": name} for name in attacks) or file.attacks,
        rounds=file.rounds if rounds is None else rounds,
        seeds=tuple(seeds) or file.seeds,
    )
    plan, notes = plan_of(file, where=str(path))
    plan = replace(plan, kind="defend")
    for note in notes:
        say(f"Note: {note}.")
    audited = run_plan(plan, out=out, workers=workers, retry_failed=retry_failed, bound=bound, say=say, screen=screen)
    federations = {
        trial.defense: [Federation.of(trial.simulated, rounds=file.rounds, seed=seed) for seed in file.seeds]
        for trial in plan.trials
    }
    every = [federation for group in federations.values() for federation in group]
    utilities = measure_all(out, every, replace(workers or Workers(), slurm=file.slurm), say=say)
    measured = {defense: [utilities[one.key] for one in group] for defense, group in federations.items()}
    tradeoff = _tradeoff(file, plan, audited, measured, notes)
    write_bytes(out / DEFEND, to_json(tradeoff))
    return Defended(tradeoff=tradeoff, audited=audited)


def load_file(path: Path) -> DefendFile:
    """The configuration, or a scenario alone."""
    _, values = read_toml(path)
    if "scenario" in values:
        return parse(DefendFile, values, where=str(path), error=ConfigError)
    parse(Scenario, values, where=str(path), error=ConfigError)
    return DefendFile(scenario=values)


def plan_of(file: DefendFile, *, where: str) -> tuple[Plan, list[str]]:
    """The audit behind it, and notes on defenses that were left out."""
    scenario = parse(Scenario, file.scenario, where=f"{where}: [scenario]", error=ConfigError)
    notes: list[str] = []
    rungs: list[Rung] = [dict(table) for table in file.defenses]
    if not rungs:
        rungs, notes = ladder(scenario, seed=file.seeds[0] if file.seeds else 0)
    rungs.append(reference(scenario))
    values = {
        "name": file.name,
        "seeds": file.seeds,
        "scenario": file.scenario,
        "attacks": file.attacks,
        "defenses": rungs,
        "noise": False,  # the last rung is a better one
        "verdict": asdict(file.verdict),
        "slurm": file.slurm,
    }
    return make_plan(to_document(values), values, where=where), notes


def _tradeoff(
    file: DefendFile, plan: Plan, audited: Audited, utilities: Mapping[str, Sequence[Utility]], notes: Sequence[str]
) -> Tradeoff:
    points: dict[str, Point] = {}
    for verdict in judge(plan.trials, audited.records, plan.thresholds, audited.bounds):  # the reference, too
        own = [trial for trial in plan.trials if trial.defense == verdict.defense]
        points[verdict.defense] = make_point(verdict, own, audited.records, utilities[verdict.defense])
    nothing = points.pop(REFERENCE)
    tested = [utility for group in utilities.values() for utility in group]
    last = max(audited.records.values(), key=lambda record: record.date or "")
    reasons = dict.fromkeys(f"no accuracy: {utility.error}" for utility in tested if utility.error)
    return Tradeoff(
        name=file.name,
        rounds=file.rounds,
        seeds=file.seeds,
        test_images=max((utility.test_images for utility in tested), default=0),
        reference=nothing,
        points=compare(list(points.values()), nothing),
        date=last.date or "",
        versions=last.versions,
        notes=(*notes, *reasons),
    )
