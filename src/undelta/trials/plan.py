"""An audit's configuration becomes its trials: scenarios x defenses x attacks x seeds, all checked before any work."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from torch import nn

from undelta.client.datasets import Dataset, open_dataset
from undelta.client.scenario import Scenario
from undelta.errors import ConfigError, UndeltaError
from undelta.models.sketch import sketched
from undelta.observation import ImageSpec
from undelta.schema import check_keys, parse, show, take_name
from undelta.trials.config import make_attack, read_toml
from undelta.trials.diagnosis import Thresholds
from undelta.trials.record import UNDEFENDED
from undelta.trials.trial import Recorded, Trial
from undelta.updates import freeze

Table = Mapping[str, Any]
MOST_SCENARIOS = 10_000  # of one audit


@dataclass(frozen=True, kw_only=True)
class AuditFile:
    """The keys of an audit's TOML."""

    name: str
    seeds: tuple[int, ...] = (0,)
    scenario: Table = field(default_factory=dict)
    """Fields common to all scenarios."""
    vary: Table = field(default_factory=dict)
    """Lists of values per field; every combination is a scenario."""
    scenarios: tuple[Table, ...] = ()
    """Named scenarios with fields of their own, besides those of ``vary``."""
    recorded: tuple[Table, ...] = ()
    """Updates from elsewhere, besides scenarios: observation, and where known truth, model, name."""
    attacks: tuple[Table, ...]
    defenses: tuple[Table, ...] = ()
    """Named sets of fields that protect a scenario."""
    include_undefended: bool = True
    noise: bool = True
    """Whether to see what each attack makes of pure noise, too: cheaply, once per scenario."""
    verdict: Thresholds = field(default_factory=Thresholds)
    auditor: str | None = None
    """Who runs it; the report says so."""
    slurm: Table = field(default_factory=dict)
    """What submitit is told of the cluster, for ``--backend slurm``."""


@dataclass(frozen=True, kw_only=True)
class RecordedTable:
    """One of ``[[recorded]]``."""

    observation: str
    truth: str | None = None
    """The private images, if the auditor has them: what `undelta simulate` wrote, or a folder of pictures."""
    model: str | None = None
    """A custom model's ``package.module:function``, which the user trusts."""
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A checked configuration."""

    name: str
    text: str
    """The TOML, verbatim; of a plan that was made in code, what made it."""
    trials: tuple[Trial, ...]
    """All combinations in order; some may have the same content and so the same key."""
    thresholds: Thresholds = Thresholds()
    slurm: Table = field(default_factory=dict)
    kind: str = "audit"
    """The command that runs it."""
    auditor: str | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """The trials that are to be run, each once."""
        return tuple(dict.fromkeys(trial.key for trial in self.trials))

    def repeats(self) -> list[str]:
        """Says which combinations are the same as others, a line each."""
        first: dict[str, Trial] = {}
        lines: dict[str, None] = {}  # in order, each once
        for trial in self.trials:
            same = first.setdefault(trial.key, trial)
            if same is not trial:
                lines[f"{_whole_name(trial)} is the same as {_whole_name(same)}, which runs for both"] = None
        return list(lines)


def _whole_name(trial: Trial) -> str:
    return f"{trial.name!r}" if trial.defense == UNDEFENDED else f"{trial.name!r} with {trial.defense!r}"


def load_plan(path: str | Path) -> Plan:
    """Read and check a configuration; every mistake is one line that names the key."""
    text, values = read_toml(path)
    return make_plan(text, values, where=str(path))


def make_plan(text: str, values: Table, *, where: str) -> Plan:
    """The same from a configuration at hand."""
    if "attacks" not in values and {"data", "model"} & values.keys():
        raise ConfigError(
            f"{where}: these are the fields of one scenario; an audit has them below [scenario], after a name and "
            "before [[attacks]]. To attack one scenario: undelta simulate"
        )
    file = parse(AuditFile, values, where=where, error=ConfigError)
    if not file.seeds or len(set(file.seeds)) < len(file.seeds):
        raise ConfigError(f"{where}: seeds: expected at least one, each once, got {list(file.seeds)}")
    attacks = list(_attacks(file, where))
    checked = Checks()
    trials = []

    def add(source: Scenario | Recorded, name: str, defense: str, *, first: bool) -> None:
        for (attack, arguments), seed in itertools.product(attacks, file.seeds):
            trial = Trial(scenario=source, attack=attack, arguments=arguments, seed=seed, name=name, defense=defense)
            _ = trial.key  # raises where a value has no place in a file
            trials.append(replace(trial, noise=file.noise and first and seed == file.seeds[0]))

    scenarios, defenses, recorded = _scenarios(file, where), _defenses(file, where), list(_recorded(file, where))
    _check_once([name for name, _ in (*scenarios, *recorded)], f"{where}: scenarios")
    for (name, scenario_fields), (defense, defense_fields) in itertools.product(scenarios, defenses):
        place = (f"{where}: scenario {show(name)}" if name else f"{where}: [scenario]") + (
            "" if defense == UNDEFENDED else f" with defense {defense!r}"
        )
        scenario = parse(Scenario, {**scenario_fields, **defense_fields}, where=place, error=ConfigError)
        checked(scenario, place)
        add(scenario, name, defense, first=defense == defenses[0][0])
    for name, source in recorded:
        add(source, name, UNDEFENDED, first=True)
    return Plan(
        name=file.name,
        text=text,
        trials=tuple(trials),
        thresholds=file.verdict,
        slurm=file.slurm,
        auditor=file.auditor,
    )


def _recorded(file: AuditFile, where: str) -> Iterator[tuple[str, Recorded]]:
    for number, table in enumerate(file.recorded):
        place = f"{where}: recorded[{number}]"
        asked = parse(RecordedTable, table, where=place, error=ConfigError)
        try:
            source = Recorded.of(
                Path(asked.observation), model=asked.model, truth=Path(asked.truth) if asked.truth else None
            )
        except UndeltaError as problem:
            raise ConfigError(f"{place}: {problem}") from problem
        yield asked.name or Path(asked.observation).name.removesuffix(".safetensors"), source


def _attacks(file: AuditFile, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    seen: list[tuple[str, dict[str, Any]]] = []
    if not file.attacks:
        raise ConfigError(f"{where}: attacks: expected at least one [[attacks]]")
    for number, table in enumerate(file.attacks):
        place = f"{where}: attacks[{number}]"
        name, arguments = take_name(table, "attack", example="strongest", where=place)
        try:
            make_attack(name, arguments)
        except ConfigError as problem:
            raise ConfigError(f"{place}: {problem}") from problem
        if (name, arguments) in seen:
            raise ConfigError(f"{place}: {name} with the same settings comes twice; drop one")
        seen.append((name, arguments))
        yield name, arguments


def _scenarios(file: AuditFile, where: str) -> list[tuple[str, dict[str, Any]]]:
    common = _known(file.scenario, f"{where}: [scenario]")
    scenarios = []
    for key, values in _known(file.vary, f"{where}: [vary]").items():
        if not isinstance(values, list) or not values:
            raise ConfigError(f"{where}: [vary]: {key}: expected a list of values, got {show(values)}")
    if math.prod(map(len, file.vary.values())) > MOST_SCENARIOS:
        raise ConfigError(f"{where}: [vary]: expected at most {MOST_SCENARIOS:,} combinations; vary less at a time")
    if file.vary:
        for combination in itertools.product(*file.vary.values()):
            varied = dict(zip(file.vary, combination, strict=True))
            name = ", ".join(f"{key}={_show(value)}" for key, value in varied.items())
            scenarios.append((name, {**common, **varied}))
    scenarios += [(name, {**common, **own}) for name, own in _named(file.scenarios, f"{where}: scenarios")]
    if scenarios or (file.recorded and not common):
        return scenarios
    return [("", common)]


def _defenses(file: AuditFile, where: str) -> list[tuple[str, dict[str, Any]]]:
    defenses = list(_named(file.defenses, f"{where}: defenses"))
    _check_once([UNDEFENDED, *(name for name, _ in defenses)], f"{where}: defenses")
    undefended: list[tuple[str, dict[str, Any]]] = [(UNDEFENDED, {})] if file.include_undefended else []
    if not undefended + defenses:
        raise ConfigError(f"{where}: include_undefended = false leaves nothing to run without any [[defenses]]")
    return undefended + defenses


def _named(tables: Sequence[Table], where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, table in enumerate(tables):
        own = dict(table)
        name = own.pop("name", None)
        if not isinstance(name, str) or not name.strip():
            raise ConfigError(f"{where}[{number}]: name: expected a text, got {name!r}")
        yield name, _known(own, f"{where}[{number}] ({name})")


def _known(table: Table, where: str) -> dict[str, Any]:
    check_keys(table, [known.name for known in fields(Scenario)], where=where, error=ConfigError)
    return dict(table)


def _check_once(names: Sequence[str], where: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{where}: the name {name!r} comes twice; names must differ")


def _show(value: Any) -> str:
    """A value as TOML has it, without quotes, for a name."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}={_show(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_show, value)) + "]"
    return str(value)


