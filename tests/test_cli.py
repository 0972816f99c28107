"""The command line from outside: real processes for what only they can show, one process for the many mistakes."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from PIL import Image

from undelta.attacker.attacks import ATTACKS, strongest
from undelta.cli import app, main
from undelta.client.datasets import SOURCES
from undelta.client.defenses import DEFENSES
from undelta.client.disclose import disclose
from undelta.client.scenario import Scenario
from undelta.engine import Network, Room, Step
from undelta.errors import DataError, ObservationError
from undelta.files import read_tensors, write_tensors
from undelta.models import MODELS
from undelta.observation.file import load_observation, save_observation

TOML = """
data = "faces"
image_size = 16
num_samples = 2
model = "cnn"
model_arguments = { width = 4, hidden = 8 }
epochs = 2
batches = 2
learning_rate = 0.01
"""
COMMANDS = [
    "demo",
    "simulate",
    "attack",
    "observe",
    "score",
    "list",
    "fetch",
    "report",
    "audit",
    "defend",
    "tune",
    "reproduce",
    "compare",
    "init",
]
QUICK = ["--steps", "12", "--set", "rollout_steps=3"]
HELP_SECONDS = 0.6


@dataclass(frozen=True, kw_only=True)
class Finished:
    code: int
    out: str
    err: str


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "UNDELTA_LPIPS": "", "XDG_CACHE_HOME": os.devnull}


def undelta(*words: str | Path) -> Finished:
    """Run the command line in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "undelta", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=environment(),
    )
    return Finished(code=done.returncode, out=done.stdout, err=done.stderr)


def is_one_clear_line(finished: Finished) -> bool:
    lines = finished.err.splitlines()
    return finished.code == 2 and len(lines) == 1 and lines[0].startswith("undelta: ") and not finished.out


@dataclass(frozen=True, kw_only=True)
class Run:
    """The files of simulate, attack and score, each done by a process of its own."""

    directory: Path
    printed: dict[str, Finished]
    before_scoring: str

    @property
    def scenario(self) -> Path:
        return self.directory / "scenario.toml"

    @property
    def observation(self) -> Path:
        return self.directory / "observation.safetensors"

    @property
    def truth(self) -> Path:
        return self.directory / "truth.safetensors"

    @property
    def out(self) -> Path:
        return self.directory / "run"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    made = Run(directory=tmp_path_factory.mktemp("cli"), printed={}, before_scoring="")
    made.scenario.write_text(TOML)
    made.printed["simulate"] = undelta(
        "simulate", made.scenario, "--observation", made.observation, "--truth", made.truth, "--seed", "4"
    )
    made.printed["attack"] = undelta("attack", made.observation, "--out", made.out, "--seed", "7", *QUICK)
    before = "".join(path.read_text() for path in made.out.glob("trials/*/record.json"))
    made.printed["score"] = undelta("score", made.out, "--truth", made.truth)
    return Run(directory=made.directory, printed=made.printed, before_scoring=before)


def record_in(out: Path) -> dict[str, Any]:
    (path,) = out.glob("trials/*/record.json")
    record: dict[str, Any] = json.loads(path.read_text())
    return record


def reconstruction_in(out: Path) -> Path:
    (path,) = out.glob("trials/*/reconstruction.safetensors")
    return path


@pytest.fixture
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# A whole audit


def test_simulate_attack_and_score_work_in_a_row(run: Run) -> None:
    for command, finished in run.printed.items():
        assert (finished.code, finished.err) == (0, ""), command
    assert "trained on 2 images of faces" in run.printed["simulate"].out
    assert "n/a" in run.printed["attack"].out
    assert "PSNR" in run.printed["score"].out
    assert "undelta fetch lpips" in run.printed["score"].out
    assert "undelta fetch lpips" not in run.printed["attack"].out  # nothing is scored yet
    record = record_in(run.out)
    assert (record["attack"], record["seed"], record["status"]) == ("strongest", 7, "completed")
    assert record["iterations"] >= 2 * 12 + 5 * 3  # the midpoint resolves so short a path
    assert record["threads"] == 1
    assert 0 < record["psnr"] < 100
    assert -1 <= record["ssim"] <= 1
    assert record["scenario"]["data"] == "faces"
    assert len(record["images"]) == 2
    with Image.open(run.out / "reconstruction.png") as image:
        assert image.size == (4 + 2 * 100, 4 + 2 * 120)


