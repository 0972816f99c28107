"""The examples in docstrings are run as they stand."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import undelta

SOURCE = Path(undelta.__file__).parent
MODULES = sorted(
    ".".join(("undelta", *path.relative_to(SOURCE).with_suffix("").parts))
    for path in SOURCE.rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)
CENTRAL = (
    "Scenario",
    "disclose",
    "Observation",
    "save_observation",
    "awa",
    "strongest",
    "GradientMatching",
    "score",
    "Trial",
    "run",
    "write_report",
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_do_what_they_say(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0, f"{name}: its examples were not found"
    assert result.failed == 0, capsys.readouterr().out


@pytest.mark.parametrize("name", CENTRAL)
def test_central_names_have_an_example(name: str) -> None:
    assert ">>> " in (getattr(undelta, name).__doc__ or "")
