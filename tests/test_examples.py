"""The scripts in examples/ run as a reader would run them, with fewer iterations."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from undelta import load_observation
from undelta.trials.directory import RunDirectory

EXAMPLES = Path(__file__).parents[1] / "examples"
QUICK = {
    "attack_one_update.py": ["--data", "digits", "--num-samples", "2", "--epochs", "2", "--steps", "3"],
    "compare_attacks.py": ["--data", "digits", "--num-samples", "2", "--steps", "3"],
    "your_own_attack.py": ["--num-samples", "2", "--steps", "3"],
}


@pytest.fixture
def run_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[str, Path], str]:
    """Run a script in this process, which has loaded torch already; returns what it said."""

    def run(name: str, out: Path) -> str:
        monkeypatch.setattr(sys, "argv", [name, *QUICK[name], "--out", str(out)])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run


def test_every_example_is_run_here() -> None:
    # Parts of one's own are named on the command line, in tests/test_extensions.py.
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*QUICK, "own_parts.py"}


def test_one_update_is_saved_attacked_and_scored(tmp_path: Path, run_here: Callable[[str, Path], str]) -> None:
    said = run_here("attack_one_update.py", tmp_path)
    assert re.search(r"completed after 21 iterations.*\nPSNR [\d.]+ dB\n", said)
    assert load_observation(tmp_path / "seen.safetensors").num_samples == 2
    with Image.open(tmp_path / "reconstruction.png") as sheet:
        assert sheet.height > 2 * 96  # two rows


def test_attacks_are_compared_on_one_update_and_what_does_not_apply_is_said(
    tmp_path: Path, run_here: Callable[[str, Path], str]
) -> None:
    said = run_here("compare_attacks.py", tmp_path)
    records = RunDirectory(tmp_path).records()
    assert [record.attack for record in records] == ["ig", "sme", "awa", "strongest"]
    assert len({record.observation for record in records}) == 1
    assert re.search(r"analytic +not applicable: the closed form needs", said)
    assert "strongest" in (tmp_path / "report.html").read_text()


def test_an_attack_a_prior_and_a_model_of_your_own_need_no_registration(tmp_path: Path) -> None:
    name = "your_own_attack.py"  # in a process of its own, since it names its own module
    command = [sys.executable, str(EXAMPLES / name), *QUICK[name], "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    for row in ("total variation", "total variation, symmetry"):
        assert re.search(rf"^{row}: [\d.]+ dB, mismatch", done.stdout, re.MULTILINE)
