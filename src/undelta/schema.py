"""Strict reading of mappings (TOML scenarios, JSON metadata) into dataclasses.

Every complaint names the place, the key, what was expected and what came, in one line.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import math
import re
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from undelta.errors import ConfigError, DataError, UndeltaError
from undelta.files import load_json

T = TypeVar("T")
Number = TypeVar("Number", int, float)


def parse(cls: type[T], values: object, *, where: str, error: type[UndeltaError]) -> T:
    """An instance of the dataclass ``cls`` from ``values``; unknown, missing or ill-typed keys are errors."""
    if not isinstance(values, Mapping):
        raise error(f"{where}: expected a table of settings, got {show(values)}")
    assert is_dataclass(cls)  # noqa: S101
    known = {field.name: field for field in fields(cls) if field.init}
    check_keys(values, known, where=where, error=error)
    missing = [
        name
        for name, field in known.items()
        if name not in values and field.default is MISSING and field.default_factory is MISSING
    ]
    if missing:
        raise error(f"{where}: missing {', '.join(missing)}")
    return _apply(cls, values, where, error)


def read_json(cls: type[T], path: Path) -> T:
    """An instance of the dataclass ``cls`` from a JSON file."""
    return parse(cls, load_json(path), where=str(path), error=DataError)


def call(function: Callable[..., T], values: Mapping[str, object], *, where: str, error: type[UndeltaError]) -> T:
    """``function(**values)``, the values checked against its keyword arguments and their types."""
    check_keys(values, inspect.signature(function).parameters, where=where, error=error)
    return _apply(function, values, where, error)


def check_keys(values: Iterable[str], known: Iterable[str], *, where: str, error: type[UndeltaError]) -> None:
    """Refuse keys that are not known."""
    for key in values:
        if key not in known:
            raise error(f"{where}: {unknown('key', key, known)}")


def _apply(function: Callable[..., T], values: Mapping[str, object], where: str, error: type[UndeltaError]) -> T:
    hints = _hints(function)
    parsed = {key: _convert(hints[key], value, f"{where}: {key}", error) for key, value in values.items()}
    try:
        return function(**parsed)
    except UndeltaError as problem:  # its own checks do not know where the values came from
        raise error(f"{where}: {problem}") from problem


@functools.cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    return get_type_hints(function)


def is_import(name: str) -> bool:
    """Whether a name is of the form ``package.module:function``."""
    return re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", name) is not None


def import_part(name: str, what: str) -> Callable[..., Any]:
    """The user's own part behind ``package.module:function``; imported because the user names it, and only then."""
    module, _, function = name.partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)  # perhaps a file beside the scenario
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError, TypeError) as problem:
        raise ConfigError(f"cannot import the {what} {name!r}: {problem}") from problem
    if not callable(found):
        raise ConfigError(f"expected the {what} {name!r} to be a function or a class, got {type(found).__name__}")
    return found  # type: ignore[no-any-return]


def take_name(table: Mapping[str, Any], what: str, *, example: str, where: str) -> tuple[str, dict[str, Any]]:
    """The name of a part that a table stands for, and its settings."""
    settings = dict(table)
    name = settings.pop(what, None)
    if not isinstance(name, str):
        raise ConfigError(f'{where}: {what}: expected a name such as {what} = "{example}", got {name!r}')
    return name, settings


def find(what: str, name: str, parts: Mapping[str, Callable[..., T]]) -> Callable[..., T]:
    """The part of that name: a built-in one, or the user's own ``package.module:function``."""
    if is_import(name):
        return import_part(name, what)
    if name not in parts:
        raise ConfigError(unknown(what, name, parts))
    return parts[name]


def unknown(what: str, name: object, choices: Iterable[str]) -> str:
    """Says that ``name`` is not among the choices, with the nearest one if there is one."""
    names = sorted(choices)
    near = difflib.get_close_matches(str(name), names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"unknown {what} {str(name)[:80]!r}; {hint}choose from {', '.join(names)}"


def _convert(hint: Any, value: object, where: str, error: type[UndeltaError]) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        # Of a table and something else, the value says which is meant.
        inner = [argument for argument in arguments if argument is not type(None)]
        fitting = [kind for kind in inner if is_dataclass(kind) == isinstance(value, Mapping)]
        if isinstance(value, Mapping) and len(fitting) > 1:  # of several tables, the one that knows the most keys
            fitting.sort(key=lambda kind: len(set(value) & {field.name for field in fields(kind)}), reverse=True)
        return _convert((fitting or inner)[0], value, where, error)
    if origin is Literal:
        if value not in arguments:
            raise error(f"{where}: {unknown('value', value, map(str, arguments))}")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise error(f"{where}: expected a list, got {show(value)}")
        if arguments[-1] is not Ellipsis and len(value) != len(arguments):
            raise error(f"{where}: expected {len(arguments)} entries, got {len(value)}")
        kinds = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
        return tuple(
            _convert(kind, item, f"{where}[{index}]", error)
            for index, (kind, item) in enumerate(zip(kinds, value, strict=True))
        )
    if origin in (dict, Mapping) or (origin is not None and issubclass(origin, Mapping)):
        if not isinstance(value, Mapping):
            raise error(f"{where}: expected a table, got {show(value)}")
        if arguments[1] is Any:
            return dict(value)
        return {key: _convert(arguments[1], item, f"{where}: {key}", error) for key, item in value.items()}
    if is_dataclass(hint):
        return parse(hint, value, where=where, error=error)  # type: ignore[arg-type]
    # bool is a subclass of int, but `epochs = true` is a mistake; an int is a fine float.
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise error(f"{where}: expected a number, got one too large") from None
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise error(f"{where}: expected {_NAMES.get(hint, hint.__name__)}, got {show(value)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise error(f"{where}: expected a finite number, got {value}")
    return value


_NAMES: dict[type, str] = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def show(value: object) -> str:
    """A value from outside in a complaint, which stays short however long it is."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def numbers(option: str, text: str, kind: Callable[[str], Number]) -> tuple[Number, ...]:
    """Numbers of an option, between commas or blanks.

    Examples:
        >>> numbers("--seeds", "0,1, 2", int)
        (0, 1, 2)
    """
    try:
        values = tuple(kind(word) for word in text.replace(",", " ").split())
    except ValueError:
        values = ()
    if not values:
        what = "whole numbers" if kind is int else "numbers"
        raise ConfigError(f"{option}: expected {what} separated by commas, got {text[:80]!r}")
    return values
