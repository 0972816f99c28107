"""The package's own names: what ``from undelta import ...`` gives, and when it is loaded."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import undelta
from undelta.attacker.attacks import ATTACKS

STUB = ast.parse(Path(undelta.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
IMPORTS = [
    (f"undelta.{node.module}", alias.name)
    for node in STUB.body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
]
PARTS = ("canvas", "distances", "labels", "optimizers", "paths", "priors", "replays", "span", "weights")


def test_names_for_people_and_names_for_type_checkers_are_the_same() -> None:
    assert sorted(name for _, name in IMPORTS) == sorted(undelta.__all__)


@pytest.mark.parametrize(("module", "name"), IMPORTS)
def test_every_name_is_what_its_module_has(module: str, name: str) -> None:
    __import__(module)
    assert getattr(undelta, name) is getattr(sys.modules[module], name)


def test_every_attack_is_among_the_names() -> None:
    assert set(ATTACKS) < set(undelta.__all__)


@pytest.mark.parametrize("part", PARTS)
def test_the_parts_of_methods_have_short_paths(part: str) -> None:
    assert getattr(undelta, part) is importlib.import_module(f"undelta.attacker.{part}")


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="No undelta attribute awaa"):
        _ = undelta.awaa  # type: ignore[attr-defined]


def test_names_are_listed_before_they_are_loaded() -> None:
    assert set(undelta.__all__) <= set(dir(undelta))


@pytest.mark.parametrize("code", ["import undelta, undelta.cli; dir(undelta)", "from undelta import UndeltaError"])
def test_torch_is_not_loaded_before_it_is_needed(code: str) -> None:
    check = f"{code}; import sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.strip() == "False"


def test_nothing_inside_imports_the_package_by_its_own_names() -> None:
    """Both sides meet in these names; an attacker that imported them would hold the client's, too."""
    for path in Path(undelta.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                assert "undelta" not in [alias.name for alias in node.names], path
            elif isinstance(node, ast.ImportFrom):
                assert node.module != "undelta", path
