"""JSON from files, field by field: what is absent or null, and what is of the wrong kind, told apart."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NoReturn

from undelta.errors import DataError


class Fields:
    """The fields of one JSON object; every complaint names the file and the key."""

    def __init__(self, values: object, path: Path) -> None:
        self.path = path
        if not isinstance(values, dict):
            raise DataError(f"{path}: expected a JSON object, got {_show(values)}")
        self.values: dict[str, Any] = values

    def text(self, key: str) -> str:
        """A text that must be there."""
        value = self.values.get(key)
        return value if isinstance(value, str) else self._refuse(key, "a text")

    def optional_text(self, key: str) -> str | None:
        """A text, or None."""
        return None if self.values.get(key) is None else self.text(key)

    def whole(self, key: str) -> int:
        """A whole number that must be there."""
        value = self.values.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else self._refuse(key, "a whole number")

    def optional_whole(self, key: str) -> int | None:
        """A whole number, or None."""
        return None if self.values.get(key) is None else self.whole(key)

    def number(self, key: str) -> float | None:
        """A finite number, or None."""
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._refuse(key, "a number or null")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        return number if math.isfinite(number) else self._refuse(key, "a finite number or null")

    def flag(self, key: str) -> bool | None:
        """True or false, or None."""
        value = self.values.get(key)
        return value if value is None or isinstance(value, bool) else self._refuse(key, "true, false or null")

    def table(self, key: str) -> dict[str, Any]:
        """An object; none is an empty one."""
        value = self.values.get(key)
        if value is None:
            return {}
        return value if isinstance(value, dict) else self._refuse(key, "an object or null")

    def tables(self, key: str) -> list[Fields]:
        """A list of objects; none is an empty one."""
        value = self.values.get(key)
        if value is None:
            return []
        return [Fields(item, self.path) for item in value] if isinstance(value, list) else self._refuse(key, "a list")

    def texts(self, key: str) -> list[str]:
        """A list of texts; none is an empty one."""
        value = self.values.get(key)
        if value is None:
            return []
        sound = isinstance(value, list) and all(isinstance(item, str) for item in value)
        return list(value) if sound else self._refuse(key, "a list of texts")

    def _refuse(self, key: str, expected: str) -> NoReturn:
        raise DataError(f"{self.path}: {key}: expected {expected}, got {_show(self.values.get(key))}")


def read_text(path: Path) -> str:
    """A text file."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise DataError(f"{path}: cannot be read ({problem})") from problem


def read_json(path: Path) -> Any:
    """A JSON file."""
    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError) as problem:
        raise DataError(f"{path}: not valid JSON ({problem})") from problem


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
