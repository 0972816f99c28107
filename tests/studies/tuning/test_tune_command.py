"""`undelta tune`: from a scenario or an update to weights, whatever kills it on the way."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import optuna
import pytest
from typer.testing import CliRunner

from undelta.attacker.attack import Watch
from undelta.attacker.reconstruction import Moment
from undelta.cli import app, main
from undelta.client.disclose import disclose
from undelta.client.scenario import Scenario
from undelta.engine import Network, Room
from undelta.errors import ConfigError
from undelta.observation import Observation
from undelta.observation.file import save_observation
from undelta.report.read import read_audit
from undelta.report.write import write_report
from undelta.studies.screen import Silent
from undelta.studies.tuning.jobs import final_job, tune_job
from undelta.studies.tuning.outcome import Tuned
from undelta.trials.directory import RunDirectory

TOML = """
data = "digits"
num_samples = 3
model = "cnn"
model_arguments = { width = 4, hidden = 8 }
epochs = 2
batches = 1
learning_rate = 0.05
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "scenario.toml"
    path.write_text(TOML)
    return path


def content(out: Path) -> dict[str, Any]:
    """What was found, but for the clock."""
    found: dict[str, Any] = json.loads((out / "tuning.json").read_bytes())
    for trial in found["trials"]:
        trial["seconds"] = None
    return found


def study_of(out: Path) -> optuna.Study:
    return optuna.load_study(study_name=None, storage=f"sqlite:///{out / 'study.db'}")


def trials_so_far(out: Path) -> list[tuple[str, int | None]]:
    """While it runs: each trial's state and its worker's number; nothing if the file is not there yet, or locked."""
    question = (
        "SELECT state, (SELECT value_json FROM trial_user_attributes AS a WHERE a.trial_id = t.trial_id AND key = "
        "'owner') FROM trials AS t"
    )
    try:
        with contextlib.closing(sqlite3.connect(f"file:{out / 'study.db'}?mode=ro", uri=True, timeout=0.2)) as file:
            rows = file.execute(question).fetchall()
    except sqlite3.OperationalError:
        return []
    return [(state, json.loads(owner)["pid"] if owner else None) for state, owner in rows]


