"""TOML and command-line words become values here, and end here."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from undelta.attacker.attacks import ATTACKS
from undelta.attacker.matching import Attack
from undelta.client.scenario import Scenario
from undelta.errors import ConfigError
from undelta.parsing import call, parse, unknown


def read_toml(path: str | Path) -> tuple[str, dict[str, Any]]:
    """A TOML file, verbatim and as values."""
    try:
        text = Path(path).read_bytes().decode()
        return text, tomllib.loads(text)
    except OSError as problem:
        raise ConfigError(f"{path}: {problem.strerror}") from problem
    except (ValueError, RecursionError) as problem:
        raise ConfigError(f"{path}: not valid TOML ({problem})") from problem


def load_scenario(path: str | Path) -> Scenario:
    """A scenario from a TOML file whose keys are the fields of `Scenario`."""
    _, values = read_toml(path)
    return parse(Scenario, values, where=str(path), error=ConfigError)


def make_attack(name: str, arguments: Mapping[str, Any]) -> Attack:
    """The attack of that name with these settings."""
    if name not in ATTACKS:
        raise ConfigError(unknown("attack", name, ATTACKS))
    return call(ATTACKS[name], arguments, where=f"attack {name}", error=ConfigError)


def parse_settings(words: Iterable[str]) -> dict[str, Any]:
    """``key=value`` words as settings; values are written as in TOML, plain words need no quotes."""
    settings = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key.isidentifier():
            raise ConfigError(f"expected key=value, got {word!r}")
        try:
            settings[key] = tomllib.loads(f"value = {value}")["value"]
        except ValueError:  # not TOML, so a plain word
            settings[key] = value
    return settings
