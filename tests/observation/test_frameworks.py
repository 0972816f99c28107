"""Files that other frameworks wrote (docs/frameworks.md) are read, and reveal the client's picture."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from undelta import Private, analytic, load_observation, score
from undelta.studies.observe import observe_job

FILES = Path(__file__).parent / "frameworks"
PAGE = Path(__file__).parents[2] / "docs" / "frameworks.md"
PAIRS = {
    "fedml": ("before.pt", "after.pt"),
    "openfl": ("before.npz", "after.npz"),
    "openfl, saved by fx": ("before.npz", "output_model.pt"),
    "appfl": ("before.pt", "after.pt"),
    "fedbiomed": ("before.npz", "after.npz"),
    "substra": ("before.pt", "after.pt"),
}


@pytest.fixture(scope="module")
def task() -> ModuleType:
    """The model and the picture that `make.py` used."""
    spec = importlib.util.spec_from_file_location("tiny", FILES / "tiny.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def convert(framework: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the page's conversion of this framework's files, with the files beside it."""
    title = {"fedbiomed": "Fed-BioMed"}[framework]
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {title}\n")[1].split("\n## ")[0]
    (code,) = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(folder)
    exec(compile(code, title, "exec", dont_inherit=True), {})  # noqa: S102


@pytest.mark.parametrize("name", PAIRS)
def test_a_framework_s_own_files_become_an_observation_that_reveals_the_picture(
    name: str, task: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    framework = name.partition(",")[0]
    for path in (FILES / framework).iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    if framework == "fedbiomed":
        pytest.importorskip("msgpack", reason="msgpack is not installed; Ray brings it: pip install '.[ray]'")
        convert(framework, tmp_path, monkeypatch)
    monkeypatch.syspath_prepend(str(FILES))
    before, after = PAIRS[name]
    observe_job(
        tmp_path / before,
        tmp_path / after,
        model="tiny:tiny",
        model_arguments={},
        num_samples=1,
        shape="1,4,4",
        classes=None,
        mean="0",
        std="1",
        training={"epochs": 1, "batches": 1, "learning_rate": task.RATE},
        labels=None,
        out=tmp_path / "seen.safetensors",
    )
    seen = load_observation(tmp_path / "seen.safetensors", model="tiny:tiny")
    found = analytic()(seen, seed=0)
    assert found.labels.tolist() == [task.LABEL]
    psnr = score(found, Private(images=task.picture(), labels=found.labels)).psnr
    assert psnr is not None
    assert psnr > 40


def test_every_framework_of_the_page_was_tried_in_the_version_that_it_names() -> None:
    rows = dict(re.findall(r"^\| ([\w-]+)[^|]* \| ([\d.]+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert len(rows) == len({name.partition(",")[0] for name in PAIRS})
    for title, tried in rows.items():
        made = (FILES / title.lower().replace("-", "") / "made.txt").read_text()
        assert re.search(rf"^\w+ {re.escape(tried)}(\.\d+)*, torch ", made), title