class Checks:
    """Looks whether a scenario's data and model exist and fit, each source opened and each model built once."""

    def __init__(self) -> None:
        self._datasets: dict[str, Dataset] = {}
        self._models: dict[str, nn.Module] = {}

    def __call__(self, scenario: Scenario, where: str) -> None:
        """Complain in one line that begins with ``where``."""
        if scenario.data not in self._datasets:
            try:
                self._datasets[scenario.data] = open_dataset(scenario.data)
            except UndeltaError as problem:
                raise ConfigError(f"{where}: data: {problem}") from problem
        dataset, total = self._datasets[scenario.data], sum(scenario.samples)
        if total > len(dataset):
            clients = f" by {scenario.clients} clients together" if scenario.clients > 1 else ""
            raise ConfigError(
                f"{where}: num_samples: expected at most the {len(dataset)} pictures of {scenario.data}, "
                f"got {total}{clients}; ask for fewer, or use a larger source"
            )
        try:
            image = scenario.image_spec(dataset)
        except ConfigError as problem:
            raise ConfigError(f"{where}: classes: {problem}") from problem
        model = repr((scenario.model, sorted(scenario.model_arguments.items()), image))
        if model not in self._models:
            self._models[model] = _sketch(scenario, image, where)
        if scenario.trained:
            try:
                freeze(copy.deepcopy(self._models[model]), scenario.trained)
            except ConfigError as problem:
                raise ConfigError(f"{where}: {problem}") from problem
        for defense in scenario.protection:
            try:
                defense.check(self._models[model])
            except UndeltaError as problem:
                raise ConfigError(f"{where}: defenses: {problem}") from problem


def _sketch(scenario: Scenario, image: ImageSpec, where: str) -> nn.Module:
    try:
        # A built-in model costs neither time nor memory there; a custom one may not work there.
        with nullcontext() if scenario.architecture.custom else sketched():
            return scenario.make_model(image)
    except (UndeltaError, TypeError, ValueError, RuntimeError) as problem:
        raise ConfigError(f"{where}: model: {problem}") from problem
