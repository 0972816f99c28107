"""TOML and command-line words become values here, and end here; and values become TOML again."""

from __future__ import annotations

import inspect
import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from undelta.attacker.attack import Attack
from undelta.attacker.attacks import ATTACKS
from undelta.attacker.weights import Q
from undelta.client.scenario import Scenario
from undelta.errors import ConfigError
from undelta.files import MOST_TEXT, check_text, plain_values, refused
from undelta.schema import call, find, is_import, parse

TEMPLATE = Path(__file__).with_name("scenario.toml")
"""A scenario with every field explained."""
BARE = re.compile(r"[A-Za-z0-9_-]+\Z")


def read_toml(path: str | Path) -> tuple[str, dict[str, Any]]:
    """A TOML file, verbatim and as values."""
    try:
        with refused(str(path), ConfigError), Path(path).open("rb") as file:
            text = file.read(MOST_TEXT + 1).decode()
        check_text(text, marks=",[{=.")
        return text, plain_values(tomllib.loads(text))
    except (ValueError, RecursionError) as problem:
        raise ConfigError(f"{path}: not valid TOML ({problem})") from problem


def load_scenario(path: str | Path) -> Scenario:
    """A scenario from a TOML file whose keys are the fields of `Scenario`."""
    _, values = read_toml(path)
    return parse(Scenario, values, where=str(path), error=ConfigError)


def make_attack(name: str, arguments: Mapping[str, Any]) -> Attack:
    """The attack of that name with these settings."""
    return call(find("attack", name, ATTACKS), arguments, where=f"attack {name}", error=ConfigError)


@dataclass(frozen=True, kw_only=True)
class WeightsFile:
    """The keys of a file of layer weights, as `undelta tune` writes them."""

    attack: str = "awa"
    q: Q
    position: float | None = None
    tv: float | None = None
    bn: float | None = None


def load_weights(path: str | Path, *, attack: str | None = None) -> tuple[str, dict[str, Any]]:
    """An attack and its settings from a file of layer weights; an attack that the user asks for must have some."""
    _, values = read_toml(path)
    file = parse(WeightsFile, values, where=str(path), error=ConfigError)
    if is_import(file.attack) and attack != file.attack:  # a file is never reason enough to import code
        raise ConfigError(f"{path} is for the attack {file.attack}; name it yourself: --attack {file.attack}")
    name = attack or file.attack
    known = inspect.signature(find("attack", name, ATTACKS)).parameters
    arguments = {key: value for key, value in asdict(file).items() if key != "attack" and value is not None}
    for key in arguments:
        if key not in known:
            raise ConfigError(f"{path}: attack {name} has no setting {key!r}; use --attack {file.attack}")
    return name, arguments


def parse_settings(words: Iterable[str]) -> dict[str, Any]:
    """``key=value`` words as settings; values are written as in TOML, plain words need no quotes."""
    settings = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key.isidentifier():
            raise ConfigError(f"expected key=value, got {word!r}")
        if key in settings:
            raise ConfigError(f"{key} is given twice; drop one")
        try:
            settings[key] = plain_values(tomllib.loads(f"value = {value}")["value"])
        except (ValueError, RecursionError):  # not TOML, so a plain word
            settings[key] = value
    return settings


def to_toml(value: Any) -> str:
    """One value on one line; None has no TOML and is left out of lists and tables."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for the code point that JSON leaves bare.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        pairs = [f"{_key(key)} = {to_toml(item)}" for key, item in value.items() if item is not None]
        return f"{{ {', '.join(pairs)} }}" if pairs else "{}"
    if isinstance(value, Sequence):
        return f"[{', '.join(to_toml(item) for item in value if item is not None)}]"
    raise TypeError(f"no TOML for {type(value).__name__}")


def _key(key: str) -> str:
    return key if BARE.match(key) else to_toml(key)


def toml_lines(table: Mapping[str, Any]) -> list[str]:
    """A table's keys and values, a line each."""
    return [f"{_key(key)} = {to_toml(value)}" for key, value in table.items() if value is not None]


def to_document(values: Mapping[str, Any]) -> str:
    """A whole file, as a table of values and below them its tables; empty tables are left out."""
    tables: list[str] = []
    plain: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            tables += ["", f"[{_key(key)}]", *toml_lines(value)] if value else []
        elif isinstance(value, Sequence) and value and all(isinstance(item, Mapping) for item in value):
            tables += [line for item in value for line in ("", f"[[{_key(key)}]]", *toml_lines(item))]
        else:
            plain[key] = value
    return "".join(f"{line}\n" for line in (*toml_lines(plain), *tables))
