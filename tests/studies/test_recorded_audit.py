"""Audits of recorded updates: verdicts, gates and reports, with the truth, with plain pictures, or without either."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from PIL import Image
from torch import Tensor
from typer.testing import CliRunner

from undelta.cli import app
from undelta.client.private import load_private, save_private
from undelta.errors import ConfigError, DataError
from undelta.observation.file import load_observation
from undelta.report import write_report
from undelta.report.read import read_audit
from undelta.studies.audit import judge_job, plan_recorded
from undelta.studies.scoring import score_job
from undelta.studies.single import attack_job, simulate_job
from undelta.trials.directory import RunDirectory
from undelta.trials.gates import parse_gates
from undelta.trials.judgment import Judgment
from undelta.trials.leases import Leases
from undelta.trials.plan import Plan, load_plan
from undelta.trials.trial import Recorded
from undelta.trials.worker import attempt

SCENARIO = """
data = "faces"
image_size = 12
num_samples = 1
model = "mlp"
model_arguments = { hidden = [8] }
epochs = 1
batches = 1
learning_rate = 0.05
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNDELTA_LPIPS", "")
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Two updates and their truths in one folder, as a federation might leave them."""
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    folder = tmp_path / "updates"
    folder.mkdir()
    for seed in (0, 1):
        simulate_job(
            tmp_path / "scenario.toml",
            observation_path=folder / f"client{seed}.safetensors",
            truth_path=folder / f"truth{seed}.safetensors",
            seed=seed,
        )
    return folder


def judged(plan: Plan, out: Path, gates: dict[str, float] | None = None) -> Judgment:
    """The audit of a plan, in this process."""
    store, leases = RunDirectory(out), Leases(worker="test")
    store.prepare(plan.text, plan.trials, leases, title=plan.name)
    for trial in plan.trials:
        lease = leases.acquire(store.folder(trial.key))
        assert lease is not None
        with lease:
            attempt(store, trial, lease)
    return judge_job(plan, store, parse_gates(gates or {}, {})).judgment


def write_image(path: Path, image: Tensor) -> None:
    pixels = (image * 255).round().byte().expand(3, -1, -1).permute(1, 2, 0)
    Image.fromarray(pixels.contiguous().numpy()).save(path)


def test_a_folder_of_updates_is_audited_with_its_truths(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = recorded.parent / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))
    junit, sarif = recorded.parent / "ci" / "new" / "junit.xml", recorded.parent / "ci" / "found.sarif"
    words = ("audit", recorded, "--truth", recorded, "--out", recorded.parent / "out", "--attack", "analytic")
    gates = ("--workers", "1", "--fail-above", "ssim=0.5", "--junit", junit, "--sarif", sarif)
    (recorded / "client1.safetensors").rename(recorded / "client1\a.safetensors")  # a name that rings
    done = CliRunner().invoke(app, list(map(str, (*words, *gates))))
    assert done.exit_code == 1, done.output
    assert "Gate failed: client1\\x07: ssim" in done.output
    assert "\a" not in done.output
    assert "Gate failed (ssim at most 0.5)." in done.output
    judgment = json.loads((recorded.parent / "out" / "verdict.json").read_text())
    assert [(one["scenario"], one["diagnosis"]["level"]) for one in judgment["verdicts"]] == [
        ("client0", "leaks"),
        ("client1\a", "leaks"),
    ]
    assert judgment["gate"]["passed"] is False
    assert "2 leak private images" in page.read_text()
    assert 'failures="2"' in junit.read_text()
    assert sarif.exists()
    text = write_report(recorded.parent / "out").read_text()
    assert "Gate failed (ssim at most 0.5)." in text
    assert "data-originals" in text
    # Client 1 was simulated with seed 1 and attacked with seed 0: the command that repeats it has both.
    assert "undelta simulate scenario.toml --observation seen --truth truth --seed 1 &amp;&amp;" in text
    assert "None: no differential privacy." in text


def test_plain_pictures_are_a_truth_too(recorded: Path) -> None:
    private, _, _ = load_private(recorded / "truth0.safetensors")
    pictures = recorded.parent / "pictures"
    pictures.mkdir()
    write_image(pictures / "one.png", private.images[0])
    plan = plan_recorded([recorded / "client0.safetensors"], attacks=["analytic"], images=pictures)
    (verdict,) = judged(plan, recorded.parent / "out").verdicts
    assert (verdict.level, verdict.recognizable) == ("leaks", 1)
    write_image(pictures / "two.png", private.images[0])
    with pytest.raises(ConfigError, match="expected the 1 pictures that the client trained on, got 2"):
        plan_recorded([recorded / "client0.safetensors"], images=pictures)


def test_without_a_truth_there_is_a_diagnosis_and_no_gate_is_passed(recorded: Path) -> None:
    plan = plan_recorded([recorded / "client0.safetensors"], attacks=["analytic"])
    judgment = judged(plan, recorded.parent / "out", {"ssim": 0.5})
    assert judgment.gate is not None
    assert judgment.gate.offenses == ("client0: ssim was not measured, so the gate cannot be passed",)
    assert [one.level for one in judgment.verdicts] == ["not compared"]
    with pytest.raises(ConfigError, match="holds an audit; tell `undelta audit` itself"):
        score_job(recorded.parent / "out", truth_path=recorded / "truth0.safetensors")
    assert (recorded.parent / "out" / "verdict.json").exists()
    text = write_report(recorded.parent / "out").read_text()
    assert "data-row" in text
    assert "Not known: an update does not tell how its client was protected." in text
    assert "until somebody compares them with the originals, neither leakage nor safety is shown" in text


def test_a_truth_of_another_update_is_refused(recorded: Path) -> None:
    with pytest.raises(ConfigError, match="belongs to none of the updates"):
        plan_recorded([recorded / "client0.safetensors"], truths=[recorded / "truth1.safetensors"])
    with pytest.raises(ConfigError, match="found none"):
        plan_recorded([recorded.parent])
    with pytest.raises(ConfigError, match="no such file"):
        plan_recorded([recorded / "nothing"])


def test_an_update_that_cannot_be_read_is_not_left_out(recorded: Path) -> None:
    broken = recorded / "client1.safetensors"
    broken.write_bytes(broken.read_bytes()[:-8])
    with pytest.raises(ConfigError, match=r"client1\.safetensors: not a readable file of ours; repair it or move it"):
        plan_recorded([recorded], attacks=["analytic"])
    broken.unlink()
    os.mkfifo(broken)
    with pytest.raises(ConfigError, match="not a readable file of ours"):
        plan_recorded([recorded], attacks=["analytic"])


def test_scenarios_and_recorded_updates_share_one_audit(recorded: Path) -> None:
    file = recorded.parent / "audit.toml"
    fields = SCENARIO.strip()
    file.write_text(
        f"name = 'both'\n[scenario]\n{fields}\n[[attacks]]\nattack = 'analytic'\n"
        f"[[recorded]]\nname = 'ours'\nobservation = '{recorded / 'client0.safetensors'}'\n"
        f"truth = '{recorded / 'truth0.safetensors'}'\n"
    )
    out = recorded.parent / "out"
    judgment = judged(load_plan(file), out)
    assert [one.scenario for one in judgment.verdicts] == ["1 image of faces, mlp, 1 epoch", "ours"]
    assert {one.level for one in judgment.verdicts} == {"leaks"}
    refused = CliRunner().invoke(app, ["audit", str(file), "--out", str(out), "--attack", "awa"])
    assert isinstance(refused.exception, ConfigError)


def test_attack_and_score_give_the_verdict_of_an_audit(recorded: Path) -> None:
    run = recorded.parent / "run"
    attack_job(recorded / "client0.safetensors", attack="analytic", arguments={}, out=run, seed=0)
    assert json.loads((run / "verdict.json").read_text())["verdicts"][0]["diagnosis"]["level"] == "not compared"
    score_job(run, truth_path=recorded / "truth0.safetensors")
    judgment = json.loads((run / "verdict.json").read_text())
    assert judgment["headline"] == "The client's update leaks private images: 1 of 1 can be recognized."
    pictures = recorded.parent / "pictures"
    pictures.mkdir()
    write_image(pictures / "one.png", load_private(recorded / "truth0.safetensors")[0].images[0])
    (record,) = score_job(run, truth_path=pictures)
    assert record.psnr is not None
    assert record.psnr > 30


def test_what_a_simulated_client_was_promised_is_known_from_its_truth(tmp_path: Path) -> None:
    shield = 'defenses = [{ defense = "dp_sgd", noise_multiplier = 1.0, norm = 1.0, delta = 1e-5 }]'
    (tmp_path / "scenario.toml").write_text(f"{SCENARIO}\n{shield}\n")
    update, truth, run = tmp_path / "seen", tmp_path / "truth", tmp_path / "run"
    scenario = simulate_job(tmp_path / "scenario.toml", observation_path=update, truth_path=truth, seed=0)
    attack_job(update, attack="analytic", arguments={}, out=run, seed=0)
    score_job(run, truth_path=truth)
    epsilon, _ = scenario.privacy() or (None, None)
    (verdict,) = judged(plan_recorded([update], attacks=["analytic"], truths=[truth]), tmp_path / "out").verdicts
    for found in (verdict, read_audit(run).judgment.verdicts[0]):
        assert (found.epsilon, found.delta) == (epsilon, 1e-5)
    assert "ε = " in write_report(run).read_text()


def test_a_truth_whose_scenario_makes_no_sense_is_refused(recorded: Path) -> None:
    update, truth = recorded / "client0.safetensors", recorded / "truth0.safetensors"
    private, scenario, _ = load_private(truth)
    save_private(private, truth, {**scenario, "num_samples": "many"}, load_observation(update))
    with pytest.raises(DataError, match=r"truth0\.safetensors: scenario"):
        Recorded.of(update, truth=truth)
