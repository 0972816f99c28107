"""The workflow for other teams: it is valid, the page shows it as it is, and its one command decides as it says."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from undelta.cli import app
from undelta.trials.plan import load_plan

ROOT = Path(__file__).parents[1]
FILE = ROOT / "examples" / "ci" / "undelta.yml"
PAGE = ROOT / "docs" / "ci-gate.md"
LEAKS = """
name = "small"
seeds = [0]
[scenario]
data = "faces"
image_size = 12
num_samples = 1
model = "mlp"
model_arguments = { hidden = [8] }
epochs = 1
batches = 1
learning_rate = 0.05
[[attacks]]
attack = "analytic"
"""
HOLDS = LEAKS.replace('attack = "analytic"', 'attack = "ig"\nsteps = 1')


def steps() -> list[dict[str, Any]]:
    workflow = yaml.safe_load(FILE.read_text())
    (job,) = workflow["jobs"].values()
    return list(job["steps"])


def commands() -> list[str]:
    """Every line that calls undelta, in order."""
    lines = [line for step in steps() for line in step.get("run", "").splitlines()]
    return [line for line in lines if line.startswith("undelta ")]


def run(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    """Exactly this command, with the undelta that is tested here."""
    program, *words = shlex.split(command)
    assert program == "undelta"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": os.devnull, "UNDELTA_LPIPS": ""}
    return subprocess.run(
        [sys.executable, "-m", "undelta", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_the_workflow_has_the_stages_that_the_page_promises() -> None:
    workflow = yaml.safe_load(FILE.read_text())
    assert set(workflow[True]) == {"pull_request", "workflow_dispatch"}  # YAML reads `on` as true
    assert workflow["permissions"] == {"contents": "read"}
    assert [command.split()[1] for command in commands()] == ["fetch", "audit", "report"]
    used = [step["uses"].partition("@")[0] for step in steps() if "uses" in step]
    assert used == ["actions/checkout", "actions/setup-python", "actions/cache", "actions/upload-artifact"]
    (cache,) = [step for step in steps() if step.get("uses", "").startswith("actions/cache@")]
    assert cache["with"]["path"] == "~/.cache/undelta"


def test_the_report_is_uploaded_also_when_the_gate_was_not_passed() -> None:
    names = [step.get("name") for step in steps()]
    for step in steps()[names.index("Audit") + 1 :]:
        assert step["if"] == "${{ !cancelled() }}"
    assert "if" not in steps()[names.index("Audit")]
    assert not any(step.get("continue-on-error") for step in steps() if step.get("name") == "Audit")


def test_options_of_the_workflow_exist() -> None:
    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for command in commands():
        _, name, *words = shlex.split(command)
        options = {option for parameter in known[name].params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options


def test_the_page_shows_the_files_as_they_are() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert f"```yaml\n{FILE.read_text()}```" in text
    assert f"```toml\n{FILE.with_name('audit.toml').read_text()}```" in text
    assert next(command for command in commands() if " audit " in command) in text


def test_the_configuration_can_be_run() -> None:
    assert len(load_plan(FILE.with_name("audit.toml")).trials) == 4


@pytest.mark.parametrize(("configuration", "code"), [(HOLDS, 0), (LEAKS, 1)], ids=["holds", "leaks"])
def test_the_gates_command_decides_by_its_exit_code(tmp_path: Path, configuration: str, code: int) -> None:
    (tmp_path / "privacy").mkdir()
    (tmp_path / "privacy" / "audit.toml").write_text(configuration)
    _, audit, report = commands()
    done = run(tmp_path, audit)
    assert done.returncode == code, done.stderr
    assert ("Gate failed: 1 image of faces, mlp, 1 epoch: ssim" in done.stderr) == (code == 1)
    assert run(tmp_path, report).returncode == 0
    (upload,) = [step for step in steps() if step.get("uses", "").startswith("actions/upload-artifact@")]
    for path in upload["with"]["path"].split():
        assert (tmp_path / path).is_file(), path