def test_a_scenario_becomes_weights_that_an_attack_takes(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "tuned"
    words = ["tune", str(source), "--out", str(out), "--trials", "12", "--random", "4", "--steps", "21"]
    done = CliRunner().invoke(app, [*words, "--final-steps", "13"])
    assert done.exit_code == 0, done.output
    found = content(out)
    assert [trial["number"] for trial in found["trials"]] == list(range(12))
    completed = [trial for trial in found["trials"] if trial["state"] == "completed"]
    best = min(completed, key=lambda trial: float(trial["value"]))
    assert (found["best"]["number"], found["best"]["value"]) == (best["number"], best["value"])
    assert f"in trial {best['number']}" in done.output
    assert set(best["parameters"]) == {"conv", "linear", "enhanced", "p_mean", "p_var"}
    assert all(trial["value"] is None for trial in found["trials"] if trial["state"] == "pruned")
    if len(completed) >= 10:
        assert sum(found["importance"].values()) == pytest.approx(1)
    # The winner was run once more, as `undelta attack` does it.
    (record,) = RunDirectory(out).records()
    assert record.arguments == {**found["best"]["settings"], "steps": 13}
    assert (out / "reconstruction.png").exists()
    assert record.psnr is not None  # the truth of a simulated client was kept for this
    # An attack with the file of weights is the same run.
    weights = tomllib.loads((out / "weights.toml").read_text())
    assert weights["q"] == found["best"]["settings"]["q"]
    run = tmp_path / "run"
    words = ["attack", str(out / "observation.safetensors"), "--weights", str(out / "weights.toml"), "--out", str(run)]
    done = CliRunner().invoke(app, [*words, "--steps", "13"])
    assert done.exit_code == 0, done.output
    (again,) = RunDirectory(run).records()
    assert (again.attack, again.mismatch) == ("awa", record.mismatch)
    # And the report shows the history.
    tuning = read_audit(out).tuning
    assert tuning is not None
    assert tuning.trials[best["number"]].value == best["value"]
    assert f"came from trial {best['number']}" in write_report(out).read_text()


def test_settings_win_over_weights(source: Path, tmp_path: Path) -> None:
    out, run = tmp_path / "tuned", tmp_path / "run"
    tune_job(source, out=out, trials=1, steps=2, space="wide")
    words = ["attack", str(out / "observation.safetensors"), "--weights", str(out / "weights.toml"), "--out", str(run)]
    done = CliRunner().invoke(app, [*words, "--steps", "2", "--set", "tv=0.25"])
    assert done.exit_code == 0, done.output
    arguments = RunDirectory(run).records()[0].arguments
    best = content(out)["best"]["settings"]
    assert arguments == {**best, "tv": 0.25, "steps": 2}
    assert best["tv"] != 0.25


def test_the_shadow_objective_maximizes_quality(source: Path, tmp_path: Path) -> None:
    source.write_text(TOML.replace('"digits"', '"faces"\nimage_size = 8'))
    options: dict[str, Any] = {"trials": 4, "random": 3, "steps": 6, "objective": "shadow", "shadow_draws": 1}
    tuned = tune_job(source, out=tmp_path / "out", public="digits", **options)
    values = [trial.value for trial in tuned.trials if trial.value is not None]
    assert tuned.best.value == max(values)
    found = content(tmp_path / "out")
    assert (found["direction"], found["objective"]) == ("maximize", "shadow")
    assert final_job(tuned, out=tmp_path / "out", steps=2).status == "completed"
    assert "The largest value" in write_report(tmp_path / "out").read_text()


# No private image is involved


def test_tuning_finds_the_same_when_the_private_images_change_after_disclosure(
    scenario: Scenario, tmp_path: Path
) -> None:
    def found(name: str) -> dict[str, Any]:
        tune_job(tmp_path / "seen", out=tmp_path / name, trials=5, random=4, steps=11)
        return content(tmp_path / name)

    private = scenario.draw(0)
    observation = disclose(private, scenario)
    save_observation(observation, tmp_path / "seen")
    before = found("before")
    private.images.zero_()
    private.labels.zero_()
    save_observation(observation, tmp_path / "seen")
    assert found("after") == before


def test_a_scenario_and_its_recorded_update_are_tuned_alike(source: Path, tmp_path: Path) -> None:
    """So the private images, which only the scenario has, change nothing."""
    options: dict[str, Any] = {"trials": 4, "random": 3, "steps": 11}
    tune_job(source, out=tmp_path / "scenario", **options)
    tune_job(tmp_path / "scenario" / "observation.safetensors", out=tmp_path / "update", **options)
    one, other = content(tmp_path / "scenario"), content(tmp_path / "update")
    assert one["trials"] == other["trials"]
    assert one["settings"]["scenario"] != other["settings"]["scenario"]


# Going on


def test_a_finished_tuning_is_not_run_again_and_a_longer_one_goes_on(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options: dict[str, Any] = {"random": 3, "steps": 11}
    first = tune_job(source, out=out, trials=3, **options)
    final = final_job(first, out=out, steps=2)
    database = (out / "study.db").read_bytes()
    again = tune_job(source, out=out, trials=3, **options)
    assert again == first
    assert (out / "study.db").read_bytes() == database
    assert final_job(again, out=out, steps=2).date == final.date
    longer = tune_job(source, out=out, trials=5, **options)
    assert longer.trials[:3] == first.trials
    once = tune_job(source, out=tmp_path / "once", trials=5, **options)
    assert [trial.value for trial in longer.trials] == [trial.value for trial in once.trials]


def test_the_last_run_is_that_of_the_best_also_where_another_was_best_before(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    tuned = tune_job(source, out=out, trials=2, steps=2)
    first, second = (Tuned(plan=tuned.plan, trials=tuned.trials, best=trial) for trial in tuned.trials)
    arguments = final_job(first, out=out, steps=2).arguments
    assert final_job(second, out=out, steps=2).arguments != arguments
    assert len(RunDirectory(out).records()) == 2  # an earlier last run is kept
    dates = [record.date for record in RunDirectory(out).records()]
    assert final_job(first, out=out, steps=2).arguments == arguments
    assert [record.date for record in RunDirectory(out).records()] == dates  # and not run again


def test_an_interrupted_trial_goes_on_from_its_checkpoint(observation: Observation, tmp_path: Path) -> None:
    save_observation(observation, tmp_path / "seen")
    tune_job(tmp_path / "seen", out=tmp_path / "whole", trials=1, steps=60)
    out = tmp_path / "out"
    iterations: list[int] = []

    class Watching(Silent):
        def watch(self, slot: int) -> Watch:
            def watch(moment: Moment, total: int) -> None:
                iterations.append(moment.iteration)
                if len(iterations) == 4:
                    raise KeyboardInterrupt

            return watch

    for _ in range(2):
        with contextlib.suppress(KeyboardInterrupt):
            tune_job(tmp_path / "seen", out=out, trials=1, steps=60, checkpoint_seconds=0, screen=Watching())
    assert iterations == [0, 10, 20, 30, 30, 40, 50]  # not from the beginning
    assert content(out) == content(tmp_path / "whole")
    assert Counter(trial.state.name for trial in study_of(out).trials) == {"FAIL": 1, "COMPLETE": 1}


def command(source: Path, out: Path, *words: str) -> subprocess.Popen[bytes]:
    options = ["--trials", "7", "--random", "4", "--steps", "80", "--final-steps", "0", *words]
    return subprocess.Popen(
        [sys.executable, "-m", "undelta", "tune", str(source), "--out", str(out), *options],
        start_new_session=True,  # a process group of its own, to be killed as a whole
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def finish(process: subprocess.Popen[bytes]) -> None:
    printed = process.communicate(timeout=300)[0].decode()
    assert process.returncode == 0, printed


def kill_when(process: subprocess.Popen[bytes], out: Path, finished: int) -> None:
    """Kill it with SIGKILL when that many trials are finished and one is on its way.

    It is frozen while we look: otherwise that one may end between the look and the kill.
    """
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and process.poll() is None:
        if any((out / "checkpoints").glob("*.pt")):
            os.killpg(process.pid, signal.SIGSTOP)
            states = Counter(state for state, _ in trials_so_far(out))
            if states["COMPLETE"] + states["PRUNED"] >= finished and states["RUNNING"]:
                break
            os.killpg(process.pid, signal.SIGCONT)
        time.sleep(0.005)
    assert process.poll() is None
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=300)


def test_a_killed_tuning_ends_as_if_nothing_had_happened(source: Path, tmp_path: Path) -> None:
    tune_job(source, out=tmp_path / "whole", trials=7, random=4, steps=80)
    out = tmp_path / "killed"
    for finished in (1, 4):
        kill_when(command(source, out, "--checkpoint-seconds", "0.05"), out, finished)
        assert Counter(trial.state.name for trial in study_of(out).trials)["RUNNING"] == 1
        assert not (out / "tuning.json").exists()
    finish(command(source, out, "--checkpoint-seconds", "0.05"))
    assert content(out) == content(tmp_path / "whole")
    states = Counter(trial.state.name for trial in study_of(out).trials)
    assert states["COMPLETE"] + states["PRUNED"] == 7
    assert states["FAIL"] == 2  # the two that were killed, and repeated
    assert set(states) <= {"COMPLETE", "PRUNED", "FAIL"}
    assert not (out / "checkpoints").exists()


def test_two_workers_share_a_study_and_nothing_is_lost_with_one_that_dies(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = command(source, out, "--workers", "2")
    killed: set[int] = set()
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and process.poll() is None and not killed:
        time.sleep(0.02)
        owners = {pid for state, pid in trials_so_far(out) if state == "RUNNING" and pid}
        if len(owners) == 2:  # both are at work, at different trials
            killed = {owners.pop()}
            os.kill(next(iter(killed)), signal.SIGKILL)
    finish(process)
    trials = study_of(out).trials
    pids = {trial.user_attrs["owner"]["pid"] for trial in trials if "owner" in trial.user_attrs}
    assert killed
    assert len(pids) >= 2  # and a third, unless the other one was quicker than a new process
    states = Counter(trial.state.name for trial in trials)
    assert states["COMPLETE"] + states["PRUNED"] == 7
    assert states["FAIL"] >= 1  # the trial of the dead one, which was repeated
    assert states["RUNNING"] == states["WAITING"] == 0
    assert len(content(out)["trials"]) == 7


# Mistakes


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--space", "papr"], "did you mean 'paper'"),
        (["--objective", "shadw"], "did you mean 'shadow'"),
        (["--objective", "shadow"], "--objective shadow needs --public DATA"),
        (["--public", "faces"], "--public is for --objective shadow"),
        (["--objective", "shadow", "--public", "digits"], "is where the scenario's private images come from"),
        (["--objective", "shadow", "--public", "nowhere"], "no data source 'nowhere'"),
        (["--objective", "shadow", "--public", "photos"], "takes images of 1 channels"),
        (["--attack", "sme"], "has no layer weights Q to tune"),
        (["--set", "steps=3"], "use --steps for the trials"),
        (["--set", "q=3"], "--set q: --space paper tunes it"),
        (["--set", "sgned=true"], "did you mean 'signed'"),
        (["--model", "a.b:c"], "a scenario names its model itself"),
        (["--storage", "nonsense"], "expected a URL such as postgresql"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_no_results(
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    complaint: str,
) -> None:
    out = tmp_path / "out"
    quick = ["--trials", "1", "--steps", "1", "--final-steps", "0"]
    monkeypatch.setattr(sys, "argv", ["undelta", "tune", str(source), "--out", str(out), *quick, *words])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr().err
    assert ended.value.code == 2
    assert complaint in printed
    assert printed.count("\n") == 1
    assert not (out / "tuning.json").exists()
    assert out.exists() == ("--storage" in words)


@pytest.mark.parametrize(("data", "public"), [("photos", "patches"), ("patches", "photos")])
def test_public_images_cut_from_the_private_ones_are_refused(
    source: Path, tmp_path: Path, data: str, public: str
) -> None:
    source.write_text(TOML.replace('"digits"', f'"{data}"\nimage_size = 8'))
    with pytest.raises(ConfigError, match=f"--public {public} is where the scenario's private images come from"):
        tune_job(source, out=tmp_path / "out", trials=1, steps=1, objective="shadow", public=public)
    assert not (tmp_path / "out").exists()


def test_other_settings_in_the_same_directory_are_refused(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    tune_job(source, out=out, trials=1, steps=2)
    with pytest.raises(ConfigError, match=r"other settings \(steps was 2, is 3\); repeat that command"):
        tune_job(source, out=out, trials=1, steps=3)
    with pytest.raises(ConfigError, match="another observation; another scenario; seed was 0, is 1"):
        tune_job(source, out=out, trials=1, steps=2, seed=1)


def test_the_directory_of_another_run_is_refused(observation: Observation, tmp_path: Path) -> None:
    save_observation(observation, tmp_path / "seen")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    with pytest.raises(ConfigError, match="already holds results of something else"):
        tune_job(tmp_path / "seen", out=tmp_path / "run", trials=1)


def test_without_optuna_one_line_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['optuna'] = None; sys.argv = ['undelta', 'tune', 'x', '--out', 'y']\n"
        "from undelta.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 2
    assert done.stderr == 'undelta: undelta tune needs optuna: pip install "undelta[tune]"\n'


def test_an_attack_with_q_tune_is_the_papers_whole_algorithm(tmp_path: Path) -> None:
    small = {"width": 4, "hidden": 16}
    scenario = Scenario(data="digits", num_samples=2, model_arguments=small, epochs=2, batches=1, grant_labels=False)
    seen = tmp_path / "seen.safetensors"
    save_observation(disclose(scenario.draw(0), scenario, seed=0), seen)
    words = ["attack", str(seen), "--attack", "awa", "--set", "q=tune", "--steps", "7", "--out", str(tmp_path / "run")]
    words += ["--memory", "0.25"]
    limits, room_of = set[int](), Room.of

    def spy(network: Network, *arguments: Any, **keywords: Any) -> Room:
        limits.add(network.memory)
        return room_of(network, *arguments, **keywords)

    monkey = {"trials": 3, "random": 2, "steps": 4}
    tune = sys.modules["undelta.cli.tuning"].tune
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("undelta.cli.tuning.tune", lambda *given, **named: tune(*given, **named, **monkey))
        patch.setattr(Room, "of", spy)
        result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert limits == {2**28}, "of the trials and of the last run"
    tuned = json.loads((tmp_path / "run" / "tuning.json").read_text())
    assert len(tuned["trials"]) == 3
    (record,) = RunDirectory(tmp_path / "run").records()
    assert record.iterations == 7
    assert record.arguments["q"]
