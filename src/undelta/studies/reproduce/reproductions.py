"""The eight reproductions of ``reproductions.toml``: cases, methods, published figures, and from these trials."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from undelta.attacker.attacks import ATTACKS
from undelta.client.scenario import Scenario
from undelta.errors import ConfigError
from undelta.schema import parse, unknown
from undelta.studies.reproduce import published
from undelta.studies.reproduce.published import AGIC, APPROXIMATION, AWA, GENG, IDLG, LINEAR, Case
from undelta.studies.reproduce.results import Cell
from undelta.studies.reproduce.scales import MATERN, Scale, find_scale, read_named
from undelta.trials.trial import Trial

STRONGEST = "strongest (ours)"
TUNED = "AWA, Q tuned here"
AVERAGED = "AGIC, averaged"
ALL_EPOCHS = "GENG, all epochs"
GRANTED, INFERRED, JOINT = "labels granted", "labels inferred", "labels optimized jointly"
RIVALS = (IDLG, AGIC, GENG)
READ_AS = {AVERAGED: AGIC}  # impractical where that one is
OWN = ("setting", "form", "q", "average", "nodes", "labels")
"""Settings by which columns differ, and nobody may set for all."""
CLIENTS = 4  # of the federation in which updates leak at different stages

Weights = Mapping[str, float]
"""The paper's Q by the names of `attacker.weights.Q`."""


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """A table or figure of the paper."""

    name: str
    title: str
    label: str
    """In the paper's LaTeX."""
    shows: str
    figures: str = ""
    """Where else than under its label the paper prints figures."""
    cases: tuple[tuple[int, int, int], ...] = ()
    """In place of those that have figures."""
    methods: tuple[str, ...]
    large: bool = False
    """Whether the paper takes more iterations here."""
    tunes: bool = False
    """Whether the tuning of layer weights is what it shows."""
    staged: bool = False
    """Whether updates leak after several numbers of rounds, the scale's, of a federation of several clients."""

    @property
    def table(self) -> published.Table:
        """What the paper prints; nothing where it has no figures of a case."""
        printed = published.TABLES.get(self.figures or self.label, {})
        return {case: printed.get(case, {}) for case in (Case(*case) for case in self.cases)} or printed

    @property
    def needs_tuning(self) -> bool:
        """Whether layer weights must be tuned before its trials run."""
        return TUNED in self.methods


REPRODUCTIONS = read_named(Reproduction, __file__)
COMPARISON, FIGURE, ABLATION, EPOCHS, LARGE, TUNING, STAGES, LABELS = REPRODUCTIONS.values()


def find_reproductions(name: str) -> tuple[Reproduction, ...]:
    """The one of that name, or all."""
    if name == "all":
        return tuple(REPRODUCTIONS.values())
    if name not in REPRODUCTIONS:
        raise ConfigError(unknown("reproduction", name, [*REPRODUCTIONS, "all"]))
    return (REPRODUCTIONS[name],)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a directory was made for, as its audit.toml says under [reproduction]."""

    scale: str
    data: str
    seeds: tuple[int, ...]
    names: tuple[str, ...]
    scenario: Mapping[str, Any] = field(default_factory=dict)
    """Fields of every scenario in place of the scale's: what the paper leaves open."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of the paper's methods, those that have them, in place of the scale's."""
    kernel: str = MATERN
    """Of the Gaussian process that tunes."""

    @property
    def size(self) -> Scale:
        """The scale behind its name, with what was asked for in its place."""
        scale = find_scale(self.scale)
        return replace(scale, scenario={**scale.scenario, **self.scenario})

    def cells(self, name: str, tuned: Weights | None) -> list[Cell]:
        """The cells of one of the reproductions."""
        return cells_of(
            REPRODUCTIONS[name], self.size, data=self.data, seeds=self.seeds, tuned=tuned, settings=self.settings
        )

    def check_settings(self) -> None:
        """Each setting must be one of some method of the paper."""
        trials = [trial for name in self.names for cell in self.cells(name, None) for trial in cell.trials]
        attacks = {trial.attack for trial in trials} - {"strongest"}
        known = {name for attack in attacks for name in inspect.signature(ATTACKS[attack]).parameters}
        for name in self.settings:
            if name in OWN:
                raise ConfigError(f"--set {name}: columns of the tables differ by it; leave it out")
            if name not in known:
                raise ConfigError(f"--set: {unknown('setting', name, sorted(known - set(OWN)))}")

    @property
    def tuning_settings(self) -> dict[str, Any]:
        """Of AWA in the trials of a tuning, but for their iterations."""
        given = {name: value for name, value in _taken("awa", self.settings).items() if name != "steps"}
        return {"setting": "paper", "learning_rate": self.size.attack_rate, **self.size.priors, **given}

    @property
    def says(self) -> str:
        """What was run, in words: the scale, and what was asked for in its place."""
        others = {**self.scenario, **self.settings}
        if self.kernel != MATERN:
            others["kernel"] = self.kernel
        return ", ".join([self.size.says, *(f"but {name} = {value}" for name, value in others.items())])

    def tuning_scenario(self) -> dict[str, Any]:
        """The client on which layer weights are tuned, once: the first case of `tuning`, on images of its own."""
        scale = self.size
        here, *_ = scale.cases_of(TUNING.name, list(TUNING.table))
        return scale.scenario_of(here, scale.tuning_data or self.data)


