"""The notebooks in examples/ run from top to bottom, and the documentation shows what they say."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
STEPS = {"attack_your_own_update": 150, "choose_a_defense": 60}
NAMES = list(STEPS)
MOST_BYTES = 400_000


@pytest.fixture(scope="module")
def notebooks() -> ModuleType:
    """scripts/notebooks.py, which is not part of the package."""
    spec = importlib.util.spec_from_file_location("notebooks", ROOT / "scripts" / "notebooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def path_of(name: str) -> Path:
    return ROOT / "examples" / "notebooks" / f"{name}.ipynb"


def code(values: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in values["cells"] if cell["cell_type"] == "code"]


def said(values: dict[str, Any]) -> str:
    outputs = [output for cell in code(values) for output in cell["outputs"]]
    return "".join("".join(output.get("text", "")) for output in outputs)


def test_every_notebook_is_tested(notebooks: ModuleType) -> None:
    assert [path.stem for path in notebooks.NOTEBOOKS] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_holds_the_outputs_of_one_whole_run_and_a_picture(name: str) -> None:
    content = path_of(name).read_bytes()
    assert len(content) < MOST_BYTES
    values = json.loads(content)
    assert [cell["execution_count"] for cell in code(values)] == list(range(1, len(code(values)) + 1))
    outputs = [output for cell in code(values) for output in cell["outputs"]]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 1
    assert all(output.get("name", "stdout") == "stdout" and output["output_type"] != "error" for output in outputs)
    assert f"{STEPS[name]} iterations per phase" in said(values)


@pytest.mark.parametrize("name", NAMES)
def test_the_page_of_a_notebook_is_current(name: str, notebooks: ModuleType) -> None:
    for file, content in notebooks.page_of(path_of(name)).items():
        assert (ROOT / "docs" / "notebooks" / file).read_bytes() == content, "run scripts/notebooks.py --pages"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::RuntimeWarning")
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs(name: str, notebooks: ModuleType) -> None:
    for package in ("nbclient", "ipykernel"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install '.[dev]'")
    quick = {"NOTEBOOK_STEPS": "2", "NOTEBOOK_ROUNDS": "1", "UNDELTA_LPIPS": ""}
    values = notebooks.execute(path_of(name), quick)
    committed = json.loads(path_of(name).read_text(encoding="utf-8"))
    assert "2 iterations per phase" in said(values)
    kinds = [[output["output_type"] for output in cell["outputs"]] for cell in code(values)]
    assert kinds == [[output["output_type"] for output in cell["outputs"]] for cell in code(committed)]
