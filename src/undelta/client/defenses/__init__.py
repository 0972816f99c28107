"""What a client may do to protect its data: one defense, one file; `DEFENSES` names them all.

A scenario lists them as tables, such as ``{ defense = "clipping", norm = 1.0 }``; they act in that order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any

from undelta.client.defenses.clipping import Clipping
from undelta.client.defenses.defense import Defense, InTraining, OnData, OnUpdate
from undelta.client.defenses.dp_sgd import DpSgd
from undelta.client.defenses.mixup import Mixup
from undelta.client.defenses.noise import Noise, PureNoise
from undelta.client.defenses.pruning import Pruning, TopK
from undelta.client.defenses.quantization import Quantization
from undelta.client.defenses.soteria import Soteria
from undelta.client.defenses.withholding import Withholding
from undelta.errors import ConfigError
from undelta.schema import find, is_import, parse, take_name
from undelta.training import LocalTraining

__all__ = ["DEFENSES", "Defense", "DpSgd", "InTraining", "OnData", "OnUpdate", "check_defenses", "make_defenses"]

DEFENSES: dict[str, type[Defense]] = {
    "clipping": Clipping,
    "noise": Noise,
    "pruning": Pruning,
    "top_k": TopK,
    "quantization": Quantization,
    "withholding": Withholding,
    "mixup": Mixup,
    "soteria": Soteria,
    "dp_sgd": DpSgd,
    "pure_noise": PureNoise,
}


def check_defenses(tables: Sequence[Mapping[str, Any]], training: LocalTraining) -> None:
    """Check what a scenario's tables say, without importing anything: the tables may come from a file."""
    for defense in make_defenses([table for table in tables if not is_import(str(table.get("defense")))]):
        if isinstance(defense, DpSgd):
            defense.check_training(training)


def make_defenses(tables: Sequence[Mapping[str, Any]]) -> tuple[Defense, ...]:
    """The defenses that a scenario's tables name, checked; the user's own are imported."""
    defenses = tuple(_make(table, f"defenses[{number}]") for number, table in enumerate(tables))
    if sum(isinstance(defense, InTraining) for defense in defenses) > 1:
        raise ConfigError("defenses: expected at most one of soteria and dp_sgd, which take the place of plain SGD")
    if any(isinstance(defense, DpSgd) for defense in defenses) and any(isinstance(one, OnData) for one in defenses):
        raise ConfigError("defenses: mixup lets one image into several examples, so dp_sgd's epsilon would be wrong")
    return defenses


def _make(table: Mapping[str, Any], where: str) -> Defense:
    name, settings = take_name(table, "defense", example="clipping", where=where)
    try:
        kind = find("defense", name, DEFENSES)
    except ConfigError as problem:
        raise ConfigError(f"{where}: {problem}") from problem
    if not (isinstance(kind, type) and issubclass(kind, OnData | InTraining | OnUpdate) and is_dataclass(kind)):
        raise ConfigError(f"{where}: expected {name} to be a dataclass of kind OnData, InTraining or OnUpdate")
    return parse(kind, settings, where=f"{where} ({name})", error=ConfigError)