def cells_of(
    reproduction: Reproduction,
    scale: Scale,
    *,
    data: str,
    seeds: Sequence[int],
    tuned: Weights | None = None,
    settings: Mapping[str, Any] | None = None,
) -> list[Cell]:
    """All cells in the order of the table, with a trial for each seed.

    Until there are layer weights that were ``tuned`` at this scale, cells that need them have no trials.
    """
    cells = []
    table = reproduction.table
    rows = zip(table.items(), scale.cases_of(reproduction.name, list(table)), strict=True)
    for ((case, figures), size), rounds in product(rows, scale.rounds if reproduction.staged else [None]):
        stage = "" if rounds is None else f", round {rounds}"
        here, fields = f"{size}{stage}", scale.scenario_of(size, data)
        if rounds is not None:
            fields |= {"rounds": rounds, "clients": CLIENTS, "participants": CLIENTS}
        scenario = parse(Scenario, fields, where=f"scale {scale.name}: {size}", error=ConfigError)
        for method in reproduction.methods:
            attack, arguments = _settings(method, reproduction, scale, size.epochs, tuned)
            if method != STRONGEST:
                arguments |= _taken(attack, settings or {})
            probes = method in (AWA, GRANTED)  # what it makes of pure noise is a baseline of the whole row
            trials = [
                Trial(
                    scenario=scenario,
                    attack=attack,
                    arguments=arguments,
                    seed=seed,
                    name=here,
                    noise=probes and seed == seeds[0],
                )
                for seed in seeds
            ]
            reason = "not tuned yet" if method == TUNED and tuned is None else ""
            if figures.get(READ_AS.get(method, method), ()) is None:
                reason = "not run: impractical (paper too)"
            elif scale.most_samples is not None and size.samples > scale.most_samples:
                reason = f"not run: more than {scale.most_samples} images take too long here"
            cells.append(
                Cell(
                    row=f"{case}{stage}",
                    here=here,
                    method=method,
                    figures=figures.get(method),
                    trials=() if reason else tuple(trials),
                    reason=reason,
                )
            )
    return cells


def _settings(
    method: str, reproduction: Reproduction, scale: Scale, epochs: int, tuned: Weights | None
) -> tuple[str, dict[str, Any]]:
    """Attack and settings of a method; all of the paper's share optimizer and regularizers, and most the iterations."""
    iterations = scale.steps(method, epochs, large=reproduction.large)
    common: dict[str, Any] = {"steps": iterations, "learning_rate": scale.attack_rate, **scale.priors}
    awa = {"setting": "paper", **common}
    geng = {**common, "labels": "disclosed"}  # the paper takes labels as known for all
    nodes = {} if scale.geng_nodes is None else {"nodes": scale.geng_nodes}
    return {
        IDLG: ("idlg_fedavg", common),
        AGIC: ("agic", {**common, "average": False}),
        AVERAGED: ("agic", {**common, "average": True}),
        GENG: ("geng_epoch", geng),
        ALL_EPOCHS: ("geng_path", {**geng, **nodes}),
        APPROXIMATION: ("awa", {**awa, "form": "approximation"}),
        LINEAR: ("awa", {**awa, "form": "linear"}),
        AWA: ("awa", awa),
        TUNED: ("awa", {**awa, "q": dict(tuned or {})}),
        GRANTED: ("awa", awa),  # takes labels that are granted: the same trials as AWA's elsewhere
        INFERRED: ("awa", {**awa, "labels": "bias"}),
        JOINT: ("awa", {**awa, "labels": "joint"}),
        STRONGEST: ("strongest", {**scale.strongest}),
    }[method]


def _taken(attack: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that an attack has."""
    return {name: value for name, value in settings.items() if name in inspect.signature(ATTACKS[attack]).parameters}
