"""`undelta audit` from outside: exit codes, one line per mistake, Ctrl-C, gates, and the demo as a small audit."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from undelta.cli import main
from undelta.cli.progress import Terminal
from undelta.errors import ConfigError
from undelta.files import to_json
from undelta.studies import demo as jobs
from undelta.studies.audit import run_plan
from undelta.trials.directory import RunDirectory
from undelta.trials.gates import parse_gates
from undelta.trials.leases import Leases, scan
from undelta.trials.plan import load_plan
from undelta.trials.pool import Workers, available_cores
from undelta.trials.tasks import Progress

TOML = """
name = "small"
[scenario]
data = "faces"
image_size = 12
num_samples = 2
model = "mlp"
model_arguments = { hidden = [4] }
batches = 1
learning_rate = 0.05
[vary]
epochs = [1, 2]
[[attacks]]
attack = "awa"
steps = 12
[[attacks]]
attack = "idlg"
"""
BROKEN = """
from pathlib import Path
from torch import nn
class Model(nn.Sequential):
    def forward(self, images):
        if not Path(__file__).with_name("mended").exists():
            raise RuntimeError("it is broken")
        return super().forward(images)
def build():
    return Model(nn.Flatten(), nn.Linear(144, 2))
"""


@dataclass(frozen=True, kw_only=True)
class Finished:
    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNDELTA_LPIPS", "")
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)
    monkeypatch.setenv("COLUMNS", "200")


class Here:
    """Runs the command line in this process; its workers are processes of their own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capfd = monkeypatch, capfd

    def __call__(self, *words: str | Path) -> Finished:
        self.monkeypatch.setattr(sys, "argv", ["undelta", "audit", *map(str, words)])
        self.capfd.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main()
        printed = self.capfd.readouterr()
        assert isinstance(stopped.value.code, int)
        return Finished(code=stopped.value.code, out=printed.out, err=printed.err)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Here:
    return Here(monkeypatch, capfd)


@pytest.fixture
def configuration(tmp_path: Path) -> Path:
    path = tmp_path / "audit.toml"
    path.write_text(TOML)
    return path


def records(out: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(out.glob("trials/*/record.json"))]


def one_line(finished: Finished) -> bool:
    lines = finished.err.splitlines()
    return finished.code == 2 and len(lines) == 1 and lines[0].startswith("undelta: ") and not finished.out


# A whole audit


