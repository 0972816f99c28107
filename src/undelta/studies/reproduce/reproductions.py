"""The seven reproductions as data: cases, methods, published figures, and from these the trials of an audit."""

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
from undelta.studies.reproduce.scales import Scale, find_scale
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
    table: published.Table
    """What the paper prints."""
    methods: tuple[str, ...]
    large: bool = False
    """Whether the paper takes more iterations here."""
    tunes: bool = False
    """Whether layer weights are tuned before its trials run."""
    staged: bool = False
    """Whether updates leak after several numbers of rounds, the scale's, of a federation of several clients."""


COMPARISON = Reproduction(
    name="comparison",
    title="Four methods over ten FedAvg scenarios",
    label="tab_compare_methods",
    shows="iDLG, AGIC, GENG and AWA over ten (N, E, B)",
    table=published.COMPARISON,
    methods=(*RIVALS, AWA, STRONGEST),
)
FIGURE = Reproduction(
    name="figure-n8e32",
    title="Four methods on eight images after 32 full-batch epochs",
    label="fig_compare_full",
    shows="the same four methods at N=8, E=32, B=1, as pictures",
    table=published.FIGURE,
    methods=(*RIVALS, AWA, STRONGEST),
)
ABLATION = Reproduction(
    name="ablation",
    title="What layer weights add to AWA",
    label="fig_awa_woQ",
    shows="approximation only, with linear weights, with enhanced weights at N=16, E=16, B=1",
    table=published.ABLATION,
    methods=(APPROXIMATION, LINEAR, AWA),
)
EPOCHS = Reproduction(
    name="epochs",
    title="More local epochs",
    label="fig_awa_vary_E",
    shows="AWA at N=32, B=4 for E=4, 8, 16 and 32",
    table=published.EPOCHS,
    methods=(AWA, STRONGEST),
)
LARGE = Reproduction(
    name="large",
    title="A large client",
    label="fig_awa_128_64",
    shows="AWA at N=128, E=64, B=4 with five times the iterations",
    table=published.LARGE,
    methods=(AWA, STRONGEST),
    large=True,
)
TUNING = Reproduction(
    name="tuning",
    title="Layer weights by Bayesian optimization",
    label="fig_loss_BO, tab_search_ranges_BO",
    shows="50 trials of Q at N=16, E=32, B=4; then the tuned Q there and in two other scenarios",
    table={
        published.TUNING_CASE: {},
        **{case: {AWA: published.COMPARISON[case][AWA]} for case in (Case(8, 8, 4), Case(32, 16, 4))},
    },
    methods=(APPROXIMATION, AWA, TUNED),
    tunes=True,
)
STAGES = Reproduction(
    name="stages",
    title="Updates leaked at different stages of training",
    label="the third contribution in the introduction",
    shows="AWA at N=16, E=16, B=4 after several numbers of rounds of a federation of four clients",
    table={Case(16, 16, 4): {}},
    methods=(AWA, STRONGEST),
    staged=True,
)

REPRODUCTIONS: Mapping[str, Reproduction] = {
    one.name: one for one in (COMPARISON, FIGURE, ABLATION, EPOCHS, LARGE, TUNING, STAGES)
}


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
    """All cells in the order of the table, with their trials.

    Args:
        reproduction: Which table or figure.
        scale: At which size.
        data: Where images come from.
        seeds: One trial of every cell for each.
        tuned: Layer weights that were tuned at this scale; until there are any, cells that need them have no trials.
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
