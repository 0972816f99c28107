"""`undelta observe`: from two checkpoints of any framework to a report."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from undelta.cli import main
from undelta.client.disclose import disclose
from undelta.client.private import save_private
from undelta.client.scenario import Scenario
from undelta.observation import Observation
from undelta.observation.file import digest_of, load_observation
from undelta.trials.record import describe_observation

SCENARIO = Scenario(
    data="faces",
    image_size=12,
    num_samples=2,
    model_arguments={"width": 4, "hidden": 8},
    epochs=2,
    batches=2,
    learning_rate=0.01,
)
MODULE = """
from torch import nn

def tiny(width):
    return nn.Sequential(nn.Flatten(), nn.Linear(144, width), nn.ReLU(), nn.Linear(width, 2))
"""
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command line in this process: exit code, output, errors."""

    def run(*words: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["undelta", *map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture(scope="module")
def seen() -> Observation:
    return disclose(SCENARIO.draw(0), SCENARIO)


@pytest.fixture
def words(tmp_path: Path, seen: Observation) -> dict[str, str]:
    """The options of a command that works."""
    torch.save(dict(seen.initial), tmp_path / "before.pt")
    torch.save({"state_dict": {f"module.{key}": value for key, value in seen.received.items()}}, tmp_path / "after.pt")
    return {
        "--before": str(tmp_path / "before.pt"),
        "--after": str(tmp_path / "after.pt"),
        "--model": "cnn",
        "--model-argument": "width=4",
        "--samples": "2",
        "--epochs": "2",
        "--batches": "2",
        "--learning-rate": "0.01",
        "--shape": "1,12,12",
        "--classes": "2",
        "--mean": "0.5",
        "--std": "0.25",
        "--labels": ",".join(str(int(label)) for label in seen.labels.flip(0)) if seen.labels is not None else "",
        "--out": str(tmp_path / "seen.safetensors"),
    }


def flat(words: dict[str, str]) -> list[str]:
    return ["--model-argument", "hidden=8", *(word for pair in words.items() for word in pair)]


def test_two_torch_checkpoints_are_observed_attacked_and_reported(
    tmp_path: Path, words: dict[str, str], seen: Observation, run: Run
) -> None:
    code, out, err = run("observe", *flat(words))
    assert code == 0, err
    assert "undelta attack" in out
    assert err.splitlines() == [
        f"Note: {words['--after']}: took the state under 'state_dict'.",
        f"Note: {words['--after']}: removed 'module.' from the names.",
        "Note: 'conv1.bias' and 6 more did not move; if the client freezes parameters, say which it trains (trained).",
    ]  # nothing gets through its ReLUs
    # The same as if undelta had seen the client itself, to the last bit.
    assert digest_of(load_observation(words["--out"])) == digest_of(seen)
    code, _, err = run("attack", words["--out"], "--out", tmp_path / "run", "--steps", "3", "--set", "rollout_steps=2")
    assert (code, err) == (0, "")
    observation, truth = load_observation(words["--out"]), tmp_path / "truth.safetensors"
    save_private(SCENARIO.draw(0), truth, describe_observation(observation), observation)
    code, out, err = run("score", tmp_path / "run", "--truth", truth)
    assert (code, err) == (0, "")
    code, out, err = run("report", tmp_path / "run")
    assert (code, err) == (0, "")
    assert "strongest" in (tmp_path / "run" / "report.html").read_text()


def test_a_model_of_your_own_needs_no_number_of_classes(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_tiny_model.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    model = importlib.import_module("own_tiny_model").tiny(5)
    torch.save(model.state_dict(), "a.pth")
    torch.save({name: value + 0.01 for name, value in model.state_dict().items()}, "b.pth")
    given = ["--samples=3", "--batch-size=2", "--shape=1,12,12", "--model-argument=width=5", "-o", "seen.safetensors"]
    code, out, err = run("observe", "--before", "a.pth", "--after", "b.pth", "--model", "own_tiny_model:tiny", *given)
    assert code == 0, err
    assert "--model own_tiny_model:tiny" in out
    assert "no epochs and no learning_rate" in err
    assert "inputs are taken as pixels in [0, 1]" in err
    loaded = load_observation("seen.safetensors", model="own_tiny_model:tiny")
    assert (loaded.image.classes, loaded.training.batches, loaded.unknown) == (2, 2, ("epochs", "learning_rate"))


def test_labels_may_be_in_a_file(tmp_path: Path, words: dict[str, str], run: Run) -> None:
    (tmp_path / "labels.txt").write_text("1\n0\n")
    code, _, err = run("observe", *flat({**words, "--labels": str(tmp_path / "labels.txt")}))
    assert code == 0, err
    labels = load_observation(words["--out"]).labels
    assert labels is not None
    assert labels.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"--before": "absent.pt"}, "absent.pt: no such file"),
        ({"--shape": "12,12"}, "--shape: expected channels, height and width"),
        ({"--shape": "1,x,12"}, "--shape: expected whole numbers"),
        ({"--shape": "3,12,12"}, "'conv1.weight': expected shape (4, 3, 3, 3), got (4, 1, 3, 3)"),
        ({"--classes": "3"}, "is the number of classes right?"),
        ({"--model": "cnnn"}, "unknown model 'cnnn'"),
        ({"--model": "absent_package:model"}, "cannot import the model"),
        ({"--model-argument": "width=8"}, "'conv1.weight': expected shape"),
        ({"--model-argument": "depth=8"}, "unknown argument 'depth'"),
        ({"--batches": "3"}, "2 samples cannot fill 3 mini-batches"),
        ({"--mean": "0.1,0.2"}, "expected a mean and a std for each of 1 channels"),
        ({"--std": "0"}, "positive stds"),
        ({"--labels": "0,1,1"}, "labels: expected 2 int64 values"),
        ({"--labels": "0,7"}, "labels: expected classes 0 to 1"),
        ({"--labels": "absent.txt"}, "--labels: expected numbers such as 0,1,1 or a file of them"),
        ({"--labels": "0,99999999999999999999"}, "far too large"),
        ({"--loss": "hinge"}, "loss: unknown value 'hinge'"),
        ({"--learning-rate": "nan"}, "learning_rate: expected a finite number"),
        ({"--out": "before.pt/seen.safetensors"}, "before.pt"),  # no folder can be made within a file
    ],
)
def test_mistakes_are_one_line_and_write_nothing(
    tmp_path: Path,
    words: dict[str, str],
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    code, out, err = run("observe", *flat({**words, **changes}))
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert message in err
    assert sorted(tmp_path.iterdir()) == before


def test_built_in_models_need_a_number_of_classes(words: dict[str, str], run: Run) -> None:
    del words["--classes"]
    code, _, err = run("observe", *flat(words))
    assert code == 2
    assert "give --classes" in err


def test_a_checkpoint_is_never_overwritten(words: dict[str, str], run: Run) -> None:
    before = Path(words["--after"]).read_bytes()
    code, _, err = run("observe", *flat({**words, "--out": words["--after"]}))
    assert code == 2
    assert "choose another file" in err
    assert Path(words["--after"]).read_bytes() == before
