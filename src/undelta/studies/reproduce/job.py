"""What `undelta reproduce` does: make a plan from the data, run it as an audit, and put the results beside the paper's.

Runs accumulate: several reproductions may share one directory, as one audit whose common trials run once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from undelta.errors import ConfigError
from undelta.files import write_bytes
from undelta.report.read import read_audit
from undelta.report.templates import escape
from undelta.schema import parse, unknown
from undelta.studies.audit import run_plan
from undelta.studies.reproduce.finding import Finding
from undelta.studies.reproduce.render import write_reproduction
from undelta.studies.reproduce.reproductions import (
    REPRODUCTIONS,
    TUNED,
    Asked,
    Reproduction,
    Weights,
    cells_of,
    find_reproductions,
)
from undelta.studies.reproduce.results import Cell, gather
from undelta.studies.reproduce.scales import KERNELS, SCALES, find_scale
from undelta.studies.reproduce.tuned import MARKS, TUNING_SEED, check_tuned, show_trials, tune, tuned_weights
from undelta.studies.screen import SILENT, Screen
from undelta.trials.config import make_attack, read_toml, to_document
from undelta.trials.plan import Checks, Plan
from undelta.trials.pool import Workers
from undelta.trials.record import Record
from undelta.trials.trial import Trial

FINDINGS = "findings.md"


@dataclass(frozen=True, kw_only=True)
class Reproduced:
    """What came of it."""

    findings: Mapping[str, Sequence[Finding]]
    """By reproduction."""
    failed: tuple[Record, ...] = ()
    scale: str


def reproduce_job(
    name: str,
    *,
    out: Path,
    scale: str | None = None,
    data: str | None = None,
    seeds: Sequence[int] | None = None,
    scenario: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    kernel: str | None = None,
    cases: Sequence[str] = (),
    methods: Sequence[str] = (),
    workers: Workers | None = None,
    checkpoint_seconds: float = 30.0,
    retry_failed: bool = False,
    render_only: bool = False,
    say: Callable[[str], None] = lambda _: None,
    screen: Screen = SILENT,
) -> Reproduced:
    """Run one reproduction, or all, and write its tables and figures; the same call resumes after a kill.

    Args:
        name: A name of `REPRODUCTIONS`, or "all".
        out: The directory; one that holds reproductions already keeps its scale and data.
        scale: "smoke", "cpu", "resnet18" or "paper"; by default, what the directory has.
        data: Where images come from; by default, the scale's own source.
        seeds: One trial of every cell for each; by default, the scale's own.
        scenario: Fields of every scenario in place of the scale's, such as the model, its weights or the image size.
        settings: Settings of the paper's methods in place of the scale's; each goes to the methods that have it.
        kernel: Of the Gaussian process that tunes: "matern", or the paper's "gaussian".
        cases: Run these only, as the column Ours of the table names them; the others stay unfinished. By default, all.
        methods: Run these only, likewise.
        workers: Who runs trials; those of a tuning run one by one unless a number is given.
        checkpoint_seconds: What a kill may cost.
        retry_failed: Whether to run failed trials again.
        render_only: Write tables and figures from what is there, and run nothing.
        say: Is told what the user should know.
        screen: Shows how far the trials are.
    """
    workers = workers or Workers()
    wanted = find_reproductions(name)
    there = _read_asked(out)
    if render_only:
        wanted = _held(wanted, there, out)
    asked = _settle(
        wanted, there, scale=scale, data=data, seeds=seeds, scenario=scenario, settings=settings, kernel=kernel
    )
    failed: tuple[Record, ...] = ()
    part = _part(wanted, asked, cases, methods)  # unknown names are an error before any work
    if not render_only:
        make_plan(asked)  # and so are missing data and models
        check_tuned(asked, out)
        tunes = any(REPRODUCTIONS[one].needs_tuning for one in asked.names)
        if part is not None:
            tunes = any(cell.method == TUNED for cell in part)
        if tunes and tuned_weights(out) is None:
            # One at a time unless told otherwise: proposals of several workers depend on who ends first.
            alone = replace(workers, count=workers.count or 1)
            tune(asked, out, workers=alone, checkpoint_seconds=checkpoint_seconds, screen=screen)
    show_trials(out)
    if not render_only:
        tuned = tuned_weights(out)
        plan, part = make_plan(asked, tuned), _part(wanted, asked, cases, methods, tuned)
        only = plan.keys if part is None else [trial.key for cell in part for trial in cell.trials]
        done = run_plan(
            plan,
            out=out,
            only=only,
            workers=workers,
            checkpoint_seconds=checkpoint_seconds,
            retry_failed=retry_failed,
            say=say,
            screen=screen,
        )
        failed = tuple(record for record in done.failed if record.key in only)
    return Reproduced(findings=_render(wanted, asked, out), failed=failed, scale=asked.scale)


def _read_asked(out: Path) -> Asked | None:
    """What the directory is for; None if it is new."""
    path = out / "audit.toml"
    if not path.is_file():
        if any((out / name).exists() for name in MARKS):
            raise ConfigError(f"{out} holds a tuning (`undelta tune`); choose another --out")
        return None
    _, values = read_toml(path)
    if "reproduction" not in values:
        raise ConfigError(f"{out} holds an audit of something else; choose another --out")
    return parse(Asked, values["reproduction"], where=f"{path}: [reproduction]", error=ConfigError)


def _held(wanted: Sequence[Reproduction], there: Asked | None, out: Path) -> tuple[Reproduction, ...]:
    """Of all, those that the directory is for; a single one must be among them."""
    name = wanted[0].name if len(wanted) == 1 else "all"
    if there is None:
        raise ConfigError(f"{out}: nothing to render; run `undelta reproduce {name} --scale ... --out {out}` first")
    held = tuple(one for one in wanted if one.name in there.names)
    if not held:
        raise ConfigError(
            f"{out} holds {', '.join(there.names)}, not {name}; run `undelta reproduce {name} --out {out}` first"
        )
    return held


def _settle(
    wanted: Sequence[Reproduction],
    there: Asked | None,
    *,
    scale: str | None,
    data: str | None,
    seeds: Sequence[int] | None,
    scenario: Mapping[str, Any] | None,
    settings: Mapping[str, Any] | None,
    kernel: str | None,
) -> Asked:
    """What is asked for now, together with what the directory holds."""
    if scale is None and there is None:
        raise ConfigError(f"--scale: expected one of {', '.join(SCALES)}")
    chosen = find_scale(scale or (there.scale if there else ""))
    if there and chosen.name != there.scale:
        raise ConfigError(f"--out holds the {there.scale} scale, --scale asks for {chosen.name}; choose another --out")
    source = data or (there.data if there else chosen.data)
    if source is None:
        raise ConfigError(
            f"--data: the {chosen.name} scale needs a folder of ImageNet pictures, one subfolder per class or numbered"
        )
    if there and source != there.data:
        raise ConfigError(f"--out holds results on {there.data}, --data asks for {source}; choose another --out")
    if kernel is not None and kernel not in KERNELS:
        raise ConfigError(f"--kernel: {unknown('kernel', kernel, KERNELS)}")
    if scenario and scenario.get("model", chosen.scenario["model"]) != chosen.scenario["model"]:
        scenario = {"model_arguments": {}, **scenario}  # the scale's are another network's
    open_choices = {"scenario": scenario or None, "settings": settings or None, "kernel": kernel}
    for name, value in open_choices.items():
        if there and value is not None and value != getattr(there, name):
            raise ConfigError(
                f"--out holds results with {name} {getattr(there, name)}, not {value}; choose another --out"
            )
    kept = {name: getattr(there, name) for name in open_choices} if there else {}
    kept |= {name: value for name, value in open_choices.items() if value is not None}
    drawn = tuple(seeds if seeds is not None else there.seeds if there else chosen.seeds)
    if not drawn or len(set(drawn)) < len(drawn):
        raise ConfigError(f"--seeds: expected at least one, each once, got {list(drawn)}")
    if TUNING_SEED in drawn:
        raise ConfigError(f"--seeds: {TUNING_SEED} is the client on which layer weights are tuned; choose others")
    names = {one.name for one in wanted} | set(there.names if there else ())
    for one in names - set(REPRODUCTIONS):
        find_reproductions(one)  # another version's name
    found = tuple(one for one in REPRODUCTIONS if one in names)
    asked = Asked(scale=chosen.name, data=source, seeds=drawn, names=found, **kept)
    asked.check_settings()
    return asked


def make_plan(asked: Asked, tuned: Weights | None = None) -> Plan:
    """All trials of the directory, each once, checked as those of an audit's configuration are.

    Case by case and seed by seed, so that a run that is not finished compares methods on the same updates.
    """
    trials: dict[str, Trial] = {}
    checked = Checks()
    for name in asked.names:
        for _, case in groupby(asked.cells(name, tuned), key=lambda cell: cell.row):
            planned = [(cell.here, trial) for cell in case for trial in cell.trials]
            for here, trial in sorted(planned, key=lambda pair: asked.seeds.index(pair[1].seed)):
                checked(trial.simulated, f"{name}, {here}")
                make_attack(trial.attack, trial.arguments)
                trials.setdefault(trial.key, trial)
    title = f"The paper's experiments at {asked.scale} scale"
    text = to_document({"name": title, "reproduction": asdict(asked)})
    head = "# Made by `undelta reproduce`, which resumes here.\n"
    return Plan(name=title, text=head + text, trials=tuple(trials.values()), kind="reproduce")


def _part(
    wanted: Sequence[Reproduction],
    asked: Asked,
    cases: Sequence[str],
    methods: Sequence[str],
    tuned: Weights | None = None,
) -> list[Cell] | None:
    """The cells of these cases and methods that have trials, or will once weights are tuned; None for all."""
    if not cases and not methods:
        return None
    cells = [cell for one in wanted for cell in asked.cells(one.name, tuned or {})]
    for option, given, known in (
        ("case", cases, dict.fromkeys(cell.here for cell in cells)),
        ("method", methods, dict.fromkeys(cell.method for cell in cells)),
    ):
        for name in given:
            if name not in known:
                names = ", ".join(map(repr, known))  # they have commas
                raise ConfigError(f"--{option}: expected one of {names}, got {name!r}")
    chosen = [cell for cell in cells if (not cases or cell.here in cases) and (not methods or cell.method in methods)]
    part = [cell for cell in chosen if cell.trials]
    if not part:
        reasons = ", ".join(dict.fromkeys(cell.reason for cell in chosen)) or "no table has that method in that case"
        raise ConfigError(f"--case, --method: nothing to run ({reasons})")
    return part


def _render(wanted: Sequence[Reproduction], asked: Asked, out: Path) -> dict[str, Sequence[Finding]]:
    """Tables and figures of what is wanted, and the claims of all that the directory holds."""
    audit, tuned = read_audit(out), tuned_weights(out)
    found: dict[str, Sequence[Finding]] = {}
    lines = [f"# Which of the paper's claims hold at {asked.scale} scale", "", f"That is {escape(asked.says)}.", ""]
    for name in asked.names:
        results = gather(asked.cells(name, tuned), audit.records)
        found[name] = write_reproduction(REPRODUCTIONS[name], results, audit, asked)
        lines += [f"## [{REPRODUCTIONS[name].title}]({name}.md)", "", *(one.markdown for one in found[name]), ""]
    write_bytes(out / FINDINGS, "\n".join(lines).encode("utf-8", "replace"))
    return {one.name: found[one.name] for one in wanted}


def listing() -> list[str]:
    """Each reproduction with what it shows and its number of trials per scale, a line each."""
    lines = []
    for one in REPRODUCTIONS.values():
        counts = []
        for scale in SCALES.values():
            cells = cells_of(one, scale, data=scale.data or "DATA", seeds=scale.seeds, tuned={})
            tuned = scale.tuning_trials if one.tunes else 0
            count = sum(len(cell.trials) for cell in cells)
            counts.append(f"{scale.name} {count}" + (f" + {tuned} of tuning" if tuned else ""))
        lines.append(f"{one.name:<14} {one.shows} ({one.label}); trials: {', '.join(counts)}")
    return lines