def test_an_audit_runs_judges_and_gates(here: Here, configuration: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    finished = here(configuration, "--out", out, "--workers", "1")
    assert (finished.code, finished.err) == (0, ""), finished
    assert "epochs=1: attack failed. This says nothing about safety." in finished.out
    said = " ".join(finished.out.split())  # however wide the terminal is
    assert "Worst case of 2 attacks and 1 seed (1 trial completed, 1 trial not applicable)." in said
    assert sorted(record["status"] for record in records(out)) == ["completed"] * 2 + ["not applicable"] * 2
    assert (out / "audit.toml").read_text() == TOML
    verdicts = json.loads((out / "verdict.json").read_text())["verdicts"]
    assert [(verdict["scenario"], verdict["defense"]) for verdict in verdicts] == [
        ("epochs=1", "none"),
        ("epochs=2", "none"),
    ]
    worst = max(image["psnr"] for record in records(out) for image in record["images"])
    assert max(verdict["worst"]["psnr"] for verdict in verdicts) == worst

    # Nothing is left to do; what was measured is judged again, and gates decide.
    before = {path: path.stat().st_mtime_ns for path in out.glob("trials/*/*")}
    strict = here(configuration, "--out", out, "--fail-above", "psnr=1", "--fail-above", "ssim=0.99")
    assert strict.code == 1
    lines = [line for line in strict.err.splitlines() if line.startswith("Gate failed: ")]
    assert [line.partition(": ")[2].partition(":")[0] for line in lines] == ["epochs=1", "epochs=2"]
    assert all("psnr" in line and "above 1" in line for line in lines)
    assert here(configuration, "--out", out, "--fail-above", "psnr=99", "--fail-below", "mse=1e-9").code == 0
    assert {path: path.stat().st_mtime_ns for path in out.glob("trials/*/*")} == before


def test_failed_trials_give_exit_code_3_and_run_again_only_when_asked(
    here: Here, configuration: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fragile_model.py").write_text(BROKEN)
    monkeypatch.chdir(tmp_path)
    text = TOML.replace('"mlp"', '"fragile_model:build"').replace("model_arguments = { hidden = [4] }", "")
    configuration.write_text(text.replace("[1, 2]", "[1]").replace("idlg", "ig"))
    words: list[str | Path] = [configuration, "--out", tmp_path / "out", "--workers", "1"]
    finished = here(*words)
    assert finished.code == 3
    assert finished.err.count("RuntimeError: it is broken") == 2
    assert "--retry-failed" in finished.err
    assert "not measured. Nothing was measured" in finished.out
    assert "(2 trials failed)" in finished.out
    assert {record["error"] for record in records(tmp_path / "out")} == {"RuntimeError: it is broken"}

    (tmp_path / "mended").touch()
    assert here(*words).code == 3
    mended = here(*words, "--retry-failed")
    assert (mended.code, mended.err) == (0, "")
    assert {record["status"] for record in records(tmp_path / "out")} == {"completed"}


# Mistakes


@pytest.mark.parametrize(
    ("change", "words", "complaint"),
    [
        (('"awa"', '"awaa"'), [], "unknown attack 'awaa'; did you mean 'awa'? choose from"),
        (('"mlp"', '"mpl"'), [], "unknown model 'mpl'; choose one of"),
        (
            ("learning_rate", "learning_rte"),
            [],
            "unknown key 'learning_rte'; did you mean 'learning_rate'? choose from",
        ),
        (("num_samples = 2", "num_samples = 201"), [], "num_samples: expected at most the 200 pictures of faces"),
        (("[1, 2]", "[0]"), [], "expected epochs >= 1, got epochs=0"),
        (("= 0.05", "= -0.05"), [], "expected learning_rate > 0, got learning_rate=-0.05"),
        (("", ""), ["--backend", "slrum"], "--backend: unknown backend 'slrum'; did you mean 'slurm'? choose from"),
        (("", ""), ["--fail-above", "lpips=0.1"], "use --fail-below lpips=0.1"),
        (("", ""), ["--fail-above", "ssim"], "expected key=value, got 'ssim'"),
        (("", ""), ["--fail-below", "lpips=0.1"], "undelta fetch lpips"),
        (("= 12", "= 8"), ["--fail-above", "ssim=0.5"], "SSIM needs images of 11 pixels a side, got 8"),
        (("", ""), ["--junit", os.sep], f"cannot write {os.sep}: it is a folder"),
        (("", ""), ["--sarif", f"{os.devnull}/deep/found.sarif"], f"cannot make the directory {os.devnull}/deep"),
    ],
)
def test_a_mistake_is_one_line_before_any_work(
    here: Here, configuration: Path, tmp_path: Path, change: tuple[str, str], words: list[str], complaint: str
) -> None:
    configuration.write_text(TOML.replace(*change, 1))
    finished = here(configuration, "--out", tmp_path / "out", *words)
    assert one_line(finished), finished
    assert complaint in finished.err
    assert list(tmp_path.iterdir()) == [configuration]


def test_a_metric_whose_weights_are_missing_is_said_before_any_work(
    here: Here, configuration: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNDELTA_LPIPS", str(tmp_path / "absent"))
    finished = here(configuration, "--out", tmp_path / "out")
    assert one_line(finished), finished
    assert "UNDELTA_LPIPS" in finished.err
    assert list(tmp_path.iterdir()) == [configuration]


def test_a_file_in_the_directorys_place_is_one_line(here: Here, configuration: Path, tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    finished = here(configuration, "--out", tmp_path / "out")
    assert one_line(finished), finished
    assert "is a file" in finished.err


def test_more_threads_than_cores_are_allowed_but_said(configuration: Path, tmp_path: Path) -> None:
    configuration.write_text(TOML.replace('"awa"\nsteps = 12', '"idlg"\nsteps = 5'))  # applies nowhere, so it is quick
    said: list[str] = []
    cores = available_cores()
    done = run_plan(
        load_plan(configuration), out=tmp_path / "out", workers=Workers(count=1, threads=cores + 1), say=said.append
    )
    assert said == [f"Note: 1 x {cores + 1} threads share {cores} cores; they will wait for each other."]
    assert done.failed == ()
    with pytest.raises(ConfigError, match="workers >= 1"):
        run_plan(load_plan(configuration), out=tmp_path / "out", workers=Workers(count=0))


# Interruption


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_audit_ends_at_once_and_says_how_to_go_on(
    configuration: Path, tmp_path: Path, sent: signal.Signals
) -> None:
    configuration.write_text(TOML.replace("steps = 12", "steps = 100000000"))
    out = tmp_path / "out"
    terminal, screen = pty.openpty()
    # A shell that runs this in the background makes children ignore Ctrl-C; take that back.
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from undelta.cli import main; main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, "audit", str(configuration), "--out", str(out), "--workers", "2"],
        stdout=subprocess.PIPE,
        stderr=screen,
        start_new_session=True,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(screen)
    shown = b""
    os.set_blocking(terminal, False)
    try:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline and process.poll() is None:
            shown += drain(terminal)
            if len(list(out.glob("trials/*/checkpoint.pt"))) == 2 and b"2 running" in shown:
                break
            time.sleep(0.05)
        began = time.monotonic()
        if sent == signal.SIGINT:
            os.killpg(process.pid, sent)  # as a terminal does: to everyone in the group
        else:
            process.send_signal(sent)
        while process.poll() is None and time.monotonic() < began + 120:
            shown += drain(terminal)
            time.sleep(0.02)
        seconds = time.monotonic() - began
        shown += drain(terminal)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        printed = process.communicate()[0]
        os.close(terminal)
    text = shown.decode()
    assert process.returncode == 130, text
    assert seconds < 30
    assert "Interrupted: the same command resumes from the last checkpoints." in text
    assert "Traceback" not in text
    assert "0 of 4 trials done" in text  # the live overview
    assert "epochs=1 | awa | seed 0" in text
    assert printed == b""
    assert len(list(out.glob("trials/*/checkpoint.pt"))) == 2
    assert not [found for folder in out.glob("trials/*") for found in scan(folder)]


def drain(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 20)
    except (BlockingIOError, OSError):  # nothing new, or nobody at the other end any more
        return b""


def test_nothing_is_shown_where_nobody_watches(capfd: pytest.CaptureFixture[str]) -> None:
    with Terminal().trials({}) as show:
        show(Progress(total=1, done=1, not_applicable=0, failed=0, running={}))
    assert capfd.readouterr() == ("", "")


# The demo


@pytest.fixture
def small_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    text = jobs.DEMO_TOML.replace("image_size = 32", "image_size = 12").replace("num_samples = 8", "num_samples = 4")
    text = text.replace("steps = 120", "steps = 3").replace("rollout_steps = 100", "steps = 2\nrollout_steps = 2")
    monkeypatch.setattr(jobs, "DEMO_TOML", text)


def test_the_demo_is_an_audit_of_two_trials(small_demo: None, tmp_path: Path) -> None:
    made = jobs.demo_job(tmp_path / "demo", seed=3)
    assert [(record.attack, record.seed, record.status) for record in made] == [
        ("awa", 3, "completed"),
        ("strongest", 3, "completed"),
    ]
    assert list(map(to_json, RunDirectory(tmp_path / "demo").records())) == list(map(to_json, made))
    assert (tmp_path / "demo" / "reconstruction.png").exists()
    assert len(records(tmp_path / "demo")) == 2
    assert len(list((tmp_path / "demo").glob("trials/*/pictures.safetensors"))) == 2
    (verdict,) = json.loads((tmp_path / "demo" / "verdict.json").read_text())["verdicts"]
    assert verdict["trials"] == {"completed": 2}
    # Its plan is an audit's, but an audit does not mix into its directory.
    plan, gates = load_plan(tmp_path / "demo" / "audit.toml"), parse_gates({"psnr": 1}, {})
    with pytest.raises(ConfigError, match="holds what `undelta demo` wrote"):
        run_plan(plan, out=tmp_path / "demo", gates=gates)
    done = run_plan(plan, out=tmp_path / "audit", gates=gates)
    assert done.judgment.gate is not None
    assert len(done.judgment.gate.offenses) == 1


def test_a_finished_demo_runs_again(small_demo: None, tmp_path: Path) -> None:
    first, second = jobs.demo_job(tmp_path), jobs.demo_job(tmp_path)
    assert [record.mismatch for record in first] == [record.mismatch for record in second]
    assert [record.seconds for record in first] != [record.seconds for record in second]


def test_two_demos_in_one_directory_are_refused(small_demo: None, tmp_path: Path) -> None:
    (record, _) = jobs.demo_job(tmp_path)
    assert record.status == "completed"
    folder = next((tmp_path / "trials").iterdir())
    lease = Leases(worker="other").acquire(folder)
    assert lease is not None
    with pytest.raises(ConfigError, match="another demo is running"):
        jobs.demo_job(tmp_path)
    lease.release()