def test_the_attack_knows_neither_the_data_nor_the_scores(run: Run) -> None:
    record = json.loads(run.before_scoring)
    assert record["psnr"] is None
    assert record["images"] == []
    assert record["scenario"]["data"] is None


def test_another_process_reconstructs_the_very_same_images(run: Run, one_thread: None) -> None:
    attack = strongest(steps=12, rollout_steps=3)
    here = attack(load_observation(run.observation), seed=7)
    there, _ = read_tensors(reconstruction_in(run.out), kind="reconstruction", error=DataError)
    assert torch.equal(there["images"], here.images)
    assert torch.equal(there["labels"], here.labels)


def test_another_process_discloses_the_very_same_update(run: Run, one_thread: None) -> None:
    scenario = Scenario(
        data="faces",
        image_size=16,
        num_samples=2,
        model="cnn",
        model_arguments={"width": 4, "hidden": 8},
        epochs=2,
        batches=2,
        learning_rate=0.01,
    )
    disclosed, recorded = disclose(scenario.draw(4), scenario, seed=4), load_observation(run.observation)
    for name, tensor in disclosed.initial.items():
        assert torch.equal(recorded.initial[name], tensor)
        assert torch.equal(recorded.received[name], disclosed.received[name])


# Mistakes


def test_a_truncated_observation_is_one_line_from_a_real_process(run: Run, tmp_path: Path) -> None:
    content = run.observation.read_bytes()
    (tmp_path / "truncated").write_bytes(content[: len(content) // 2])
    finished = undelta("attack", tmp_path / "truncated", "--out", tmp_path / "out")
    assert is_one_clear_line(finished), finished
    assert not (tmp_path / "out").exists()


def test_an_unknown_option_is_a_usage_error() -> None:
    finished = undelta("attack", "observation", "--outt", "run")
    assert finished.code == 2
    assert "--outt" in finished.err
    assert "Traceback" not in finished.err


class Here:
    """Runs the command line in this process, which saves the seconds that importing torch takes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *words: str | Path) -> Finished:
        self.monkeypatch.setattr(sys, "argv", ["undelta", *map(str, words)])
        self.capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main()
        printed = self.capsys.readouterr()
        code = stopped.value.code
        assert isinstance(code, int)
        return Finished(code=code, out=printed.out, err=printed.err)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    return Here(monkeypatch, capsys)


def test_control_characters_of_a_file_do_not_reach_the_terminal(here: Here, tmp_path: Path) -> None:
    (tmp_path / "scenario.toml").write_text('data = "\\u001b[2J\\u0007\\u202eevil"\n')
    finished = here("simulate", tmp_path / "scenario.toml", "--observation", "seen", "--truth", "truth")
    assert finished.code == 2
    assert "\\x1b[2J\\x07\\u202eevil" in finished.err
    assert finished.err.rstrip("\n").isprintable()


def damaged(source: Path, target: Path, damage: str) -> Path:
    content = bytearray(source.read_bytes())
    if damage == "flipped bit":
        content[-5] ^= 4
    if damage in ("flipped bit", "empty"):
        target.write_bytes(content if damage == "flipped bit" else b"")
        return target
    tensors, metadata = read_tensors(source, kind="observation", error=ObservationError)
    if damage == "wrong shape":
        tensors["received/fc2.bias"] = tensors["received/fc2.bias"][:1]
    if damage == "NaN":
        tensors["initial/fc2.bias"][0] = torch.nan
    if damage == "custom model":
        metadata["architecture"]["name"] = "some_module:some_function"
    write_tensors(target, tensors, metadata)
    return target


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        ("flipped bit", "damaged"),
        ("empty", "not a readable safetensors file"),
        ("wrong shape", "received state, 'fc2.bias': expected shape (2,), got (1,)"),
        ("NaN", "initial state, 'fc2.bias': 1 of 2 values are NaN"),
        ("custom model", "--model some_module:some_function"),
    ],
)
def test_a_bad_observation_is_one_line(run: Run, here: Here, tmp_path: Path, damage: str, complaint: str) -> None:
    path = damaged(run.observation, tmp_path / "bad", damage)
    finished = here("attack", path, "--out", tmp_path / "out")
    assert is_one_clear_line(finished), finished
    assert str(path) in finished.err
    assert complaint in finished.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--set", "nonsense"], "expected key=value, got 'nonsense'"),
        (["--set", "tv=much"], "tv: expected a number, got 'much'"),
        (["--set", "tvv=1"], "did you mean 'tv'?"),
        (["--set", "steps=" + "9" * 5_000], "steps"),
        (["--attack", "strngest"], "did you mean 'strongest'?"),
        (["--steps", "0"], "expected steps >= 1, got steps=0"),
        (["--steps", "-5"], "expected steps >= 1, got steps=-5"),
        (["--model", "no_such_module:build"], "no_such_module"),
        (["--device", "abacus"], "expected a device such as auto, cpu, cuda or cuda:1, got 'abacus'"),
        (["--device", "cuda:99"], "the device 'cuda:99' is not there"),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, list) else "",
)
def test_a_bad_option_is_one_line(run: Run, here: Here, tmp_path: Path, words: list[str], complaint: str) -> None:
    finished = here("attack", run.observation, "--out", tmp_path / "out", *words)
    assert is_one_clear_line(finished), finished
    assert complaint in finished.err
    assert not (tmp_path / "out").exists()


def test_the_memory_that_may_be_kept_reaches_the_engine(
    run: Run, here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[int] = []
    original = Room.of

    def spy(network: Network, steps: list[Step], *, share: float = 1.0) -> Room:
        limits.append(network.memory)
        return original(network, steps, share=share)

    monkeypatch.setattr(Room, "of", spy)
    finished = here("attack", run.observation, "--out", tmp_path / "out", "--memory", "0.25", *QUICK)
    assert finished.code == 0
    assert set(limits) == {2**28}


def test_missing_files_are_one_line(run: Run, here: Here, tmp_path: Path) -> None:
    absent, out = tmp_path / "absent", tmp_path / "out"
    mistakes: list[list[str | Path]] = [
        ["attack", absent, "--out", out],
        ["simulate", absent, "--observation", out / "observation", "--truth", out / "truth"],
        ["simulate", run.scenario, "--observation", run.truth / "within", "--truth", out / "truth"],
        ["score", absent, "--truth", run.truth],
        ["score", run.out, "--truth", absent],
    ]
    for words in mistakes:
        finished = here(*words)
        assert is_one_clear_line(finished), (words, finished)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (TOML.replace("epochs", "epocs"), "unknown key 'epocs'; did you mean 'epochs'?"),
        (TOML.replace("epochs = 2", "epochs = true"), "epochs: expected a whole number, got True"),
        (TOML.replace("epochs = 2", "epochs = "), "not valid TOML"),
        (TOML.replace('"faces"', '"facez"'), "facez"),
        (TOML.replace('"cnn"', '"cnnn"'), "unknown model"),
        (TOML.replace("width = 4", "width = 0"), "width"),
        (TOML.replace("num_samples = 2", "num_samples = 1000000"), "1000000"),
    ],
    ids=["misspelled key", "wrong type", "broken", "unknown data", "unknown model", "bad argument", "too many"],
)
def test_a_bad_scenario_is_one_line(here: Here, tmp_path: Path, wrong: str, complaint: str) -> None:
    scenario = tmp_path / "scenario.toml"
    scenario.write_text(wrong)
    finished = here("simulate", scenario, "--observation", tmp_path / "observation", "--truth", tmp_path / "truth")
    assert is_one_clear_line(finished), finished
    assert complaint in finished.err
    assert list(tmp_path.iterdir()) == [scenario]


def test_a_mistyped_command_is_answered_with_one_suggestion(here: Here) -> None:
    finished = here("atack")
    assert finished.code == 2
    assert finished.err.count("Did you mean 'attack'?") == 1


def test_earlier_results_are_replaced_only_when_asked(run: Run, here: Here, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(run.out, out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    words: list[str | Path] = ["attack", run.observation, "--out", out, "--seed", "7", *QUICK]
    finished = here(*words)
    assert is_one_clear_line(finished), finished
    assert "--overwrite" in finished.err
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert here(*words, "--overwrite").code == 0
    assert record_in(out)["psnr"] is None  # not scored yet


# Help


def test_help_does_not_import_torch() -> None:
    code = (
        "import sys\n"
        "from undelta.cli import app\n"
        f"for words in [[], *([name] for name in {COMMANDS!r})]:\n"
        "    app([*words, '--help'], standalone_mode=False)\n"
        "heavy = {'torch', 'numpy', 'scipy', 'skimage', 'PIL'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("Usage") == 1 + len(COMMANDS)


def test_every_argument_and_option_is_explained() -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    assert set(COMMANDS) <= set(group.commands)
    for command in group.commands.values():
        for parameter in command.params:
            assert getattr(parameter, "help", None), (command.name, parameter.name)
    assert "A recorded update." in undelta("attack", "--help").out


def children_seconds() -> float:
    """Processor time of finished child processes: unlike the clock, it does not count waiting for a busy machine."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_help_answers_at_once(command: str | None) -> None:
    words = [command] if command else []
    best = float("inf")
    for _ in range(5):
        began = children_seconds()
        finished = undelta(*words, "--help")
        best = min(best, children_seconds() - began)
        assert (finished.code, finished.err) == (0, "")
        assert "Usage" in finished.out
        if best < HELP_SECONDS:
            break
    assert best < HELP_SECONDS


def test_the_version_is_the_packages_own_and_h_is_help() -> None:
    assert undelta("--version").out == f"undelta {version('undelta')}\n"
    assert undelta("attack", "-h").out == undelta("attack", "--help").out


def test_list_names_every_attack_model_defense_and_source(here: Here) -> None:
    finished = here("list")
    assert (finished.code, finished.err) == (0, "")
    first_words = [line.split()[0] for line in finished.out.splitlines()]
    for name in (*ATTACKS, *MODELS, *DEFENSES, *SOURCES):
        assert name in first_words


# Ctrl-C


def test_an_interrupted_attack_leaves_what_it_has(tmp_path: Path) -> None:
    scenario = Scenario(data="faces", image_size=4, num_samples=2, model="mlp", epochs=1, batches=1)
    observation, out = tmp_path / "observation", tmp_path / "out"
    save_observation(disclose(scenario.draw(0), scenario), observation)
    # A shell that runs this in the background makes children ignore Ctrl-C; take that back.
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from undelta.cli import main; main()"
    )
    words = ["attack", str(observation), "--out", str(out), "--steps", "100000000"]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        deadline = time.monotonic() + 300
        # The first checkpoint says that the attack is under way, so that the signal comes not too early.
        while not list(out.glob("trials/*/checkpoint.pt")) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        printed, complaints = process.communicate(timeout=300)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, complaints
    assert "interrupted" in printed
    assert complaints == "Interrupted: what you see is the result so far; the same command resumes.\n"
    record = record_in(out)
    assert record["status"] == "interrupted"
    assert 0 < record["iterations"] < 100_000_000
    tensors, _ = read_tensors(reconstruction_in(out), kind="reconstruction", error=DataError)
    assert torch.isfinite(tensors["images"]).all()
    with Image.open(out / "reconstruction.png") as image:
        assert image.size == (4 + 2 * 100, 4 + 120)
