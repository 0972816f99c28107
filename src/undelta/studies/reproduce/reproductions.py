"""The seven reproductions of ``reproductions.toml``: cases, methods, published figures, and from these trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from undelta.client.scenario import Scenario
from undelta.errors import ConfigError
from undelta.schema import parse, unknown
from undelta.studies.reproduce import published
from undelta.studies.reproduce.published import AGIC, APPROXIMATION, AWA, GENG, IDLG, LINEAR, Case
from undelta.studies.reproduce.results import Cell
from undelta.studies.reproduce.scales import Scale, find_scale, read_named
from undelta.trials.trial import Trial

STRONGEST = "strongest (ours)"
TUNED = "Q tuned here"
RIVALS = (IDLG, AGIC, GENG)
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
    """Whether layer weights are tuned before its trials run."""
    staged: bool = False
    """Whether updates leak after several numbers of rounds, the scale's, of a federation of several clients."""

    @property
    def table(self) -> published.Table:
        """What the paper prints; nothing where it has no figures of a case."""
        printed = published.TABLES.get(self.figures or self.label, {})
        return {case: printed.get(case, {}) for case in (Case(*case) for case in self.cases)} or printed


REPRODUCTIONS = read_named(Reproduction, __file__)
COMPARISON, FIGURE, ABLATION, EPOCHS, LARGE, TUNING, STAGES = (
    REPRODUCTIONS[name] for name in ("comparison", "figure-n8e32", "ablation", "epochs", "large", "tuning", "stages")
)


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

    @property
    def size(self) -> Scale:
        """The scale behind its name."""
        return find_scale(self.scale)

    def cells(self, name: str, tuned: Weights | None) -> list[Cell]:
        """The cells of one of the reproductions."""
        return cells_of(REPRODUCTIONS[name], self.size, data=self.data, seeds=self.seeds, tuned=tuned)


def cells_of(
    reproduction: Reproduction, scale: Scale, *, data: str, seeds: Sequence[int], tuned: Weights | None = None
) -> list[Cell]:
    """All cells in the order of the table, with a trial for each seed.

    Until there are layer weights that were ``tuned`` at this scale, cells that need them have no trials.
    """
    cells = []
    for (case, figures), rounds in product(reproduction.table.items(), scale.rounds if reproduction.staged else [None]):
        stage = "" if rounds is None else f", round {rounds}"
        here, fields = f"{scale.case(case)}{stage}", scale.scenario_of(case, data)
        if rounds is not None:
            fields |= {"rounds": rounds, "clients": CLIENTS, "participants": CLIENTS}
        scenario = parse(Scenario, fields, where=f"scale {scale.name}: {scale.case(case)}", error=ConfigError)
        for method in reproduction.methods:
            attack, arguments = _settings(method, reproduction, scale, tuned)
            trials = [
                Trial(scenario=scenario, attack=attack, arguments=arguments, seed=seed, name=here) for seed in seeds
            ]
            reason = "not tuned yet" if method == TUNED and tuned is None else ""
            if figures.get(method, ()) is None:
                reason = "not run: impractical (paper too)"
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
    method: str, reproduction: Reproduction, scale: Scale, tuned: Weights | None
) -> tuple[str, dict[str, Any]]:
    """Attack and settings of a method; all of the paper's share iterations, optimizer and regularizers."""
    iterations = scale.large_iterations if reproduction.large else scale.iterations
    common: dict[str, Any] = {"steps": iterations, "learning_rate": scale.attack_rate, **scale.priors}
    awa = {"setting": "paper", **common}
    geng: dict[str, Any] = {"labels": "disclosed"}  # the paper takes labels as known for all
    if scale.geng_nodes is not None:
        geng["nodes"] = scale.geng_nodes
    return {
        IDLG: ("idlg_fedavg", common),
        AGIC: ("agic", common),
        GENG: ("geng", {**common, **geng}),
        APPROXIMATION: ("awa", {**awa, "form": "approximation"}),
        LINEAR: ("awa", {**awa, "form": "linear"}),
        AWA: ("awa", awa),
        TUNED: ("awa", {**awa, "q": dict(tuned or {})}),
        STRONGEST: ("strongest", {**scale.strongest, **scale.priors}),
    }[method]
