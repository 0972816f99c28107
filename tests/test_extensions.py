"""Parts of one's own, by name: on the command line and in TOML, imported only when the user names them."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from undelta.cli import app
from undelta.client.datasets import open_dataset
from undelta.client.scenario import Scenario
from undelta.errors import ConfigError, DataError
from undelta.observation.file import save_observation
from undelta.report.write import write_report
from undelta.schema import is_import
from undelta.trials.config import load_weights, make_attack
from undelta.trials.directory import RunDirectory
from undelta.trials.leases import Leases
from undelta.trials.trial import Trial

ROOT = Path(__file__).parents[1]


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current directory, with the example's module in it."""
    shutil.copy(ROOT / "examples" / "own_parts.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("own_parts", None)


def test_the_docs_audit_of_own_parts_runs(beside: Path) -> None:
    page = (ROOT / "docs" / "adding-your-own.md").read_text(encoding="utf-8")
    toml = re.search(r"```toml\n(# own\.toml\n.*?)```", page, re.DOTALL)
    assert toml is not None
    (beside / "own.toml").write_text(toml[1])
    done = CliRunner().invoke(app, ["audit", "own.toml", "--out", "own"])
    assert done.exit_code == 0, done.output
    records = RunDirectory(beside / "own").records()
    assert [(record.attack, record.defense, record.status) for record in records] == [
        ("own_parts:plain", "none", "completed"),
        ("own_parts:plain", "rounded", "completed"),
    ]
    assert records[0].scenario["data"] == "own_parts:stripes"
    assert records[0].observation != records[1].observation


def test_an_own_attack_runs_on_a_recorded_update(beside: Path) -> None:
    from undelta.client.disclose import disclose

    scenario = Scenario(data="own_parts:stripes", num_samples=2, model_arguments={"width": 4, "hidden": 16}, batches=1)
    save_observation(disclose(scenario.draw(0), scenario, seed=0), "seen.safetensors")
    words = ["attack", "seen.safetensors", "--attack", "own_parts:plain", "--set", "tv=0.1", "--steps", "3"]
    done = CliRunner().invoke(app, [*words, "--out", "run"])
    assert done.exit_code == 0, done.output
    (record,) = RunDirectory(beside / "run").records()
    assert (record.attack, record.arguments, record.iterations) == ("own_parts:plain", {"tv": 0.1, "steps": 3}, 3)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("own_parts:nothing", "cannot import the attack 'own_parts:nothing'"),
        ("nowhere:at_all", "cannot import the attack 'nowhere:at_all'"),
        ("own_parts:ROOT", "cannot import|expected the attack"),
    ],
)
def test_an_attack_that_is_not_there_is_one_line(beside: Path, name: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        make_attack(name, {})


def test_a_setting_that_an_own_attack_does_not_have_is_named(beside: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'steps'"):
        make_attack("own_parts:plain", {"stepz": 3})


def test_what_is_no_source_and_no_defense_is_refused(beside: Path) -> None:
    with pytest.raises(DataError, match="to return a Dataset, got GradientMatching"):
        open_dataset("own_parts:plain")
    with pytest.raises(ConfigError, match="a dataclass of kind OnData, InTraining or OnUpdate"):
        _ = Scenario(data="digits", defenses=({"defense": "own_parts:plain"},)).protection
    with pytest.raises(ConfigError, match="defenses\\[0\\]: cannot import the defense"):
        _ = Scenario(data="digits", defenses=({"defense": "own_parts:nothing"},)).protection


def test_a_file_is_no_reason_to_import(beside: Path) -> None:
    (beside / "evil.py").write_text("from pathlib import Path\nPath('imported').touch()\n")
    scenario = Scenario(data="evil:x", model="evil:x", defenses=({"defense": "evil:x"},))
    trial = Trial(scenario=scenario, attack="evil:x")
    RunDirectory(beside / "foreign").prepare(None, [trial], Leases(worker="test"))
    write_report(beside / "foreign")
    (beside / "weights.toml").write_text('attack = "evil:x"\n[q]\n')
    with pytest.raises(ConfigError, match=r"missing|name it yourself"):
        load_weights(beside / "weights.toml")
    assert not (beside / "imported").exists()


@pytest.mark.parametrize("name", ["digits", "./a:b", "C:\\pictures", "a b:c", "a:b:c", "a:", ":b", "", "1a:b"])
def test_other_names_are_no_imports(name: str) -> None:
    assert not is_import(name)
